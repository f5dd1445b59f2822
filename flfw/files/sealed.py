"""Files that are complete or absent and cannot change unnoticed, and journals, which can be cut back to a mark.

A sealed file has its SHA-256 in its name.
"""

import ctypes
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, TypedDict

from flfw.errors import InputError
from flfw.files.typed import from_json, readable

_NAME = re.compile(r"(?P<stem>.+)-(?P<digest>[0-9a-f]{64})(?P<suffix>\.\w+)")


def write_atomic(path: Path, data: bytes, mode: int = 0o666, *, force: bool = True) -> None:
    """Write a file in one step, and force it to disk: a kill or a power cut leaves the old file or none.

    Args:
        path: path of the file.
        data: content of the file.
        mode: permissions, which the umask reduces.
        force: False: a power cut may damage the new file until `force_all` has returned.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
        if force:
            file.flush()
            os.fsync(file.fileno())
    part.replace(path)
    if not force:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the entry in the folder, too
    finally:
        os.close(folder)


def force_all(folder: Path) -> None:
    """Force everything that was written to a folder's file system to disk, in one step.

    Raises:
        OSError: it could not be written.
    """
    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "syncfs"):  # on systems other than Linux
        os.sync()
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        if system.syncfs(place):
            raise OSError(number := ctypes.get_errno(), os.strerror(number), str(folder))
    finally:
        os.close(place)


def drop_unfinished(folder: Path) -> None:
    """Remove the incomplete files of killed processes; no other process may be writing to the folder."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def seal(folder: Path, stem: str, suffix: str, data: bytes, *, force: bool = True) -> Path:
    """Write ``data`` into ``folder`` as ``STEM-SHA256SUFFIX``, readable by its owner only; return the path.

    See `write_atomic` for ``force``.
    """
    path = folder / f"{stem}-{hashlib.sha256(data).hexdigest()}{suffix}"
    write_atomic(path, data, 0o600, force=force)
    return path


def sealed(folder: Path, stem: str = "*") -> list[tuple[str, Path]]:
    """List the sealed files of a folder whose stems match a pattern, as (stem, path), ordered by stem."""
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.glob(f"{stem}-*")]
    return sorted((match["stem"], path) for match, path in matches if match)


def unseal(path: Path) -> bytes:
    """Read a sealed file.

    Raises:
        InputError: the content does not match the SHA-256 in the name, or cannot be read.
    """
    match = _NAME.fullmatch(path.name)
    expected = match["digest"] if match else "in its name"
    with readable(path):
        data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected:
        raise InputError(
            f"Expected SHA-256 {expected[:16]}... of {path}, got {digest[:16]}...: it is damaged; restore it."
        )
    return data


def write_checked(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file whose last line is the SHA-256 of the lines before it; see `write_atomic`."""
    write_atomic(path, with_checksum(data), mode)


def with_checksum(data: bytes) -> bytes:
    """Return the content of a file of `write_checked`."""
    return data + b"\n" + hashlib.sha256(data).hexdigest().encode()


def read_checked(path: Path) -> bytes:
    """Read a file of `write_checked`.

    Raises:
        InputError: its content does not match its last line, or cannot be read.
        FileNotFoundError: there is none.
    """
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"Expected {path}, got none that can be read ({error.strerror}); remove it.") from error
    data = whole.rpartition(b"\n")[0]
    if with_checksum(data) != whole:
        raise InputError(f"Expected {path} as it was written, got other content: it is damaged; remove or restore it.")
    return data


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
        with readable(path):
            kept = path.read_bytes()[: self._length] if self._length and path.exists() else b""
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
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(data)
        self._length += len(data)
