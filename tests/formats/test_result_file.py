"""Files of finished runs and of federations that are damaged: every reader refuses them in one line that names them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flfw.adversary.observation import Truth
from flfw.api.summary import summary
from flfw.audit.jobs import EASY
from flfw.audit.queue import Queue
from flfw.audit.uploads import read_truth
from flfw.client.site import Site
from flfw.data.files import cache
from flfw.data.splits import partition
from flfw.deploy import certificates
from flfw.deploy.layout import FederationLayout
from flfw.dp.budget import budgeted
from flfw.errors import InputError
from flfw.matrix import matrices
from flfw.matrix.rows import read
from flfw.recording.reader import Recordings
from flfw.report.report import write_report
from flfw.runs.results import read_earlier
from flfw.storage.sealed import write_checked
from tests.support.reported_runs import a_full_run

CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "config": lambda r: r.update(config=[]),
    "config.seed": lambda r: r["config"].update(seed="0"),
    "rounds[0].upload_bytes": lambda r: r["rounds"][0].update(upload_bytes="many"),
    "final.acc_global": lambda r: r["final"].update(acc_global=[1]),
    "audit[0].round": lambda r: r["audit"][0].pop("round"),
    "audit[0].psnr.mean": lambda r: r["audit"][0]["psnr"].update(mean="x"),
    "audit[0].ladder[1].passed": lambda r: r["audit"][0]["ladder"][1].update(passed="yes"),
    "notes": lambda r: r.update(notes="one"),
    "provenance": lambda r: r.update(provenance=None),
}


@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("reader", [read, read_earlier, write_report, summary], ids=lambda one: one.__name__)
def test_a_result_with_a_field_of_another_type_is_refused_by_it(
    tmp_path: Path, reader: Callable[[Path], object], field: str
) -> None:
    folder = a_full_run(tmp_path / "run")
    reader(folder) if reader is not summary else None
    path = folder / "result.json"
    result = json.loads(path.read_text())
    CHANGES[field](result)
    path.write_text(json.dumps(result))
    with pytest.raises(InputError) as caught:
        reader(folder)
    assert field in str(caught.value) and str(path) in str(caught.value)


def test_a_result_without_its_figures_has_no_summary(tmp_path: Path) -> None:
    folder = a_full_run(tmp_path / "run")
    (folder / "result.json").write_text(json.dumps({"final": {}, "privacy": [], "audit": [], "notes": []}))
    assert summary(folder).endswith("report.html")
    (folder / "result.json").write_text("{}")
    with pytest.raises(InputError, match=r"result\.json, got KeyError"):
        summary(folder)


def test_damaged_rows_of_an_audit_are_refused(tmp_path: Path) -> None:
    folder = a_full_run(tmp_path / "run")
    (folder / "audit.csv").write_bytes((folder / "audit.csv").read_bytes() + b"\xff,1\n")
    for reader in (read, write_report):
        with pytest.raises(InputError, match=r"audit\.csv"):
            reader(folder)


def test_a_damaged_matrix_is_refused_by_its_field(tmp_path: Path) -> None:
    record = {"question": {}, "notes": [], "cells": [], "combinations": [{"method": "m"}]}
    (tmp_path / "matrix.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"combinations\[0\]\.\w+, got none in .*matrix\.json"):
        matrices.summary(tmp_path)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('clients = "3"', "clients as a whole number"), ("clients = true", "clients as a whole number"),
        ("clients = 9223372036854775807", "clients <= 10,000"), ("clients = 3\nhost = 7", "host as text"),
        ("clients = 3\nmore = 1", "got more"), ("", "clients, got none"), ("clients = " + "[" * 5000, "TOML"),
        ("clients = " + "9" * 5000, "TOML"), ("clients = 3\nfolder = 5", "TOML|folder|clients"),
    ],
)  # fmt: skip
def test_a_damaged_federation_is_refused_by_its_field(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / "federation.toml").write_text(text)
    if "folder" in text:
        assert FederationLayout.read(tmp_path).folder == tmp_path  # where the file lies counts, whatever it says
        return
    with pytest.raises(InputError, match=field):
        FederationLayout.read(tmp_path)


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"rung": 1}', b"\xff", b"[" * 10_000])
def test_files_of_a_queue_with_sums_that_fit_are_refused_by_their_types(tmp_path: Path, data: bytes) -> None:
    for name in ("r0000-easy.ticket", "ig-r0000-easy.json"):
        queue = Queue(tmp_path / name)
        queue.folder.mkdir()
        write_checked(queue.folder / name, data)
        with pytest.raises(InputError):
            queue.next() if name.endswith("json") else queue.tickets()
    with pytest.raises(InputError, match="steps >= 1"):
        type(EASY)("easy", 0, "", 1, -1, "easy")


def test_a_manifest_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        Recordings(tmp_path)


def test_truths_of_other_kinds_count_as_missing(tmp_path: Path) -> None:
    numbers, labels = torch.rand(2, 3), torch.tensor([0, 1])
    Truth(numbers, labels, labels.clone()).write(tmp_path, "good")
    assert read_truth(tmp_path, "good") is not None
    Truth(numbers, labels.float(), labels.clone()).write(tmp_path, "regression")
    assert read_truth(tmp_path, "regression") is not None
    wrong = {
        "nan": {"samples": numbers / 0, "labels": labels, "indices": labels.clone()},
        "double": {"samples": numbers, "labels": labels.double(), "indices": labels.clone()},
        "not finite": {"samples": numbers, "labels": labels / torch.zeros(2), "indices": labels.clone()},
        "short": {"samples": numbers, "labels": labels[:1].clone(), "indices": labels.clone()},
        "more": {"samples": numbers, "labels": labels, "indices": labels.clone(), "x": labels + 1},
    }
    for name, tensors in wrong.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
        assert read_truth(tmp_path, name) is None, name
    (tmp_path / "folder.safetensors").mkdir()
    assert read_truth(tmp_path, "folder") is None


def test_damaged_files_of_the_cache_say_how_they_are_made_again(tmp_path: Path) -> None:
    cache.write_arrays(tmp_path / "x", {"a": np.arange(3)}, {"mean": [0.5]})
    (tmp_path / "x" / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x05\x00((((\n")
    with pytest.raises(InputError, match="is made again"):
        cache.read_arrays(tmp_path / "x", ("a",))
    np.savez(tmp_path / "s.npz", train=np.array([0.5]), train_sizes=np.array([1]))
    with pytest.raises(InputError, match="is made again"):
        partition._read(tmp_path / "s.npz")


def test_damaged_words_of_a_site_are_refused() -> None:
    node = {"truth": "/t", "volunteered": "0 x"}
    with pytest.raises(InputError, match="volunteered"):
        Site.from_config(node, "abc")
    for damaged in ({"budget": "2.0"}, {"budget": "2.0 1e-5 example 0"}, {"budget": "x y z w", "ledger": "/l"}):
        with pytest.raises(InputError, match=r"^Expected budget as EPSILON DELTA UNIT PATIENT_EXAMPLES"):
            budgeted(damaged)


def test_damaged_certificates_are_refused() -> None:
    authority = certificates.authority()
    for pair in (certificates.Pair(b"x", authority.public), certificates.Pair(authority.private, b"x")):
        with pytest.raises(InputError, match="authority's key and certificate"):
            certificates.server(pair, ["localhost"])
    with pytest.raises(InputError, match="in PEM"):
        certificates.ends(b"x")
