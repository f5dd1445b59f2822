"""Turns of the sides of a comparison, and the ratios of what they took."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def in_turns(sides: Mapping[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """Measure each side, one after the other, so many times."""
    rows = [{name: measure() for name, measure in sides.items()} for _ in range(turns)]
    return {name: [row[name] for row in rows] for name in sides}


def timed(work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure the seconds of so many repetitions."""
    started = clock()
    for _ in range(times):
        work()
    return clock() - started


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def rounded(value: Any) -> Any:
    """Round every number to four significant digits, at any depth."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
