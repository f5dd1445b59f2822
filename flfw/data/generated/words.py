"""Numbers behind the colon of a generated data set's name, and the reader of its files, of which there are none."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from flfw.errors import InputError

_MOST_SEED = 2**63 - 1


def within(name: str, what: str, word: str, least: float, most: float) -> float:
    """Read a number between bounds.

    Raises:
        InputError: it is none.
    """
    try:
        number = float(word)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise InputError(f"Expected {least:g} <= {what} <= {most:g} in {name}, got {what}={word}.")
    return number


def whole(name: str, what: str, word: str, least: int = 0, most: int = _MOST_SEED) -> int:
    """Read a whole number between bounds.

    Raises:
        InputError: it is none.
    """
    number = int(word) if word.isascii() and word.isdecimal() and len(word) <= len(str(_MOST_SEED)) else -1
    if not least <= number <= most:
        raise InputError(f"Expected a whole number {least} <= {what} <= {most} in {name}, got {what}={word}.")
    return number


def no_files(root: Path, side: int | None) -> NoReturn:
    """Refuse to read all examples, as there is no end of them."""
    raise InputError(f"Expected examples of a generated data set by their numbers, got a request for files in {root}.")
