"""Axes of a matrix as written on the command line: ``methods=fedavg,fedper seeds=0,1``."""

from __future__ import annotations

from collections.abc import Iterable

from flfw.errors import InputError, require, suggestion

WITHIN = ("methods", "defences", "attacks", "seeds")
"""Axes within one folder; each value of the axis ``datasets`` has a folder of its own."""
AXES = (*WITHIN, "datasets")
"""All axes."""


def axes(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each axis that is written.

    Raises:
        InputError: a word that is no axis, or an axis that is empty or occurs twice.

    >>> axes(["seeds=0,1", "methods=fedavg"])
    {'seeds': ('0', '1'), 'methods': ('fedavg',)}
    """
    values: dict[str, tuple[str, ...]] = {}
    for word in words:
        axis, equals, text = word.partition("=")
        if not equals or axis not in AXES:
            like = (suggestion(axis, AXES) if equals else "") or "."
            raise InputError(f"Expected AXIS=VALUE,VALUE with an axis among {', '.join(AXES)}; got {word!r}{like}")
        require(axis not in values, f"each axis among {', '.join(AXES)} once", twice=axis)
        values[axis] = tuple(part.strip() for part in text.split(","))
        if not all(values[axis]):
            raise InputError(f"Expected {axis}=VALUE,VALUE with a value behind each comma, got {word!r}.")
    seeds = values.get("seeds", ())
    if not all(seed.isdecimal() for seed in seeds):
        raise InputError(f"Expected whole numbers for seeds, got seeds={','.join(seeds)}.")
    return values
