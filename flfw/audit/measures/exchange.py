"""Exchange of results between messages: whether recoveries have anything to do with the messages.

A result counts as a reconstruction where it is closer to the truth than every guess made without the message. Where
all data are alike, or have few pixels, a result that saw nothing may pass this by luck. The results for the other
messages are such guesses as well: if some of them reconstruct the example too, luck has to be excluded.

Null hypothesis: the results have nothing to do with which message they came from. Any assignment of results to messages
is then as likely as the true one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

_TURNS, _MOST, _DRAWS = 7, 32, 999
_FAR_DB = 20.0  # a tenth of the distance: farther than luck goes where no result for another message comes near

Fits: TypeAlias = Callable[[int, int], "Fitting"]
"""Scores the result for one message against the truth of another; takes the places of the truth and of the result."""


class Fitting(NamedTuple):
    """Closeness of the result for a message to a truth.

    Attributes:
        recovered: number of examples that count as recovered.
        mean: mean closeness of the examples in dB.
        best: closeness of the closest one in dB.
    """

    recovered: int
    mean: float
    best: float


class Exchanged(NamedTuple):
    """Outcome of an exchange.

    Attributes:
        p: probability that the results fit their own messages so well by chance, in [0, 1].
        beyond: closeness in dB above which a result is no luck in any case.
    """

    p: float
    beyond: float


def exchange(messages: int, fit: Fits, rng: np.random.Generator) -> Exchanged:
    """Hold the results for other messages against each truth.

    If no result of up to seven other messages recovers anything, luck is rare, and p is 0. Otherwise p is the share of
    1,000 random assignments (the true one among them) that recover as much, or the share of those that are as close on
    average, whichever is smaller, twice. At most 32 messages are assigned. A result that is 20 dB closer to its truth
    than all results for other messages are to any truth counts whatever p is: one example may leak alone.

    Args:
        messages: their number, with different truths.
        fit: the score.
        rng: generator of the assignments.

    >>> exchange(8, lambda truth, result: Fitting(int(truth == result), 30.0, 30.0), np.random.default_rng(0)).p
    0.0
    >>> exchange(8, lambda truth, result: Fitting(1, 30.0, 30.0), np.random.default_rng(0))
    Exchanged(p=1.0, beyond=50.0)
    """
    turns = range(1, min(_TURNS, messages - 1) + 1)
    if not any(fit(i, (i + turn) % messages).recovered for turn in turns for i in range(messages)):
        return Exchanged(0.0, inf)
    count = min(messages, _MOST)
    scores = np.array([[fit(i, j) for j in range(count)] for i in range(count)], np.float64)  # (truths, results, 3)
    others = ~np.eye(count, dtype=bool)
    truly = np.arange(count)
    drawn = np.concatenate([truly[None], rng.permuted(np.tile(truly, (_DRAWS, 1)), axis=1)])
    totals = scores[truly, drawn, :2].sum(1)  # (1 + draws, 2)
    # A mean in another order of summation may differ by rounding.
    shares = (totals >= totals[0] - 1e-9 * np.abs(totals[0])).mean(0)
    return Exchanged(float(min(1.0, 2 * shares.min())), float(scores[others, 2].max()) + _FAR_DB)
