"""Times of functions from few calls, extrapolated where they are linear in a number."""

from __future__ import annotations

import json
import os
import time
import timeit
from collections.abc import Callable
from pathlib import Path

_MORE = "more_s"
CALLS, ENOUGH_S = 3, 1.5  # calls, of which the fastest counts; seconds that the work in all of them should take


def at_length(seconds: Callable[[int], float], whole: int, calls: int = CALLS, first: int = 1) -> float:
    """Extrapolate the seconds of all iterations from those of a few.

    Args:
        seconds: measures a number of iterations.
        whole: number of all iterations.
        calls: calls with the first number, of which the fastest counts, unless one takes long; with 1 no number is
            measured twice, as for work whose result is kept.
        first: the first number that is measured; above 1 where the result for one iteration may have been kept.
    """
    first = min(first, whole)
    once, few = seconds(first), min(4 * first, whole)
    if once < ENOUGH_S / CALLS:
        once = min([once, *(seconds(first) for _ in range(calls - 1))])
    while (more := seconds(few)) - once < ENOUGH_S / CALLS and few < whole:
        few = min(4 * few, whole)
    more = more if calls == 1 or more > ENOUGH_S else min(more, seconds(few))
    return once + (whole - first) * max(more - once, 0.0) / max(1, few - first)


def fastest_s(work: Callable[[], object], calls: int = CALLS) -> float:
    """Return the least processor time of some calls; on one thread other programs do not change it."""
    return min(timeit.repeat(work, number=1, repeat=calls, timer=time.process_time))


def announce(more_s: float) -> None:
    """Print how many seconds this process's measurements still take, for the process that waits for them."""
    print(json.dumps({_MORE: more_s}), flush=True)


def announced(line: str) -> float | None:
    """Return the seconds of an announcement; None: it is another line."""
    return json.loads(line)[_MORE] if line.startswith(f'{{"{_MORE}"') else None


def since_start_s() -> float:
    """Return the seconds on the clock since this process started; others at work are in them."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
