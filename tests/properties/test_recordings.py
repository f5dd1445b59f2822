"""Recordings, their manifest, truths, and their removal: what an audit reads is what was recorded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.audit.uploads import read_truth
from flfw.errors import InputError
from flfw.recording.client_examples import forget_after, record_gradient
from flfw.recording.reader import Recordings
from flfw.recording.retention import keep_last
from tests.properties.changes import (
    Change,
    broken,
    changed_json,
    changed_lines,
    changed_tensors,
    either,
    missummed,
    resealed,
    unsealed,
)
from tests.properties.reading import Folder, Reader, are_counts, require_refused_or_valid


def everything(path: Path) -> object:
    kept = Recordings(path)
    seen = kept.observations([line["id"] for line in kept.lines])
    targets = [kept.probes("target", server_round) for server_round in (0, 1)]
    if kept.refused:
        raise InputError(kept.refused[-1])
    counts = len(targets), kept.stored_bytes, kept.forgotten
    return [vars(one) for one in seen if one], counts, kept.updates(1), kept.remarks([])


def are_seen(read: Any) -> bool:
    seen, *_ = read
    numbers = [(one["round"], one["client"], one["slot"]) for one in seen]
    return all(map(are_counts, numbers)) and all(isinstance(one["point"], str) for one in seen)


def lasting(path: Path) -> object:
    keep_last(path, 1)
    return Recordings(path).forgotten


def forgotten(path: Path) -> object:
    forget_after(path, 0)
    return Recordings(path).lines


def is_truth(truth: Any) -> bool:
    if truth is None:
        return True
    count = len(truth.samples)
    full = truth.labels.dtype == torch.int64 and truth.indices.dtype == torch.int64
    return full and len(truth.labels) == count == len(truth.indices) and bool(torch.isfinite(truth.samples).all())


@pytest.fixture(scope="module")
def readers(finished_run: Path, scratch: Path) -> dict[str, Reader]:
    folder = Folder.of(scratch / "kept", finished_run / "observations")
    tensors = {n: broken(changed_tensors) for n in folder.files if n.endswith("safetensors")}
    relined = either(broken(changed_lines), resealed)
    manifest: dict[str, Change] = {"manifest.jsonl": relined, "manifest.head": missummed(changed_json)}
    received, gradient = {"a.weight": torch.ones(2, 3).numpy()}, {"a.weight": torch.zeros(2, 3)}
    for server_round in (0, 1):
        config = {"round": server_round, "own_slot": 0, "control": "target", "slot": 0}
        record_gradient(scratch / "made-examples", 1, config, received, gradient)
    examples = Folder.of(scratch / "examples", scratch / "made-examples")
    truths = Folder.of(scratch / "truths", finished_run / "truth")
    key = Path(next(iter(truths.files))).stem
    # The removal is meant to remove what is damaged, and says nothing of it.
    removed: dict[str, Change] = {"manifest.jsonl": either(unsealed(changed_lines), resealed)}
    return {
        "tensors": Reader(folder, tensors, everything, are_seen),
        "manifest": Reader(folder, manifest, everything, are_seen),
        "removal": Reader(folder, removed, lasting, are_counts),
        "own examples": Reader(examples, {"client-001/manifest.jsonl": relined}, forgotten),
        "truth": Reader(
            truths, {f"{key}.safetensors": unsealed(changed_tensors)}, lambda place: read_truth(place, key), is_truth
        ),
    }


@pytest.mark.parametrize("name", ["tensors", "manifest", "removal", "own examples", "truth"])
@given(data=st.data())
def test_a_changed_recording_is_noticed_or_valid(data: DataObject, readers: dict[str, Reader], name: str) -> None:
    readers[name].require_refused_or_valid(data)


@given(data=st.data())
def test_another_number_in_a_line_of_a_manifest_is_noticed(data: DataObject, readers: dict[str, Reader]) -> None:
    """The line's seal is left as it was, and the line describes another exchange that there might be."""
    reader = readers["manifest"]
    lines = reader.folder.files["manifest.jsonl"].splitlines()
    at = data.draw(st.integers(1, len(lines) - 1))
    row = json.loads(lines[at])
    key = data.draw(st.sampled_from([key for key, value in row.items() if type(value) is int and key != "line"]))
    row[key] += data.draw(st.integers(1, 3))
    lines[at] = json.dumps(row).encode()
    files = {"manifest.jsonl": b"".join(line + b"\n" for line in lines)}
    require_refused_or_valid(
        lambda: everything(reader.folder.lay(files)), reader.folder.path, intact=reader.intact, breaks_a_seal=True
    )
