"""Scalars of a configuration, axes of a matrix as on the command line, and the base of groups of settings."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

from flfw.bounds import BoundedSettings, ValueRange
from flfw.errors import InputError, require, unknown

_Word = TypeVar("_Word", bound=str)
_DIGITS = 18
MOST = 1_000_000
"""The most of clients, rounds, steps or examples that a setting can ask for; a slip of the keyboard asks for more."""


Count: TypeAlias = Annotated[int, ValueRange(ge=1, le=MOST)]


@dataclass(frozen=True)
class FlagSettings(BoundedSettings):
    """Settings whose names on the command line have hyphens."""

    @classmethod
    def shown(cls, field: str) -> str:
        """Return the name of a field's flag."""
        return field.replace("_", "-")


def word_and_number(given: str, flag: str, words: Collection[_Word], default: int) -> tuple[_Word, int]:
    """Return the parts of ``WORD`` or ``WORD:N``.

    Args:
        given: the text.
        flag: name of the flag, for messages.
        words: words that may stand there.
        default: the number where there is none.

    Raises:
        InputError: names the flag and its words.

    >>> word_and_number("drop:8", "on-client-failure", ("fail", "drop"), 1)
    ('drop', 8)
    """
    first, colon, number = given.partition(":")
    word = next((word for word in words if word == first), None)
    if word is None or (colon and not (number.isdecimal() and len(number) <= _DIGITS)):
        raise unknown(f"{flag}={', '.join(words)}, with or without :N", f"{flag}={given}", given, words)
    return word, int(number) if colon else default


def integer(word: str, flag: str) -> int:
    """Return the integer in one word of a flag.

    Raises:
        InputError: names the flag.
    """
    if not word.strip().isdecimal() or len(word) > _DIGITS:
        raise InputError(f"Expected whole numbers for {flag}, got {word[:80]!r}.")
    return int(word)


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
            expected = f"AXIS=VALUE,VALUE with an axis among {', '.join(AXES)}"
            raise unknown(expected, repr(word), axis if equals else "", AXES)
        require(axis not in values, f"each axis among {', '.join(AXES)} once", twice=axis)
        values[axis] = tuple(part.strip() for part in text.split(","))
        if not all(values[axis]):
            raise InputError(f"Expected {axis}=VALUE,VALUE with a value behind each comma, got {word!r}.")
    seeds = values.get("seeds", ())
    if not all(seed.isdecimal() for seed in seeds):
        raise InputError(f"Expected whole numbers for seeds, got seeds={','.join(seeds)}.")
    return values
