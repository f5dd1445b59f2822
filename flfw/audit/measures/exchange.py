"""Exchange of results between messages: whether recoveries have anything to do with the messages.

A result counts as a reconstruction where it is closer to the truth than every guess made without the message. Where
all data are alike, or have few pixels, a result that saw nothing may pass this by luck. The results for the other
messages are such guesses as well: if some of them reconstruct the example too, luck has to be excluded.

Null hypothesis: the results have nothing to do with which message they came from. Any assignment of results to messages
is then as likely as the true one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

_TURNS, _MOST, _DRAWS = 7, 32, 999

Fits: TypeAlias = Callable[[int, int], tuple[int, float]]
"""Scores the result for one message against the truth of another: recovered examples, and closeness in dB. Takes the
places of the truth and of the result."""


def exchange_p(messages: int, fit: Fits, rng: np.random.Generator) -> float:
    """Return how likely it is by chance that the results fit their own messages as well as they do, in [0, 1].

    If no result of up to seven other messages recovers anything, luck is rare, and p is 0. Otherwise it is the share of
    1,000 random assignments (the true one among them) that recover as much, or the share of those that are as close on
    average, whichever is smaller, twice. At most 32 messages are assigned.

    Args:
        messages: their number, with different truths.
        fit: the score.
        rng: generator of the assignments.

    >>> exchange_p(8, lambda truth, result: (int(truth == result), 30.0), np.random.default_rng(0))
    0.0
    >>> exchange_p(8, lambda truth, result: (1, 30.0), np.random.default_rng(0))
    1.0
    >>> exchange_p(8, lambda truth, result: (1, 90.0 if truth == result else 30.0), np.random.default_rng(0))
    0.002
    """
    turns = range(1, min(_TURNS, messages - 1) + 1)
    if not any(fit(i, (i + turn) % messages)[0] for turn in turns for i in range(messages)):
        return 0.0
    count = min(messages, _MOST)
    scores = np.array([[fit(i, j) for j in range(count)] for i in range(count)], np.float64)
    truly = np.arange(count)
    drawn = np.concatenate([truly[None], rng.permuted(np.tile(truly, (_DRAWS, 1)), axis=1)])
    totals = scores[truly, drawn].sum(1)  # (1 + draws, 2)
    # A mean in another order of summation may differ by rounding.
    shares = (totals >= totals[0] - 1e-9 * np.abs(totals[0])).mean(0)
    return float(min(1.0, 2 * shares.min()))
