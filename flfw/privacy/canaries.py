"""A lower bound on epsilon from one run: canaries, each put into the data or left out by a fair coin, are guessed.

Of m canaries an auditor guesses r (in or out) and abstains from the rest; v guesses are right. Under (epsilon, 0) the
number of right guesses is at most a Binomial(r, exp(epsilon) / (1 + exp(epsilon))), whatever the guesses are made from,
and a delta adds a little. If as many as v are unlikely under an epsilon, the run does not keep that epsilon.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023 (arXiv 2305.08846), theorem 5.2
and appendix D. It is a lower bound: a small one proves nothing, for the guesses may be poor, and even the best guesses
of a Gaussian mechanism reach only a part of its epsilon.
"""

from __future__ import annotations

from math import exp

import numpy as np

from flfw.experiment import require

_LARGEST = 700.0  # epsilon up to which exp(-epsilon) is a number


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0) -> float:
    """How likely, at most, so many right guesses are if the run is (epsilon, delta) private.

    With W of Binomial(guesses, 1 / (1 + exp(-epsilon))) it is, at most 1,

        P(W >= correct) + 2 canaries delta max_i P(correct > W >= correct - i) / i,    i = 1 ... correct

    whose first term alone is the pure form, delta = 0.

    Args:
        canaries: m >= 1, each in or out by a fair coin of its own that the training does not see.
        guesses: r <= m, a number that was fixed before looking at who was right.
        correct: v <= r.
        epsilon: >= 0, of one canary more or less.
        delta: in [0, 1].

    Raises:
        BadInput: a value out of range.
    """
    from scipy.stats import binom

    require(epsilon >= 0, "epsilon >= 0", epsilon=epsilon)
    require(canaries >= 1, "canaries >= 1", canaries=canaries)
    require(0 <= guesses <= canaries, f"0 <= guesses <= canaries={canaries}", guesses=guesses)
    require(0 <= correct <= guesses, f"0 <= correct <= guesses={guesses}", correct=correct)
    require(0 <= delta <= 1, "0 <= delta <= 1", delta=delta)
    right = 1 / (1 + exp(-min(epsilon, _LARGEST)))
    found = float(binom.sf(correct - 1, guesses, right))
    if delta and correct:
        below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
        found += 2 * canaries * delta * float((below / np.arange(1, correct + 1)).max())
    return min(found, 1.0)


def lower_bound(canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95) -> float:
    """The largest epsilon that so many right guesses reject; the true one is at least this with the given confidence.

    Args:
        canaries: as for `p_value`.
        guesses: as for `p_value`.
        correct: as for `p_value`.
        delta: at which epsilon is claimed, in [0, 1].
        confidence: in (0, 1).

    Returns:
        Found by bisection and rounded down; 0: not even 0 is rejected.

    Raises:
        BadInput: a value out of range.

    >>> round(lower_bound(10, 10, 10), 4)  # all right: epsilon with (exp(e) / (1 + exp(e)))^10 = 0.05
    1.0519
    """
    require(0 < confidence < 1, "0 < confidence < 1", confidence=confidence)

    def rejected(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def correct_guesses(scores: np.ndarray, included: np.ndarray, guesses: int) -> int:
    """How many are right if the canaries with the highest scores are said to be in, and those with the lowest out.

    Args:
        scores: (m,) the higher, the likelier a canary was in; made without knowing who was.
        included: (m,) bool, who was.
        guesses: r <= m, an even number, half of them for either end.

    Raises:
        BadInput: different lengths, scores that are not numbers, or a number of guesses that is odd or too large.
    """
    scores, included = np.asarray(scores, np.float64), np.asarray(included, bool)
    require(scores.ndim == 1 and len(scores) >= 1, "a row of at least one score", shape=scores.shape)
    require(scores.shape == included.shape, f"{len(scores)} values of included", included=included.shape)
    require(not np.isnan(scores).any(), "scores that are numbers", nan=int(np.isnan(scores).sum()))
    even = guesses % 2 == 0 and 0 <= guesses <= len(scores)
    require(even, f"an even number 0 <= guesses <= {len(scores)}", guesses=guesses)
    half = guesses // 2
    order = np.argsort(scores, kind="stable")
    return int(included[order[len(order) - half :]].sum() + (~included[order[:half]]).sum())
