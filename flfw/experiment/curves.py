"""Points that an audit probes: the target, and curves over batch size, local steps, or both as they grow.

A curve over the size of a group needs no further probes: the same messages are summed in groups of other sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flfw.errors import InputError

LADDER = "ladder"
"""Name of the curve on which both sizes grow."""
SUM_SIZE = "sum_size"
"""Name of the curve over the number of clients whose messages are summed."""
_AXES = {"batch": "batch", "steps": "steps", "size": LADDER, SUM_SIZE: SUM_SIZE}
"""Name of each curve by the word that asks for it."""


@dataclass(frozen=True)
class Point:
    """Kind of probe: ``batch`` examples, ``steps`` local steps; of a ``curve``, or the target ("")."""

    curve: str
    batch: int
    steps: int

    @property
    def name(self) -> str:
        """Name of the point: ``target``, or on a curve ``batch-16`` or ``ladder-50x5``."""
        return f"{self.curve}-{self.value}" if self.curve else "target"

    @property
    def value(self) -> str:
        """Position on the curve, written as in ``--curve``; for the target, both sizes."""
        return str(getattr(self, self.curve)) if self.curve in ("batch", "steps") else f"{self.batch}x{self.steps}"


def points(curves: Sequence[str], batch: int, steps: int) -> tuple[Point, ...]:
    """Return the target first, then the curves' points that differ from it.

    Args:
        curves: ``batch=1,4``, ``steps=1,5`` or ``size=1x1,4x1,4x5``, whose sizes only grow; ``sum_size=1,5`` has no
            points, see `groups`.
        batch: examples in the target's probe.
        steps: local steps in the target's probe.

    Raises:
        InputError: a curve has another form.

    >>> [point.name for point in points(["batch=1,4", "size=1x1,4x1,4x5"], 1, 1)]
    ['target', 'batch-4', 'ladder-4x1', 'ladder-4x5']
    """
    result = [Point("", batch, steps)]
    for word in curves:
        name, equals, values = word.partition("=")
        axis = _AXES.get(name)
        if axis is None or not equals:
            raise InputError(
                f"Expected curve as batch=1,4 or steps=1,5 or size=1x1,4x1,4x5 or sum_size=1,5, got curve={word}."
            )
        if axis == SUM_SIZE:
            continue
        sizes = [_sizes(axis, value, word, batch, steps) for value in values.split(",")]
        grow = (a != b and a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(sizes))
        if axis == LADDER and not all(grow):
            raise InputError(f"Expected sizes that only grow, got curve={word}.")
        new = [Point(axis, *size) for size in dict.fromkeys(sizes) if Point("", *size) not in result]
        result += [point for point in new if point not in result]
    return tuple(result)


def groups(curves: Sequence[str]) -> tuple[int, ...]:
    """Return the sizes of groups on the curves, in their order, each once.

    Args:
        curves: as for `points`; only ``sum_size=1,5`` counts.

    Raises:
        InputError: a size is no whole number, or below 1.

    >>> groups(["batch=1,4", "sum_size=1,5,1"])
    (1, 5)
    """
    words = [word for word in curves if _AXES.get(word.partition("=")[0]) == SUM_SIZE]
    sizes = (_sizes("batch", value, word, 1, 1)[0] for word in words for value in word.partition("=")[2].split(","))
    return tuple(dict.fromkeys(sizes))


def _sizes(axis: str, value: str, word: str, batch: int, steps: int) -> tuple[int, int]:
    """Parse batch size and steps of one point."""
    parts = value.split("x") if axis == LADDER else [value]
    if axis == LADDER and len(parts) != 2:
        raise InputError(f"Expected sizes as BATCHxSTEPS, such as 4x1, got {value!r} in curve={word}.")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"Expected whole numbers for curve, got {value!r}.")
    numbers = [int(part) for part in parts]
    if min(numbers) < 1:
        raise InputError(f"Expected whole numbers >= 1 for curve, got curve={word}.")
    if axis == LADDER:
        return numbers[0], numbers[1]
    return (numbers[0], steps) if axis == "batch" else (batch, numbers[0])
