"""Ranges and words of the fields of settings: they stand in the fields' types, and hold whenever a record is made.

What a field means stands beside it in the source, for a reader of the class and for the command line's help.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from itertools import takewhile
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from flfw.errors import require


class ValueRange(NamedTuple):
    """Range of numbers: above ``gt`` or from ``ge`` on, and below ``lt`` or up to ``le``; None: no such end."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None


PositiveInt: TypeAlias = Annotated[int, ValueRange(ge=1)]
NonNegativeInt: TypeAlias = Annotated[int, ValueRange(ge=0)]
PositiveFloat: TypeAlias = Annotated[float, ValueRange(gt=0)]
NonNegativeFloat: TypeAlias = Annotated[float, ValueRange(ge=0)]
PositiveFinite: TypeAlias = Annotated[float, ValueRange(gt=0, lt=inf)]
NonNegativeFinite: TypeAlias = Annotated[float, ValueRange(ge=0, lt=inf)]
Share: TypeAlias = Annotated[float, ValueRange(ge=0, le=1)]
PositiveShare: TypeAlias = Annotated[float, ValueRange(gt=0, le=1)]
ShareBelowOne: TypeAlias = Annotated[float, ValueRange(ge=0, lt=1)]
OpenShare: TypeAlias = Annotated[float, ValueRange(gt=0, lt=1)]


@dataclass(frozen=True)
class BoundedSettings:
    """Record that refuses a value outside the interval, or that is none of the words, in the type of its field.

    Attributes:
        NAMED: beginning of the fields' names in a refusal, such as ``natural.``.

    >>> @dataclass(frozen=True)
    ... class Search(BoundedSettings):
    ...     iterations: PositiveInt = 100
    >>> Search(iterations=0)
    Traceback (most recent call last):
    flfw.errors.InputError: Expected iterations >= 1, got iterations=0.
    >>> @dataclass(frozen=True)
    ... class LongSearch(Search):
    ...     iterations: int = 1000
    ...     schedule: Literal["falling", "constant"] = "falling"
    >>> LongSearch(iterations=0)
    Traceback (most recent call last):
    flfw.errors.InputError: Expected iterations >= 1, got iterations=0.
    >>> LongSearch(schedule="rising")
    Traceback (most recent call last):
    flfw.errors.InputError: Expected schedule among falling, constant, got schedule=rising.
    """

    NAMED: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, allowed in _allowed(type(self)).items():
            value, shown = getattr(self, name), self.shown(name)
            if not isinstance(allowed, ValueRange):
                require(value in allowed, f"{shown} among {', '.join(allowed)}", **{name: value})
            elif not _is_within(value, allowed):
                require(False, _words(shown, allowed), **{name: value})

    @classmethod
    def shown(cls, field: str) -> str:
        """Return the name of a field in a refusal."""
        return cls.NAMED + field


@lru_cache(maxsize=256)  # each message of a run makes its settings anew
def _allowed(cls: type) -> dict[str, ValueRange | tuple[str, ...]]:
    """Return the range, or the words, of each field; one with another default as a plain number keeps its range."""
    hints = [hint for one in reversed(cls.__mro__) for hint in get_type_hints(one, include_extras=True).items()]
    words = {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}
    return words | {name: part for name, hint in hints for part in get_args(hint) if isinstance(part, ValueRange)}


def _is_within(value: Any, interval: ValueRange) -> bool:
    """Return whether a value is in an interval; NaN is in none.

    >>> [_is_within(value, ValueRange(ge=0, le=1)) for value in (-0.1, 0, 0.5, 1, 1.1, inf, float("nan"))]
    [False, True, True, True, False, False, False]
    >>> [_is_within(value, ValueRange(gt=0, lt=1)) for value in (-inf, 0, 0.5, 1, inf, float("nan"))]
    [False, False, True, False, False, False]
    >>> [_is_within(value, ValueRange(ge=0, lt=inf)) for value in (0, 1e300, inf, float("nan"))]
    [True, True, False, False]
    """
    above = (interval.gt is None or value > interval.gt) and (interval.ge is None or value >= interval.ge)
    return above and (interval.lt is None or value < interval.lt) and (interval.le is None or value <= interval.le)


def _words(name: str, interval: ValueRange) -> str:
    """Describe an interval.

    >>> _words("lr", ValueRange(gt=0, lt=inf)), _words("share", ValueRange(ge=0, le=1)), _words("lr", ValueRange(gt=0))
    ('0 < lr < inf', '0 <= share <= 1', 'lr > 0')
    """
    low, below = (interval.ge, "<=") if interval.gt is None else (interval.gt, "<")
    high, above = (interval.le, "<=") if interval.lt is None else (interval.lt, "<")
    if high is None:
        return f"{name} {below.replace('<', '>')} {low}"
    return f"{low:,} {below} {name} {above} {high:,}"


def ranges(cls: type) -> dict[str, str]:
    """Return the range of each field that has one, in words.

    >>> ranges(BoundedSettings)
    {}
    """
    return {n: _words(n, one) if isinstance(one, ValueRange) else ", ".join(one) for n, one in _allowed(cls).items()}


def meanings(record: type) -> dict[str, str]:
    """Return what each field of a record means, from its source.

    The words are the text below a field, else the comment beside or above it, else its entry under ``Attributes`` of
    the class. A class that gives a field another default only keeps the words.
    """
    found: dict[str, str] = {}
    for one in (one for one in reversed(record.__mro__) if is_dataclass(one)):
        found |= dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(one) or "", re.MULTILINE))
        source = textwrap.dedent(inspect.getsource(one))
        lines, body = source.splitlines(), ast.parse(source).body[0]
        fields = body.body if isinstance(body, ast.ClassDef) else []
        for line, below in zip(fields, [*fields[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                value = below.value if isinstance(below, ast.Expr) else None
                text = str(value.value) if isinstance(value, ast.Constant) else _comment(lines, line)
                found |= {line.target.id: text} if text else {}
    return {name: " ".join(text.split()) for name, text in found.items()}


def _comment(lines: Sequence[str], field: ast.AnnAssign) -> str:
    """Return the comment beside a field, else the one above it."""
    beside = lines[(field.end_lineno or 0) - 1][field.end_col_offset or 0 :].strip()
    above = takewhile(lambda line: line.startswith("    #"), reversed(lines[: field.lineno - 1]))
    return " ".join(line.strip().removeprefix("#") for line in ([beside] if beside else reversed(list(above))))
