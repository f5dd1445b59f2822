"""Checks of run folders by file names alone, and paths and sizes as people write them; nothing large is imported."""

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from flfw.errors import InputError
from flfw.files.sealed import sealed


def in_units(size: float) -> str:
    """Format a number of bytes with a unit.

    >>> in_units(999), in_units(1_234_567_890)
    ('999 bytes', '1.2 GB')
    """
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def require_new(out: Path) -> None:
    """Refuse a folder for a run that is there already.

    Raises:
        InputError: it exists.
    """
    if out.exists():
        raise InputError(f"Expected a new folder for --out, got {out}, which exists; choose another, or --resume it.")


def unused(out: Path) -> Path:
    """Return the path of a folder, or where there is one already, as of a run of the same second, one with a number."""
    paths = (out if number == 1 else out.with_name(f"{out.name}-{number}") for number in count(1))
    return next(path for path in paths if not path.exists())


@contextmanager
def claimed(out: Path) -> Iterator[Path]:
    """Make a new folder, with a number where there is one already, which no other process can take; yield its path.

    Where it is still empty at an error, it is removed, with the folders above it that were made for it.
    """
    missing = [folder for folder in out.parents if not folder.exists()]
    while True:
        with suppress(FileExistsError):
            (folder := unused(out)).mkdir(parents=True)
            break
    try:
        yield folder
    except BaseException:
        for made in (folder, *missing):
            with suppress(OSError):  # it holds something
                made.rmdir()
        raise


def make_folder(out: Path) -> None:
    """Make the folder of a run.

    Raises:
        InputError: it cannot be made.
    """
    missing = [folder for folder in (out, *out.parents) if not os.path.lexists(folder)]
    try:
        out.mkdir(parents=True)
    except OSError as error:
        for folder in missing:  # those that were made before it failed
            with suppress(OSError):
                folder.rmdir()
        raise InputError(f"Expected a folder that can be made for --out, got {out} ({error.strerror}).") from error


def require_folder(out: Path) -> None:
    """Refuse a folder that a run could not make; nothing of it stays.

    Raises:
        InputError: it cannot be made.
    """
    missing = [folder for folder in (out, *out.parents) if not os.path.lexists(folder)]
    make_folder(out)
    for folder in missing:
        with suppress(OSError):  # another process may have put something there meanwhile
            folder.rmdir()


def stored_at(folder: Path) -> Path:
    """Return the file with the experiment with which the run in a folder was started.

    Raises:
        InputError: there is no folder, or no checkpoint in it.
    """
    if not folder.exists():
        raise InputError(f"Expected a run's folder, got {folder}, which does not exist.")
    files = sealed(folder / "checkpoint", "experiment")
    if not files:
        left = {"rounds.csv": "which was purged;", "result.json": "an audit; name its run, or"}
        got = next((f", {words}" for name, words in left.items() if (folder / name).is_file()), " without;")
        raise InputError(f"Expected a run with a checkpoint, got {folder}{got} start it anew.")
    return files[-1][1]


def require_over(folder: Path) -> None:
    """Refuse a folder without the result of a run that is over.

    Raises:
        InputError: there is none.
    """
    if not (folder / "result.json").is_file():
        raise InputError(f"Expected a run that is over, got {folder} without result.json; finish it or remove it.")


def require_several(folders: Sequence[Path]) -> None:
    """Refuse to compare fewer than two folders, or one with itself.

    Raises:
        InputError: see above.
    """
    if len(folders) < 2:
        raise InputError(f"Expected two or more run folders to compare, got {' '.join(map(str, folders)) or 'none'}.")
    twice = [str(folder) for folder, times in Counter(path.resolve() for path in folders).items() if times > 1]
    if twice:
        raise InputError(f"Expected different run folders to compare, got {', '.join(twice)} twice.")


def require_finished(folder: Path) -> None:
    """Refuse a folder without a result to read.

    Raises:
        InputError: there is none.
    """
    if not (folder / "result.json").is_file():
        raise InputError(f"Expected a finished run with result.json, got {folder} without; resume it or name another.")


T = TypeVar("T")


def from_home(path: Path) -> Path:
    """Return a path with the home folder in place of a leading ``~``; ``~name`` stays, as it may be a folder's name.

    >>> from_home(Path("~/runs")) == Path.home() / "runs", str(from_home(Path("~old/~")))
    (True, '~old/~')
    """
    return path.expanduser() if path.parts[:1] == ("~",) else path


def with_paths_from_home(record: T) -> T:
    """Return a dataclass with `from_home` of each path, and of each path in a tuple, among its own fields."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if isinstance(value, Path):
            changed[field.name] = from_home(value)
        elif isinstance(value, tuple):
            changed[field.name] = tuple(from_home(one) if isinstance(one, Path) else one for one in value)
    return dataclasses.replace(record, **changed)  # type: ignore[type-var]
