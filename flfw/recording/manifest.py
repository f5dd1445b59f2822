"""Manifest of a folder of recordings: its lines, the seal of each line, and what is left out when one does not fit.

Each line has its number, and a SHA-256 of the line as its seal. So a line that was changed does not fit, and lines that
are missing, repeated or moved are noticed by their numbers. ``manifest.head`` has the number of lines after the last
round, so that lines missing at the end are noticed, too. This finds damage, not malice: whoever may write the folder
can make all seals fit. Older recordings, without seals, are read.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from flfw.errors import InputError
from flfw.files.earlier_names import probe_of_today
from flfw.files.sealed import read_checked, write_atomic, write_checked
from flfw.files.typed import from_json
from flfw.recording.format import COMPRESSIONS, FORMAT, MANIFEST, Line

HEAD = "manifest.head"
SIDES = ("sent_to_client", "sent_by_client")

_TRIES = 5  # to read a head and its manifest; a run at work replaces the head after each round
_OWN = ("line", "seal")  # what a line has beside its row
_SEALED = re.compile(rb'(?P<content>\{.+), "seal": "(?P<seal>[0-9a-f]{64})"\}', re.DOTALL)


class _LineCount(TypedDict):
    """Content of the head."""

    lines: int


def sealed(row: Line, number: int) -> Line:
    """Return a row with its number, >= 1, and its seal as last entries."""
    content = {name: value for name, value in row.items() if name not in _OWN} | {"line": number}
    return {**content, "seal": _seal(json.dumps(content).encode()[:-1])}


def write_head(folder: Path, lines: int) -> None:
    """Note how many lines the manifest has now."""
    write_checked(folder / HEAD, json.dumps({"lines": lines}).encode())


def rewrite(folder: Path, rows: Sequence[Line]) -> None:
    """Replace the manifest of a folder in which nobody records; the first row is the header."""
    lines = [json.dumps(sealed(row, number)).encode() + b"\n" for number, row in enumerate(rows, start=1)]
    (folder / HEAD).unlink(missing_ok=True)  # a kill leaves a manifest without a head, and never one with another's
    write_atomic(folder / MANIFEST, b"".join(lines), 0o600)
    write_head(folder, len(rows))


def _seal(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_manifest(folder: Path) -> tuple[list[Line], list[str]]:
    """Read the rows of a manifest after its header, without their seals; return also a sentence for each damage.

    Raises:
        InputError: there is none, or it is in another format.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"Expected recordings in {folder}, found no {MANIFEST}; run with --attack.")
    try:
        counted, data = _whole(folder)
    except OSError as error:
        raise InputError(f"Expected recordings in {path}, got one that cannot be read ({error.strerror}).") from error
    *lines, rest = data.split(b"\n")
    first = (_parsed(lines[0] if lines else rest)) or {}
    if first.get("format") != FORMAT:
        written = first.get("format", "an older one or none")
        raise InputError(f"Expected recordings in format {FORMAT}, got {written} in {path}; record them anew.")
    rows, damaged, numbered = _rows(lines, "seal" in first)
    if rest:
        number = len(lines) + 1
        damaged.append(f"Line {number} of {MANIFEST} was left out: it was cut short, or is being written.")
    elif isinstance(counted, int) and counted > numbered:
        damaged.append(f"{MANIFEST} is not as it was written: {counted - numbered} at the end are missing.")
    if isinstance(counted, str):
        damaged.append(counted)
    return rows, damaged


def _whole(folder: Path) -> tuple[int | str | None, bytes]:
    """Return the head's number of lines, a sentence on its damage or None, and a manifest that belongs to it.

    The manifest may grow meanwhile, which does no harm; or it is replaced, and then the head is, too.
    """
    before, data, tries = _head(folder), (folder / MANIFEST).read_bytes(), 1
    while (after := _head(folder)) != before and tries < _TRIES:
        before, data, tries = after, (folder / MANIFEST).read_bytes(), tries + 1
    return before, data


def _head(folder: Path) -> int | str | None:
    try:
        return from_json(read_checked(folder / HEAD), _LineCount, folder / HEAD)["lines"]
    except FileNotFoundError:
        return None
    except InputError:
        return f"{HEAD} is not as it was written: whether lines are missing at the end is not known."


def _rows(lines: Sequence[bytes], all_sealed: bool) -> tuple[list[Line], list[str], int]:
    """Return the rows after the header, a sentence for each damage, and the number that the last line should have."""
    rows: list[Line] = []
    damaged: list[str] = []
    last = loose = 0  # number of the last line that fits, and how many since then do not
    for index, line in enumerate(lines, start=1):
        row, number, left_out = _parsed(line), _number(line), f"Line {index} of {MANIFEST} was left out: "
        if number is None and (all_sealed or _SEALED.fullmatch(line)):
            damaged.append(left_out + "it is not as it was written.")
            loose += 1
            continue
        if number is not None and number <= last:
            damaged.append(left_out + "it is there twice, or not in its place.")
            continue
        if number is not None:
            if (missing := number - last - 1 - loose) > 0:
                damaged.append(f"Of {MANIFEST} {missing} before line {index} are missing.")
            last, loose = number, 0
        if index == 1:
            continue
        if row is not None and (is_exchange(row) or "skipped" in row or _forgotten(row)):
            damaged += _earlier(row)
            kept = {name: value for name, value in row.items() if name not in _OWN}
            rows.append(kept | {"config": probe_of_today(row["config"])} if is_exchange(row) else kept)
        elif line:
            damaged.append(left_out + "it describes no exchange.")
    return rows, damaged, last + loose


def _number(line: bytes) -> int | None:
    """Return the number of a line; None: it has no seal, or one that does not fit."""
    match = _SEALED.fullmatch(line)
    if match is None or match["seal"].decode() != _seal(match["content"]):
        return None
    number = (_parsed(line) or {}).get("line")
    return number if type(number) is int else None


def _earlier(row: Line) -> list[str]:
    """Return the damages that were noted when recordings were removed and the lines were numbered anew."""
    noted = row.get("damaged")
    return [str(sentence) for sentence in noted] if isinstance(noted, list) else []


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
