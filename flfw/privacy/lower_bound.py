"""Lower bound on epsilon from one run: guesses on canaries, each put into the data or left out by a fair coin.

Of m canaries an auditor guesses r (in or out) and abstains from the rest; v guesses are right. Under (epsilon, 0) the
number of right guesses is at most a Binomial(r, exp(epsilon) / (1 + exp(epsilon))), for any way of guessing; a delta
adds a little. If v or more right guesses are unlikely under an epsilon, the run does not keep that epsilon.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023 (arXiv 2305.08846), theorem 5.2
and appendix D. It is a lower bound: a small value proves nothing, as the guesses may be poor, and even the best guesses
on a Gaussian mechanism reach only a part of its epsilon.

If a Gaussian mechanism is claimed, its whole trade-off curve can be tested instead of one epsilon, with a tenth of the
canaries or less: Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run", 2024 (arXiv
2410.22235), see `gaussian_rejects`. The parameter is mu = sqrt(steps) / z: after all steps a canary shifts a standard
normal variable by at most mu (Dong, Roth and Su, "Gaussian Differential Privacy", 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, exp, sqrt
from statistics import NormalDist

import numpy as np

from flfw.errors import require

_LARGEST = 700.0  # largest epsilon for which exp(-epsilon) does not underflow


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0) -> float:
    """Bound the probability of so many right guesses if the run is (epsilon, delta) private.

    With W ~ Binomial(guesses, 1 / (1 + exp(-epsilon))) the bound, at most 1, is

        P(W >= correct) + 2 canaries delta max_i P(correct > W >= correct - i) / i,    i = 1 ... correct

    The first term alone is the bound for delta = 0.

    Args:
        canaries: m >= 1, each in or out by its own fair coin, which the training does not see.
        guesses: r <= m, fixed before the coins are compared.
        correct: v <= r, number of right guesses.
        epsilon: >= 0, for one canary more or less.
        delta: probability in [0, 1].

    Raises:
        InputError: a value out of range.
    """
    from scipy.stats import binom

    require(epsilon >= 0, "epsilon >= 0", epsilon=epsilon)
    _require_counts(canaries, guesses, correct)
    require(0 <= delta <= 1, "0 <= delta <= 1", delta=delta)
    right = 1 / (1 + exp(-min(epsilon, _LARGEST)))
    p = float(binom.sf(correct - 1, guesses, right))
    if delta and correct:
        below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
        p += 2 * canaries * delta * float((below / np.arange(1, correct + 1)).max())
    return min(p, 1.0)


def lower_bound(canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Return the largest epsilon rejected by so many right guesses: a lower bound with the given confidence.

    Args:
        canaries: as for `p_value`.
        guesses: as for `p_value`.
        correct: as for `p_value`.
        delta: delta of the claimed epsilon, in [0, 1].
        confidence: in (0, 1).

    Returns:
        The bound, from bisection, rounded down; 0: not even 0 is rejected.

    Raises:
        InputError: a value out of range.

    >>> round(lower_bound(10, 10, 10), 4)  # all right: epsilon with (exp(e) / (1 + exp(e)))^10 = 0.05
    1.0519
    """
    require(0 < confidence < 1, "0 < confidence < 1", confidence=confidence)

    def rejected(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence

    return _largest(rejected, 1e-7)


def gaussian_rejects(canaries: int, guesses: int, correct: int, mu: float, level: float = 0.05) -> bool:
    """Return whether so many right guesses have probability below ``level`` under a Gaussian's trade-off curve.

    Let q_c = P(at least c are right). An event with probability x in one of two neighbouring worlds has at most
    probability F(x) = Phi(Phi^-1(x) + mu) in the other. "A canary is guessed right, as one of at least c" and "it is
    guessed wrong, beside at least c - 1 right ones" are the same event in two worlds that differ in its coin. Summed
    over the canaries, and as F is concave,

        c q_c + sum_{j > c} q_j <= m F(((r - c + 1) q_{c-1} - sum_{j >= c} q_j) / m)

    This gives a lower bound on q_{c-1} that increases with q_c, q_{c+1}, ... So start with q_v = level, for v right
    guesses, and q_j = 0 for j > v, and compute the bounds downwards. If one exceeds 1, q_v is below the level.

    Args:
        canaries: m as for `p_value`.
        guesses: r as for `p_value`.
        correct: v as for `p_value`.
        mu: >= 0, for one canary more or less.
        level: significance level in (0, 1).

    Raises:
        InputError: a value out of range.
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
    """Return the largest mu rejected by so many right guesses: `lower_bound` for a Gaussian mechanism.

    Args:
        canaries: as for `p_value`.
        guesses: as for `p_value`.
        correct: as for `p_value`.
        confidence: in (0, 1).

    Raises:
        InputError: a value out of range.

    >>> round(gaussian_lower_bound(10, 10, 10), 3)
    0.678
    """
    require(0 < confidence < 1, "0 < confidence < 1", confidence=confidence)
    return _largest(lambda mu: gaussian_rejects(canaries, guesses, correct, mu, 1 - confidence), 1e-5)


def _largest(rejected: Callable[[float], bool], within: float) -> float:
    """Return the largest rejected value by bisection, rounded down; 0: not even 0 is rejected."""
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
    """Count the right guesses if the canaries with the highest scores are guessed in, those with the lowest out.

    Args:
        scores: (m,) scores computed without the coins; a higher score means the canary was more likely in.
        included: (m,) bool, the canaries that were in.
        guesses: r <= m, an even number, half of them at each end.

    Raises:
        InputError: different lengths, scores that are not numbers, or a number of guesses that is odd or too large.
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
