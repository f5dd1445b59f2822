"""Paths as people write them: a leading ``~`` is the home folder, also where no shell has replaced it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

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
