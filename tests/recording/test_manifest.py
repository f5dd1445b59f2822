"""Manifests: each line is sealed, and what was changed, moved, repeated, added or cut off is left out and said."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.clientapp import ClientApp

from flfw.errors import InputError
from flfw.messages.inprocess import InProcessGrid
from flfw.recording import manifest
from flfw.recording.grid import RecordingGrid
from flfw.recording.manifest import HEAD, read_manifest
from flfw.recording.retention import keep_last

Lines = list[bytes]
WRONG = "Line {} of manifest.jsonl was left out: it is not as it was written."
ALL_WRONG = [WRONG.format(number) for number in (1, 2, 3, 4)]
TWICE = "Line {} of manifest.jsonl was left out: it is there twice, or not in its place."
MISSING = "Of manifest.jsonl {} before line {} are missing."
HEADER = {"format": 1, "flfw": "0"}


def row(client: int) -> dict[str, Any]:
    entry = {"file": f"round-0001/client-{client:03d}-000.safetensors", "sha256": "ab", "bytes": 3}
    sides = dict.fromkeys(manifest.SIDES, entry)
    return {"type": "train", "round": 1, "client": client, "config": {}, "compression": "none", **sides}


def written(folder: Path, clients: int = 3) -> Path:
    manifest.rewrite(folder, [HEADER, *map(row, range(clients))])
    return folder / "manifest.jsonl"


def changed(folder: Path, change: Callable[[Lines], object]) -> tuple[list[int], list[str]]:
    """The clients that are left, and what is said, after a change of the lines that leaves the seals as they are."""
    path = written(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    change(lines)
    path.write_bytes(b"".join(lines))
    rows, damaged = read_manifest(folder)
    return [one["client"] for one in rows], damaged


def replaced(lines: Lines, old: bytes, new: bytes) -> None:
    """Change the third line."""
    assert lines[2].count(old) == 1
    lines[2] = lines[2].replace(old, new)


def terse(line: bytes) -> bytes:
    """The same JSON in other bytes."""
    return json.dumps(json.loads(line), separators=(",", ":")).encode() + b"\n"


def test_what_was_written_is_read_and_has_no_seal_then(tmp_path: Path) -> None:
    written(tmp_path)
    assert read_manifest(tmp_path) == ([row(0), row(1), row(2)], [])
    seals = [json.loads(line)["seal"] for line in (tmp_path / "manifest.jsonl").read_text().splitlines()]
    assert len(set(seals)) == 4 and all(len(seal) == 64 for seal in seals)


@pytest.mark.slow
def test_each_byte_of_each_line_is_sealed(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    for index, byte in enumerate(data):
        (tmp_path / "manifest.jsonl").write_bytes(data[:index] + bytes([byte ^ 1]) + data[index + 1 :])
        try:
            _, damaged = read_manifest(tmp_path)
        except InputError:
            continue
        assert damaged, data[max(0, index - 20) : index + 20]


@pytest.mark.parametrize(
    ("change", "clients", "sentences"),
    [
        (lambda lines: replaced(lines, b'"round": 1', b'"round": 2'), [0, 2], [WRONG.format(3)]),
        (lambda lines: replaced(lines, b'"round": 1', b'"round":  1'), [0, 2], [WRONG.format(3)]),
        (lambda lines: lines.__setitem__(2, lines[2][: len(lines[2]) // 2] + b"\n"), [0, 2], [WRONG.format(3)]),
        (lambda lines: lines.__delitem__(1), [1, 2], [MISSING.format(1, 2)]),
        (lambda lines: lines.insert(1, lines[1]), [0, 1, 2], [TWICE.format(3)]),
        (lambda lines: lines.insert(2, json.dumps(row(7)).encode() + b"\n"), [0, 1, 2], [WRONG.format(3)]),
        (lambda lines: lines.__setitem__(slice(1, 3), lines[2:0:-1]), [1, 2], [MISSING.format(1, 2), TWICE.format(3)]),
        (lambda lines: lines.__setitem__(slice(None), map(terse, lines)), [], ALL_WRONG),
    ],
    ids=["another round", "another space", "cut", "removed", "repeated", "added", "exchanged", "written anew"],
)
def test_a_line_that_does_not_fit_is_left_out_and_said(
    tmp_path: Path, change: Callable[[Lines], object], clients: list[int], sentences: list[str]
) -> None:
    """And no other line is."""
    assert changed(tmp_path, change) == (clients, sentences)


@pytest.mark.parametrize("cut", [1, 2])
def test_lines_that_are_missing_at_the_end_are_said(tmp_path: Path, cut: int) -> None:
    left, damaged = changed(tmp_path, lambda lines: lines.__delitem__(slice(-cut, None)))
    assert left == [0, 1, 2][:-cut]
    assert damaged == [f"manifest.jsonl is not as it was written: {cut} at the end are missing."]


def test_lines_after_the_head_count(tmp_path: Path) -> None:
    """As beside a run at work, which writes the head at its checkpoints."""
    head = written(tmp_path, 1).with_name(HEAD).read_bytes()
    written(tmp_path, 3)
    (tmp_path / HEAD).write_bytes(head)
    assert [one["client"] for one in read_manifest(tmp_path)[0]] == [0, 1, 2] and read_manifest(tmp_path)[1] == []


def test_a_manifest_of_an_earlier_version_has_no_seals_and_is_read(tmp_path: Path) -> None:
    lines = [json.dumps(one) + "\n" for one in (HEADER, row(0), row(1))]
    (tmp_path / "manifest.jsonl").write_text("".join(lines))
    assert read_manifest(tmp_path) == ([row(0), row(1)], [])


@pytest.mark.parametrize("content", [b"x", b'{"lines": "4"}'])
def test_a_damaged_head_is_said_and_the_lines_are_read(tmp_path: Path, content: bytes) -> None:
    written(tmp_path)
    (tmp_path / HEAD).write_bytes(content)
    rows, damaged = read_manifest(tmp_path)
    assert rows == [row(0), row(1), row(2)]
    assert damaged == ["manifest.head is not as it was written: whether lines are missing at the end is not known."]


def test_a_manifest_that_is_replaced_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 3)
    head, requested = manifest._head, []

    def slow(folder: Path) -> object:
        before = head(folder)
        requested.append(before)
        if len(requested) == 1:  # between the head and the manifest
            manifest.rewrite(folder, [HEADER, row(0)])
        return before

    monkeypatch.setattr(manifest, "_head", slow)
    assert read_manifest(tmp_path) == ([row(0)], []) and requested == [4, 2, 2]


def test_what_was_damaged_stays_said_after_recordings_were_removed(tmp_path: Path) -> None:
    rows = [{**row(client), "round": client} for client in range(4)]
    manifest.rewrite(tmp_path, [HEADER, *rows])
    path = tmp_path / "manifest.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:40] + b"\n", *lines[3:]]))
    for kept in (2, 1):
        keep_last(tmp_path, kept)
        left, damaged = read_manifest(tmp_path)
        assert len(left) == 1 + kept and damaged == [WRONG.format(3)]


def test_a_refused_resume_leaves_the_alarm(tmp_path: Path) -> None:
    manifest.rewrite(tmp_path, [HEADER, row(0), row(1)])
    path = tmp_path / "manifest.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    mark = {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    with pytest.raises(InputError, match="it is damaged; restore it"):
        RecordingGrid(InProcessGrid(ClientApp(), 1, {}), tmp_path, resume_at=mark)
    assert read_manifest(tmp_path)[1] == ["manifest.jsonl is not as it was written: 1 at the end are missing."]


def test_a_kill_between_manifest_and_head_leaves_no_false_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest, "write_head", killed)
    with pytest.raises(KeyboardInterrupt):
        manifest.rewrite(tmp_path, [HEADER, row(5)])
    assert read_manifest(tmp_path) == ([row(5)], [])
