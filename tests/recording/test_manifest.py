"""Manifests: each line is sealed, and what was changed, moved, repeated, added or cut off is left out and said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flfw.errors import BadInput
from flfw.recording import manifest
from flfw.recording.manifest import HEAD, read_manifest

Lines = list[bytes]
WRONG = "Line {} of manifest.jsonl was left out: it, or a line before it, is not as it was written."
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


def number_of(line: bytes, old: bytes, new: bytes) -> bytes:
    assert line.count(old) == 1
    return line.replace(old, new)


def test_what_was_written_is_read_and_has_no_seal_then(tmp_path: Path) -> None:
    written(tmp_path)
    assert read_manifest(tmp_path) == ([row(0), row(1), row(2)], [])
    seals = [json.loads(line)["seal"] for line in (tmp_path / "manifest.jsonl").read_text().splitlines()]
    assert len(set(seals)) == 4 and all(len(seal) == 64 for seal in seals)


def test_each_byte_of_each_line_is_sealed(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    for place, byte in enumerate(data):
        (tmp_path / "manifest.jsonl").write_bytes(data[:place] + bytes([byte ^ 1]) + data[place + 1 :])
        try:
            _, damaged = read_manifest(tmp_path)
        except BadInput:
            continue
        assert damaged, data[max(0, place - 20) : place + 20]


@pytest.mark.parametrize(
    ("change", "clients", "wrong"),
    [
        (lambda lines: lines.__setitem__(2, number_of(lines[2], b'"round": 1', b'"round": 2')), [0, 2], [3]),
        (lambda lines: lines.__setitem__(2, number_of(lines[2], b'"round": 1', b'"round":  1')), [0, 2], [3]),
        (lambda lines: lines.__delitem__(1), [2], [2]),
        (lambda lines: lines.insert(1, lines[1]), [0, 1, 2], [3]),
        (lambda lines: lines.insert(2, json.dumps(row(7)).encode() + b"\n"), [0, 1, 2], [3]),
        (lambda lines: lines.__setitem__(slice(1, 3), lines[2:0:-1]), [], [2, 3, 4]),
        (lambda lines: lines.__setitem__(0, json.dumps(HEADER).encode() + b"\n"), [1, 2], [2]),
    ],
    ids=["another round", "another space", "removed", "repeated", "added", "exchanged", "header without a seal"],
)
def test_a_line_that_does_not_fit_is_left_out_and_said(
    tmp_path: Path, change: Callable[[Lines], object], clients: list[int], wrong: list[int]
) -> None:
    left, damaged = changed(tmp_path, change)
    assert left == clients
    assert damaged[: len(wrong)] == [WRONG.format(number) for number in wrong]


@pytest.mark.parametrize("cut", [1, 2])
def test_lines_that_are_missing_at_the_end_are_said(tmp_path: Path, cut: int) -> None:
    left, damaged = changed(tmp_path, lambda lines: lines.__delitem__(slice(-cut, None)))
    assert left == [0, 1, 2][:-cut]
    assert damaged == ["manifest.jsonl is not as it was written: its line 4 is missing or another one."]


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


@pytest.mark.parametrize("content", [b"x", b'{"lines": "4", "seal": ""}'])
def test_a_damaged_head_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    written(tmp_path)
    (tmp_path / HEAD).write_bytes(content)
    with pytest.raises(BadInput, match=r"manifest\.head"):
        read_manifest(tmp_path)


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
