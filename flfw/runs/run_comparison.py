"""Comparison of two results number for number: equal, within the interval that the first one states, or different."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isclose
from typing import Any, TypeGuard, final

from flfw.audit.measures.statistics import share_interval
from flfw.experiment import FREE_ON_RESUME

EQUAL, WITHIN, DIFFERENT = "bit for bit", "within its interval", "different"
RESULT, REPETITION = "result", "repetition"

NOT_COMPARED = (
    "seconds and *_seconds: times",
    "provenance, environment and flfw: what they say of the two runs stands above",
    "settings that decide no number, such as config.engine and config.out",
    "the note that the code changed while a run lasted",
)
"""Parts of a result that are not compared, in words."""

_APART = ("provenance", "environment", "flfw")
_CODE_CHANGED = "The code changed while this run lasted"
_ACCURACIES = ("acc_global", "acc_local")  # the others are of data whose number result.json does not have
_RATES = {"share_recovered": "share_interval", "true_rate": "true_interval", "false_rate": "false_interval"}


@final
@dataclass(frozen=True)
class ComparedValue:
    """Value of a result beside that of its repetition.

    Attributes:
        path: its place in result.json, such as ``audit[0].psnr.mean``.
        before: the value in the result; None where it has none.
        after: the value of the repetition, likewise.
        outcome: `EQUAL`, `WITHIN` or `DIFFERENT`.
        interval: the 95 % interval around the first value; None: the result states none.
        moved_with: the number whose interval decided, for ends and extremes that move with it; empty: its own.
        lacking: `RESULT` or `REPETITION`, whichever lacks the place itself, which is another thing than null; empty:
            both have it.
    """

    path: str
    before: Any
    after: Any
    outcome: str
    interval: tuple[float, float] | None = None
    moved_with: str = ""
    lacking: str = ""

    @classmethod
    def of_one(cls, path: str, before: Any, after: Any, *, there: bool) -> ComparedValue:
        """Return the value of a place that one of two results lacks.

        Args:
            path: the place.
            before: the value in the result; None where it has none.
            after: the value of the repetition, likewise.
            there: whether the result is the one that has it.
        """
        return cls(path, before, after, DIFFERENT, lacking=REPETITION if there else RESULT)

    def as_dict(self) -> dict[str, Any]:
        """Return the value as verify.json holds it."""
        return asdict(self)


@final
@dataclass(frozen=True)
class _Interval:
    """Interval of a number, with the keys beside it that belong to the same estimate."""

    low: float
    high: float
    parts: tuple[str, ...] = ()
    unit: float = 1.0  # one of the parts in the number's own unit

    def holds(self, *values: float) -> bool:
        """Return whether all values lie in the interval."""
        return self.low <= min(values) and max(values) <= self.high

    def width(self) -> float:
        """Return how far apart its ends lie, in the unit of the parts."""
        return (self.high - self.low) / self.unit


@final
@dataclass(frozen=True)
class _Leader:
    """Number with its outcome, and how far its parts may move with it."""

    value: ComparedValue
    room: float

    def allows(self, key: str, one: ComparedValue, table: Mapping[str, Any]) -> bool:
        """Return whether a part that differs may have moved with the number.

        Args:
            key: the part's key.
            one: the part, or an end of it.
            table: the part's table in the first result.
        """
        if self.value.outcome != WITHIN or not _is_number(one.before) or not _is_number(one.after):
            return False
        if key == "p":
            return isclose(one.before, _fair(table["correct"], table["guesses"]), rel_tol=1e-6)
        return abs(one.after - one.before) <= self.room


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[ComparedValue]:
    """Compare all numbers, words and truth values of two results, and the keys and entries that either lacks.

    An accuracy lies in the exact binomial interval of as many test examples as its clients have; every other number in
    the interval that stands beside it; and both numbers in that of the repetition. Where a number moved within its
    interval, its interval's ends and its extremes may have moved with it, by no more than the narrower of both
    intervals is wide, and a p-value as the number decides it; where it did not move, neither may they. All else must be
    equal.

    Args:
        before: content of result.json.
        after: that of the repetition.
    """
    return list(_compared(_kept(before), _kept(after), "", _examples(before)))


def farthest(compared: Iterable[ComparedValue]) -> tuple[ComparedValue, float] | None:
    """Return the different number whose relative difference is largest, with it; None: no two numbers differ."""
    apart = [
        (one, abs(one.after - one.before) / max(abs(one.before), abs(one.after)))
        for one in compared
        if one.outcome == DIFFERENT and _is_number(one.before) and _is_number(one.after)
    ]
    return max(apart, key=lambda pair: pair[1], default=None)


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that are compared."""
    kept = {key: value for key, value in result.items() if key not in _APART}
    if isinstance(config := kept.get("config"), Mapping):
        kept["config"] = {key: value for key, value in config.items() if key not in FREE_ON_RESUME}
    if _is_list(notes := kept.get("notes")):
        kept["notes"] = [note for note in notes if not str(note).startswith(_CODE_CHANGED)]
    return kept


def _examples(result: Mapping[str, Any]) -> float:
    """Return the mean number of test examples of a client, 0 where it is not known."""
    final = result.get("final")
    rows = final.get("per_client") if isinstance(final, Mapping) else None
    tables = [row for row in rows if isinstance(row, Mapping)] if _is_list(rows) else []
    numbers = [row["num-examples"] for row in tables if _is_number(row.get("num-examples"))]
    return sum(numbers) / len(numbers) if numbers else 0.0


def _compared(before: Any, after: Any, path: str, examples: float) -> Iterator[ComparedValue]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _of_tables(before, after, path, examples)
    elif _is_list(before) and _is_list(after):
        for index in range(max(len(before), len(after))):
            old, new = (one[index] if index < len(one) else None for one in (before, after))
            if index < min(len(before), len(after)):
                yield from _compared(old, new, f"{path}[{index}]", examples)
            else:
                yield ComparedValue.of_one(f"{path}[{index}]", old, new, there=index < len(before))
    elif before is not None or after is not None:
        equal = type(before) is type(after) or (_is_number(before) and _is_number(after))
        yield ComparedValue(path, before, after, EQUAL if equal and before == after else DIFFERENT)


def _of_tables(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str, examples: float
) -> Iterator[ComparedValue]:
    looked_up = {key: _interval(before, key, path, examples) for key in before}
    intervals = {key: interval for key, interval in looked_up.items() if interval is not None}
    decided: dict[str, ComparedValue] = {}
    leaders: dict[str, _Leader] = {}
    for key, interval in intervals.items():
        place, old, new = f"{path}.{key}".lstrip("."), before[key], after.get(key)
        # A number that was changed alone may lie outside its own interval, and one that was changed with its interval
        # outside that of the repetition.
        stated = _interval(after, key, path, examples) if _is_number(new) else None
        both = [value for value in (old, new) if _is_number(value)]
        inside = stated is not None and interval.holds(*both) and stated.holds(*both)
        outcome = EQUAL if _is_number(new) and new == old else WITHIN if inside else DIFFERENT
        decided[key] = ComparedValue(place, old, new, outcome, (interval.low, interval.high))
        room = min(interval.width(), stated.width()) if stated else 0.0
        leaders |= dict.fromkeys(interval.parts, _Leader(decided[key], room))
    for key in [*before, *(key for key in after if key not in before)]:
        if key == "seconds" or key.endswith("_seconds"):
            continue
        place = f"{path}.{key}".lstrip(".")
        if (key in before) != (key in after):
            yield ComparedValue.of_one(place, before.get(key), after.get(key), there=key in before)
            continue
        if key in decided:
            yield decided[key]
            continue
        for one in _compared(before.get(key), after.get(key), place, examples):
            leader = leaders.get(key)
            if one.outcome == DIFFERENT and leader is not None and leader.allows(key, one, before):
                yield ComparedValue(one.path, one.before, one.after, WITHIN, moved_with=leader.value.path)
            else:
                yield one


def _interval(table: Mapping[str, Any], key: str, path: str, examples: float) -> _Interval | None:
    """Return the interval of a number, from the keys beside it; None: there is none."""
    if not _is_number(table[key]):
        return None
    if key in _ACCURACIES:
        return _binomial(table, key, path, examples)
    if key == "mean" and _ends(table, "low", "high"):
        return _Interval(table["low"], table["high"], ("low", "high", "max", "min"))
    if key == "correct" and _ends(table, "low", "high") and _is_number(table.get("guesses")):
        guesses = table["guesses"]
        return _Interval(table["low"] * guesses, table["high"] * guesses, ("low", "high", "p"), unit=max(guesses, 1))
    if _ends(table, f"{key}_low", f"{key}_high"):
        return _Interval(table[f"{key}_low"], table[f"{key}_high"], (f"{key}_low", f"{key}_high"))
    ends = table.get(_RATES[key]) if key in _RATES else None
    if _is_list(ends) and len(ends) == 2 and all(map(_is_number, ends)):
        return _Interval(ends[0], ends[1], (_RATES[key],))
    return None


def _binomial(table: Mapping[str, Any], key: str, path: str, examples: float) -> _Interval | None:
    """Return the exact interval of an accuracy: of a client's own test examples, or of those of a round's clients."""
    of_client = table.get("num-examples")
    number = float(of_client) if _is_number(of_client) else examples * _clients(table, path)
    accuracy = table[key]
    if number < 1 or not 0 <= accuracy <= 1:
        return None
    low, high = share_interval(round(accuracy * round(number)), round(number))
    return _Interval(low, high, (f"{key}_interval",))


def _clients(table: Mapping[str, Any], path: str) -> int:
    rows = table.get("per_client")
    if path == "final" and _is_list(rows):
        return len(rows)
    number = table.get("clients")
    return int(number) if _is_number(number) else 0


def _fair(right: float, guesses: float) -> float:
    """Return the probability that as many fair coins as guesses are right so often, or more often."""
    from scipy.stats import binom

    return float(binom.sf(right - 1, guesses, 0.5))


def _ends(table: Mapping[str, Any], low: str, high: str) -> bool:
    return _is_number(table.get(low)) and _is_number(table.get(high))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)
