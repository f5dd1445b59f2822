"""Chain: a file of JSON lines that only grows, and in which no line can be changed or removed unnoticed.

Each line holds the SHA-256 of the line before it. A second file, the head, holds the number of lines and the last one's
SHA-256, so that lines missing at the end are noticed, too. It is written before the first line and after each. So
no lines count as none only where the head says so, or where there are neither lines nor a head. A killed process leaves
one of four states, and none loses a line that `Held.append` returned from:

    a head of no lines, and nothing else       there are none yet
    a part of a line, and a head without it    the append never returned: the part is cut off
    a whole line, and a head without it        the line counts, and the head is written
    a whole line, and a head with it           the line counts

Whoever may write both files can forge both, or bring back old copies of both. That both are gone is noticed where a
third file was left beside their folder.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from flfw.errors import InputError
from flfw.files.sealed import write_atomic
from flfw.files.typed import from_json, read_json, readable

_BEFORE = "before"  # key of the SHA-256 of the line before
_FIRST = "0" * 64
_NO_FILE = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


@final
@dataclass(frozen=True)
class _Head:
    """Content of the head: a further field, as of a later version, is refused."""

    lines: int
    sha256: str


@final
class Held:
    """Lines of a chain while it is locked.

    Args:
        descriptor: of the file of lines.
        head: path of the head.
        lines: the complete lines as bytes, without their ends.

    Attributes:
        rows: the content of the lines.
    """

    def __init__(self, descriptor: int, head: Path, lines: list[bytes]) -> None:
        self._descriptor, self._head = descriptor, head
        self._last = _digest(lines)
        self.rows: list[dict[str, Any]] = _rows(lines, head)

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a line; when this returns, the line is on disk."""
        line = json.dumps({_BEFORE: self._last, **row}, allow_nan=False).encode()
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        os.fsync(self._descriptor)
        self._last = _digest([line])
        self.rows.append(json.loads(line))
        _seal(self._head, len(self.rows), self._last)


@final
class Chain:
    """File of chained lines.

    Args:
        path: path of the file; its folder need not exist.
        noted: whether a file beside its folder, ``ledger.messages.begun``, says from the first use on that there is a
            chain: then one of which nothing is left is refused.
    """

    def __init__(self, path: Path, *, noted: bool = False) -> None:
        self._path, self._head = path, path.with_suffix(".head")
        self._begun = path.parent.with_name(f"{path.parent.name}.{path.stem}.begun") if noted else None

    @contextmanager
    def held(self) -> Iterator[Held]:
        """Hold the chain against other processes; make it if there is none, and check it.

        Raises:
            InputError: a line was changed or removed.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._begin()
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except _NO_FILE as error:
            raise self._unreadable(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # released when the descriptor is closed, also by a kill
            lines, whole, sealed = self._checked(self._path.read_bytes())
            os.ftruncate(descriptor, whole)
            if sealed < len(lines):
                _seal(self._head, len(lines), _digest(lines))
            yield Held(descriptor, self._head, lines)
        finally:
            os.close(descriptor)

    def rows(self) -> list[dict[str, Any]]:
        """Return the content of the lines; nothing is locked, made or repaired.

        Raises:
            InputError: a line was changed or removed.
        """
        with readable(self._path):
            if self._is_new():
                return []
            data = self._path.read_bytes() if os.path.lexists(self._path) else b""
        return _rows(self._checked(data)[0], self._path)

    def _is_new(self) -> bool:
        """Return whether neither file is there; a link to nowhere is not new, as that of a disk that is not mounted.

        Raises:
            InputError: neither is, but there was a chain.
        """
        folder = self._path.parent
        try:
            names = {one.name for one in folder.iterdir()}
        except FileNotFoundError:
            if os.path.lexists(folder):
                raise
            names = set()
        if {self._path.name, self._head.name} & names:
            return False
        if self._begun and os.path.lexists(self._begun):
            way = f"it is lost; restore it, or remove {self._begun} to count from nothing"
            raise InputError(f"Expected {self._path}, which was begun, got neither it nor {self._head.name}: {way}.")
        return True

    def _begin(self) -> None:
        """Write the head of a new chain, and note it; processes that do so at once wait for each other."""
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self._is_new():
                _seal(self._head, 0, _FIRST)
            if self._begun and not self._begun.exists():
                write_atomic(self._begun, b"While this file is here, a ledger that is gone is refused.\n", 0o600)
        finally:
            os.close(descriptor)

    def _checked(self, data: bytes) -> tuple[list[bytes], int, int]:
        """Return the complete lines, their number of bytes with their ends, and the number of lines in the head."""
        *lines, part = data.split(b"\n")
        for index, line in enumerate(lines):
            follows = _link(line) == _digest(lines[index - 1 : index])
            self._require(follows, f"line {index + 1}, which does not follow the line before")
        count, digest = self._sealed()
        # Earlier versions wrote the head after the first line alone.
        self._require(bool(lines) or self._head.exists(), f"no {self._head.name} beside it, and no line in it")
        self._require(count <= len(lines) <= count + 1, f"{len(lines)} lines, where the head has {count}")
        self._require(_digest(lines[:count]) == digest, f"another line {count} than the head has")
        return lines, len(data) - len(part), count

    def _sealed(self) -> tuple[int, str]:
        """Return number and last SHA-256 of the lines, by the head."""
        if not self._head.exists():
            return 0, _FIRST
        head = read_json(self._head, _Head, "it is damaged; restore it")
        self._require(head.lines >= 0, f"{head.lines} lines in {self._head.name}")
        return head.lines, head.sha256

    def _unreadable(self, error: OSError) -> InputError:
        return InputError(f"Expected {self._path}, got none that can be read ({error.strerror}); restore it.")

    def _require(self, holds: bool, got: str) -> None:
        if not holds:
            raise InputError(f"Expected {self._path} as it was written, got {got}: it is damaged; restore it.")


def _rows(lines: Sequence[bytes], path: Path) -> list[dict[str, Any]]:
    return [from_json(line, dict[str, Any], path) for line in lines]


def _digest(lines: Sequence[bytes]) -> str:
    """Return the SHA-256 of the last of these lines."""
    return hashlib.sha256(lines[-1]).hexdigest() if lines else _FIRST


def _seal(head: Path, count: int, digest: str) -> None:
    write_atomic(head, json.dumps({"lines": count, "sha256": digest}).encode(), 0o600)


def _link(line: bytes) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(row.get(_BEFORE, "")) if isinstance(row, dict) else ""
