"""Checks of run folders by their files' names alone, which take no time and import nothing large."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from flfw.errors import BadInput
from flfw.storage.sealed import sealed


def require_new(out: Path) -> None:
    """Refuse a folder for a run that is there already.

    Raises:
        BadInput: it exists.
    """
    if out.exists():
        raise BadInput(f"Expected a new folder for --out, got {out}, which exists; choose another or remove it.")


def unused(out: Path) -> Path:
    """Return the path of a folder, or where there is one already, as of a run of the same second, one with a number."""
    paths = (out if number == 1 else out.with_name(f"{out.name}-{number}") for number in count(1))
    return next(path for path in paths if not path.exists())


def stored_at(folder: Path) -> Path:
    """Return the file with the experiment with which the run in a folder was started.

    Raises:
        BadInput: there is no folder, or no checkpoint in it.
    """
    if not folder.exists():
        raise BadInput(f"Expected a run's folder, got {folder}, which does not exist.")
    files = sealed(folder / "checkpoint", "experiment")
    if not files:
        over = (folder / "result.json").is_file()
        instead = "with results alone; name the run of an audit, or" if over else "without;"
        raise BadInput(f"Expected a run with a checkpoint, got {folder} {instead} start it anew.")
    return files[-1][1]


def require_over(folder: Path) -> None:
    """Refuse a folder without the result of a run that is over.

    Raises:
        BadInput: there is none.
    """
    if not (folder / "result.json").is_file():
        raise BadInput(f"Expected a run that is over, got {folder} without result.json; finish it or remove it.")


def require_finished(folder: Path) -> None:
    """Refuse a folder without a result to read.

    Raises:
        BadInput: there is none.
    """
    if not (folder / "result.json").is_file():
        raise BadInput(f"Expected a finished run with result.json, got {folder} without; resume it or name another.")
