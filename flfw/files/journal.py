"""Journals: rows on disk that grow with a run and can be cut back to the mark of a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, TypedDict

from flfw.errors import InputError
from flfw.files.typed import from_json


class JournalMark(TypedDict):
    """Mark in a journal.

    Attributes:
        bytes: length of what stands before it, >= 0.
        sha256: SHA-256 of that.
    """

    bytes: int
    sha256: str


class Journal:
    """File of JSON lines to which rows are only appended.

    Args:
        path: path of the file.
        mark: mark from which to continue: later rows are cut off. None: a new file.

    Raises:
        InputError: the content before the mark has changed.
    """

    def __init__(self, path: Path, mark: JournalMark | None = None) -> None:
        self._path, self._length = path, 0 if mark is None else max(0, mark["bytes"])
        try:
            kept = path.read_bytes()[: self._length] if self._length and path.exists() else b""
        except OSError as error:
            raise InputError(f"Expected {path}, got none that can be read ({error.strerror}); restore it.") from error
        self._digest = hashlib.sha256(kept)
        if mark is not None and (len(kept) != self._length or self._digest.hexdigest() != mark["sha256"]):
            raise InputError(f"Expected {path} as the checkpoint left it, got another one: it is damaged; restore it.")
        self.rows: list[dict[str, Any]] = [from_json(line, dict[str, Any], path) for line in kept.split(b"\n") if line]
        if path.exists():
            os.truncate(path, self._length)

    @property
    def mark(self) -> JournalMark:
        """Present end of the journal, for a checkpoint."""
        return {"bytes": self._length, "sha256": self._digest.hexdigest()}

    def append(self, row: dict[str, Any]) -> None:
        """Append a row and force it to disk; `rows` does not get it."""
        data = json.dumps(row).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(data)
        self._length += len(data)
