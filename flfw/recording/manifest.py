"""Manifest of a folder of recordings: its lines, the seal of each line, and what is left out when one does not fit.

The seal of a line is the SHA-256 of the seal before it and of the line's own bytes. So a line that was changed, moved
or repeated does not fit, nor does one before which a line is missing. ``manifest.head`` has the number of lines at the
last checkpoint and the seal of the last of them, so that lines missing at the end are noticed, too. This finds damage,
not malice: whoever may write the folder can make all seals fit. Older recordings, without seals, are read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

from flfw.errors import BadInput
from flfw.formats.typed import from_json
from flfw.recording.format import COMPRESSIONS, FORMAT, MANIFEST, Line
from flfw.storage.sealed import read_checked, write_checked, write_whole

HEAD = "manifest.head"
SIDES = ("sent_to_client", "sent_by_client")

_SEALED = re.compile(rb'(?P<content>\{.+), "seal": "(?P<seal>[0-9a-f]{64})"\}', re.DOTALL)
_AGAIN = "a whole number of lines and a seal; record them anew"


class _Head(TypedDict):
    """Content of the head."""

    lines: int
    seal: str


def sealed(row: Line, before: str = "") -> Line:
    """Return a row with its seal as last entry; ``before``: seal of the row before it, empty for the first."""
    content = {name: value for name, value in row.items() if name != "seal"}
    return {**content, "seal": _seal(json.dumps(content).encode()[:-1], before)}


def sealed_lines(rows: Iterable[Line]) -> bytes:
    """Return the content of a manifest with these rows, of which the first is the header."""
    before, lines = "", []
    for row in rows:
        line = sealed(row, before)
        before = line["seal"]
        lines.append(json.dumps(line).encode() + b"\n")
    return b"".join(lines)


def write_head(folder: Path, lines: int, seal: str) -> None:
    """Note how many lines the manifest has now, and the last one's seal."""
    write_checked(folder / HEAD, json.dumps({"lines": lines, "seal": seal}).encode())


def rewrite(folder: Path, rows: Sequence[Line]) -> None:
    """Replace the manifest of a folder in which nobody records; the first row is the header."""
    data = sealed_lines(rows)
    (folder / HEAD).unlink(missing_ok=True)  # a kill leaves a manifest without a head, and never one with another's
    write_whole(folder / MANIFEST, data, 0o600)
    write_head(folder, len(rows), json.loads(data.splitlines()[-1])["seal"])


def _seal(content: bytes, before: str) -> str:
    return hashlib.sha256(before.encode() + b"\n" + content).hexdigest()


def read_manifest(folder: Path) -> tuple[list[Line], list[str]]:
    """Read the rows of a manifest after its header, without their seals; return also a sentence for each damage.

    Raises:
        BadInput: there is none, or it is in another format.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise BadInput(f"Expected recordings in {folder}, found no {MANIFEST}; run with --attack.")
    head = _head(folder)  # first, since the manifest may grow meanwhile
    try:
        header, *lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadInput(f"Expected recordings in {path}, got a file that cannot be read ({error.strerror}).") from error
    first = _parsed(header) or {}
    if first.get("format") != FORMAT:
        written = first.get("format", "an older one or none")
        raise BadInput(f"Expected recordings in format {FORMAT}, got {written} in {path}; record them anew.")
    rows, damaged, seals = [], [], []
    for number, (line, seal, fits) in enumerate(_checked([header, *lines]), start=1):
        seals.append(seal)
        row = _parsed(line)
        if number == len(lines) + 1 and line:  # all complete lines end with a line break
            damaged.append(f"Line {number} of {MANIFEST} was left out: it was cut short, or is being written.")
        elif line and not fits:
            damaged.append(
                f"Line {number} of {MANIFEST} was left out: it, or a line before it, is not as it was written."
            )
        elif number > 1 and row is not None and (is_exchange(row) or "skipped" in row or _forgotten(row)):
            rows.append({name: value for name, value in row.items() if name != "seal"})
        elif number > 1 and line:
            damaged.append(f"Line {number} of {MANIFEST} was left out: it describes no exchange.")
    if head is not None and seals[head["lines"] - 1 : head["lines"]] != [head["seal"]]:
        damaged.append(f"{MANIFEST} is not as it was written: its line {head['lines']} is missing or another one.")
    return rows, damaged


def _checked(lines: Sequence[bytes]) -> Iterator[tuple[bytes, str, bool]]:
    """Yield each line with its seal, and whether this fits; a line without one fits if the header has none, either."""
    before, all_sealed = "", _SEALED.fullmatch(lines[0]) is not None
    for line in lines:
        match = _SEALED.fullmatch(line)
        if match is None:
            yield line, "", not all_sealed
        else:
            seal = match["seal"].decode()
            yield line, seal, seal == _seal(match["content"], before)
            before = seal


def _head(folder: Path) -> _Head | None:
    try:
        return from_json(read_checked(folder / HEAD), _Head, folder / HEAD, _AGAIN)
    except FileNotFoundError:
        return None


def is_exchange(row: Line) -> bool:
    """Return whether a row of a manifest has all fields that reading an exchange needs, in the right types."""
    numbers = [row.get("round"), row.get("client"), *(_entry(row, side).get("bytes") for side in SIDES)]
    words = [row.get("type"), *(_entry(row, side).get(key) for side in SIDES for key in ("file", "sha256"))]
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and all(isinstance(word, str) for word in words)
        and isinstance(row.get("config"), dict)
        and row.get("compression") in COMPRESSIONS
    )


def forgotten(rows: Sequence[Line]) -> list[int]:
    """Return the rounds whose recordings were removed, ascending."""
    return sorted({number for row in rows for number in _forgotten(row)})


def _forgotten(row: Line) -> list[int]:
    entry = row.get("forgotten")
    rounds = entry.get("rounds") if isinstance(entry, dict) else None
    return [number for number in rounds if type(number) is int] if isinstance(rounds, list) else []


def _entry(row: Line, side: str) -> dict[str, Any]:
    entry = row.get(side)
    return entry if isinstance(entry, dict) else {}


def _parsed(line: bytes) -> Line | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
