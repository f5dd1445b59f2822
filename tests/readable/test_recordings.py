"""Recordings of another app, of today: read by the call that docs/recording.md documents, or refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flfw.attacks.analytic import Analytic
from flfw.audit.measures.public import PublicData
from flfw.errors import InputError
from flfw.recorded_apps import audit
from flfw.recording.observation import Truth
from tests.readable import own_app
from tests.readable.outside import copied, require_one_line

FOLDER = "recordings"


def audited(recordings: Path, out: Path) -> dict[str, Any]:
    """The result of the audit of docs/recording.md."""
    audit(
        str(recordings),
        own_app.build,
        attacks={"analytic": Analytic()},
        truth=lambda client: Truth(
            own_app.images[[client - 1]], own_app.labels[[client - 1]], torch.tensor([client - 1])
        ),
        public=PublicData.from_arrays(own_app.images[2:].numpy(), own_app.labels[2:].numpy()),
        inputs=((1, 8, 8), (0.5,), (0.5,)),
        name="linear",
        dataset="random images",
        lr=0.1,
        out=str(out),
    )
    return json.loads((out / "result.json").read_text())


def require_both(result: dict[str, Any]) -> None:
    """Both clients' images come out of the recorded updates."""
    (entry,) = result["audit"]
    assert (entry["verdict"], entry["images"], entry["share_recovered"]) == ("leaks", 2, 1.0)
    assert entry["psnr"]["mean"] > 60


def test_recordings_of_today_are_attacked(tmp_path: Path) -> None:
    result = audited(copied(FOLDER, tmp_path / "recordings"), tmp_path / "out")
    require_both(result)
    assert [control["passed"] for control in result["audit"][0]["ladder"]] == [True, True, True]


def manifest(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_recordings_without_seals_are_read(tmp_path: Path) -> None:
    """As versions before this one wrote them."""
    folder = copied(FOLDER, tmp_path / "recordings")
    write(folder, [{key: row[key] for key in row if key not in ("line", "seal")} for row in manifest(folder)])
    (folder / "manifest.head").unlink()
    require_both(audited(folder, tmp_path / "out"))


def header(folder: Path, format_: object) -> None:
    first, *rest = manifest(folder)
    write(folder, [{**first, "format": format_}, *rest])


@pytest.mark.parametrize("format_", [99, "two", None])
def test_recordings_in_another_format_are_refused(tmp_path: Path, format_: object) -> None:
    folder = copied(FOLDER, tmp_path / "recordings")
    header(folder, format_)
    with pytest.raises(InputError) as refused:
        audited(folder, tmp_path / "out")
    require_one_line(str(refused.value), "Expected recordings in format 1", "record them anew")
    assert not (tmp_path / "out").exists()


def test_no_manifest_is_refused(tmp_path: Path) -> None:
    folder = copied(FOLDER, tmp_path / "recordings")
    (folder / "manifest.jsonl").unlink()
    with pytest.raises(InputError) as refused:
        audited(folder, tmp_path / "out")
    require_one_line(str(refused.value), "manifest.jsonl")


def test_a_changed_update_is_left_out_by_name(tmp_path: Path) -> None:
    """The other client's is attacked; this one counts as a failure."""
    folder = copied(FOLDER, tmp_path / "recordings")
    changed = sorted(folder.glob("round-0001/*.safetensors"))[0]
    changed.write_bytes(changed.read_bytes()[:-4] + b"1234")
    result = audited(folder, tmp_path / "out")
    (entry,) = result["audit"]
    assert (entry["failures"], entry["share_recovered"]) == (1, 0.5)
    assert [changed.name in line for line in result["recordings"]["refused"]] == [True]
