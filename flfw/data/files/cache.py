"""Cache of pixels and splits below the user's cache folder: one process computes them, the others read them."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from flfw.errors import InputError
from flfw.files.typed import read_json

T = TypeVar("T")

_FORMAT = 3  # version of the cached files; raise it when their meaning changes


def user_cache() -> Path:
    """Return ``$XDG_CACHE_HOME/flfw``, by default ``~/.cache/flfw``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flfw"


def digest(*parts: object) -> str:
    """Return a hash of ``parts`` (bytes, or objects that their ``repr`` identifies) as 16 hexadecimal digits."""
    total = hashlib.blake2b(repr(_FORMAT).encode(), digest_size=8)
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        total.update(len(content).to_bytes(8, "little") + content)
    return total.hexdigest()


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a digest of the paths, sizes and times of files, folders and the folders below them; no file is read."""
    stats = [(str(place.absolute()), place.stat()) for path in paths for place in (path, *_below(path))]
    return digest(*((place, stat.st_size, stat.st_mtime_ns) for place, stat in stats))


def _below(path: Path) -> list[Path]:
    """Return the folders below a folder; the time of each changes when files are added or removed in it."""
    return sorted(Path(inside) for inside, _, _ in os.walk(path) if inside != str(path)) if path.is_dir() else []


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Let ``write(path)`` make a file or folder and move it to ``target`` as a whole; the first process wins.

    Only the user can read it: it may hold a site's private images.

    Raises:
        InputError: the cache folder cannot be written.
    """
    try:
        user_cache().mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(PermissionError):  # of another user, who shares it
            user_cache().chmod(0o700)  # earlier versions made it readable, with all that lies in it
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-")
    except OSError as error:
        raise InputError(
            f"Expected a cache folder that can be written, got {target.parent} ({error.strerror}); "
            "set XDG_CACHE_HOME to one."
        ) from error
    with scratch as folder:
        made = Path(folder) / target.name
        try:
            write(made)
            for path in [*made.rglob("*"), made]:
                path.chmod(0o700 if path.is_dir() else 0o600)
        except OSError as error:
            raise InputError(
                f"Expected room for {target.name} in {target.parent}, got {type(error).__name__}: {error}; "
                "free some or set XDG_CACHE_HOME to another folder."
            ) from error
        try:
            made.replace(target)
        except OSError:
            # A folder does not replace a full one: another process has published the same meanwhile.
            if not target.exists():
                raise


def write_arrays(folder: Path, arrays: dict[str, np.ndarray], meta: dict[str, object]) -> None:
    """Write ``folder/NAME.npy`` for each array, and ``folder/meta.json``."""
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def read_arrays(folder: Path, names: Sequence[str]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return the arrays ``names``, mapped read-only, and the content of ``meta.json``.

    Raises:
        InputError: a file is damaged.
    """
    arrays = [read_damaged(folder, partial(np.load, folder / f"{name}.npy", mmap_mode="r")) for name in names]
    return arrays, read_json(folder / "meta.json", dict[str, Any], _again(folder))


def read_damaged(path: Path, read: Callable[[], T]) -> T:
    """Return the result of a function that reads in this cache.

    Raises:
        InputError: the files are damaged.
    """
    try:
        return read()
    except Exception as error:  # a damaged file can make NumPy's reader raise anything
        raise InputError(
            f"Expected {path} as it was written, got {type(error).__name__}: {error}; {_again(path)}."
        ) from error


def _again(path: Path) -> str:
    return f"remove {path}, and it is made again"
