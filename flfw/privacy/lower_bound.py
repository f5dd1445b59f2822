"""A lower bound on epsilon from one run: canaries, each put into the data or left out by a fair coin, are guessed.

Of m canaries an auditor guesses r (in or out) and abstains from the rest; v guesses are right. Under (epsilon, 0) the
number of right guesses is at most a Binomial(r, exp(epsilon) / (1 + exp(epsilon))), whatever the guesses are made from,
and a delta adds a little. If as many as v are unlikely under an epsilon, the run does not keep that epsilon.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023 (arXiv 2305.08846), theorem 5.2
and appendix D. It is a lower bound: a small one proves nothing, for the guesses may be poor, and even the best guesses
of a Gaussian mechanism reach only a part of its epsilon.

Where the claim is a Gaussian mechanism's own, its whole trade-off can be tested and not one epsilon of it, which takes
a tenth of the canaries or less: Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run", 2024
(arXiv 2410.22235), in `gaussian_rejects`. The parameter is mu = sqrt(steps) / z: after all its steps a canary moves a
standard normal number by mu, and by no more (Dong, Roth and Su, "Gaussian Differential Privacy", 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, exp, sqrt
from statistics import NormalDist

import numpy as np

from flfw.errors import require

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
    _require_counts(canaries, guesses, correct)
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

    return _largest(rejected, 1e-7)


def gaussian_rejects(canaries: int, guesses: int, correct: int, mu: float, level: float = 0.05) -> bool:
    """Whether so many right guesses have a probability below ``level`` under every mechanism of a Gaussian's trade-off.

    Let q_c = P(at least c are right). Whatever happens with probability x in one of two neighbouring worlds does so
    with at most F(x) = Phi(Phi^-1(x) + mu) in the other. "A canary is guessed right, as one of at least c" and "it is
    guessed wrong, beside at least c - 1 right ones" are the same event in two worlds that differ in its coin; summed
    over the canaries, and since F is concave,

        c q_c + sum_{j > c} q_j <= m F(((r - c + 1) q_{c-1} - sum_{j >= c} q_j) / m)

    which bounds q_{c-1} from below by what rises with q_c, q_{c+1}, ... So q_v = level, for v right guesses, and
    q_j = 0 above that lead down to bounds for all; where one is above 1, q_v is below the level.

    Args:
        canaries: m as for `p_value`.
        guesses: r as for `p_value`.
        correct: v as for `p_value`.
        mu: >= 0, of one canary more or less.
        level: in (0, 1).

    Raises:
        BadInput: a value out of range.
    """
    _require_counts(canaries, guesses, correct)
    require(mu >= 0, "mu >= 0", mu=mu)
    require(0 < level < 1, "0 < level < 1", level=level)
    normal, q, above = NormalDist(), level, 0.0
    for c in range(correct, 0, -1):
        right = (c * q + above) / canaries
        if right >= 1:
            return True
        wrong = erfc((mu - normal.inv_cdf(right)) / sqrt(2)) / 2
        above += q
        q = (canaries * wrong + above) / (guesses - c + 1)
        if q > 1:
            return True
    return False


def gaussian_lower_bound(canaries: int, guesses: int, correct: int, confidence: float = 0.95) -> float:
    """The largest mu that so many right guesses reject: `lower_bound` for what is claimed as a Gaussian mechanism.

    Args:
        canaries: as for `p_value`.
        guesses: as for `p_value`.
        correct: as for `p_value`.
        confidence: in (0, 1).

    Raises:
        BadInput: a value out of range.

    >>> round(gaussian_lower_bound(10, 10, 10), 3)
    0.678
    """
    require(0 < confidence < 1, "0 < confidence < 1", confidence=confidence)
    return _largest(lambda mu: gaussian_rejects(canaries, guesses, correct, mu, 1 - confidence), 1e-5)


def _largest(rejected: Callable[[float], bool], within: float) -> float:
    """Where rejection ends, found by bisection and rounded down; 0: not even 0 is rejected."""
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
    while high - low > within:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _require_counts(canaries: int, guesses: int, correct: int) -> None:
    require(canaries >= 1, "canaries >= 1", canaries=canaries)
    require(0 <= guesses <= canaries, f"0 <= guesses <= canaries={canaries}", guesses=guesses)
    require(0 <= correct <= guesses, f"0 <= correct <= guesses={guesses}", correct=correct)


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
