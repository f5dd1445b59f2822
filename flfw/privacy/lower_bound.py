"""Lower bounds on privacy from one run with canaries: on epsilon by guesses, on a Gaussian's mu by a mean difference.

Each canary is put into the data or left out by a fair coin, and an auditor who does not know the coins gives it a
score. Guesses: of m canaries the auditor guesses r (in or out) and abstains from the rest; v guesses are right. Under
(epsilon, 0) the number of right guesses is at most a Binomial(r, exp(epsilon) / (1 + exp(epsilon))), for any way of
guessing; a delta adds a little. If v or more right guesses are unlikely under an epsilon, the run does not keep that
epsilon: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023 (arXiv 2305.08846),
theorem 5.2 and appendix D. A small value proves nothing, as the guesses may be poor, and even the best guesses on a
Gaussian mechanism reach only a part of its epsilon.

If a Gaussian mechanism is claimed, its whole trade-off curve can be tested instead of one epsilon, with a tenth of the
canaries or less: Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run", 2024 (arXiv
2410.22235), see `gaussian_rejects`. The parameter is mu = sqrt(steps) / z: after all steps a canary shifts a standard
normal variable by at most mu (Dong, Roth and Su, "Gaussian Differential Privacy", 2022).

Mean difference: the estimate is Cohen's d, the mean score of those that were in, minus that of those left out, over the
pooled standard deviation. Guesses use only the order of the highest and the lowest scores; d uses all. Let P and Q be
the distributions of a score with its canary in and left out, and let

    tau = E_M[((p - q) / (p + q))^2],    M = (P + Q) / 2

By the inequality of Cauchy and Schwarz under M, no score has d^2 above 4 tau / (1 - tau). tau is a divergence: it does
not grow if the score forgets something of what was seen, nor if canaries that differ are put together. So it is at most
that of N(mu, 1) and N(0, 1), and the largest d is a function of mu, `largest_difference`: mu itself for small mu, 1.013
at mu 1. It holds for a score of any distribution, and for canaries that are told unequally well.

The interval around d needs scores that are independent from canary to canary, as far as the variance of their mean
difference goes: the coins of the others, and noise that is shared, must not move the two means apart by more than
scores of this spread would. For normal scores of equal variance the interval is exact. For others it is taken from the
second moments of the estimate's influence function, and is right for many canaries. Cohen, "Statistical Power Analysis
for the Behavioral Sciences", 1988; exact intervals from the noncentral t distribution: Hedges and Olkin, "Statistical
Methods for Meta-Analysis", 1985, chapter 5.
"""

from collections.abc import Callable
from functools import lru_cache
from math import erfc, exp, sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

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

    return largest_rejected(rejected, 1e-7)


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
    return largest_rejected(lambda mu: gaussian_rejects(canaries, guesses, correct, mu, 1 - confidence), 1e-5)


def largest_rejected(rejected: Callable[[float], bool], within: float) -> float:
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


FEWEST = 10
"""Canaries that must be in, and as many left out, for a bound above 0: with fewer the spread is hardly known."""

_POINTS = 4000  # of a chi-square distribution; more change the bound by less than 1e-4 of itself
_GRID = np.linspace(-1.0, 1.0, 4001)
_WIDEST = 9.0  # deviations of a normal variable that count
_LARGEST_MU = 16.0


class MeanDifference(NamedTuple):
    """Cohen's d of scores, and a lower confidence bound on its true value, which may be negative."""

    estimate: float
    low: float


def standardised_mean_difference(
    scores: np.ndarray, included: np.ndarray, confidence: float = 0.95
) -> MeanDifference | None:
    """Estimate how many deviations the scores of canaries that were in are above those of the others.

    The bound is the lower of two. The first inverts the noncentral t distribution. The second takes the variance of the
    estimate from its influence function, which counts heavy tails, skewness and unequal variances.

    Args:
        scores: (m,) computed without the coins; a higher score means the canary was more likely in.
        included: (m,) bool, the canaries that were in.
        confidence: in (0, 1).

    Returns:
        None if fewer than `FEWEST` canaries were in or were left out, or all scores of each kind are equal.

    Raises:
        InputError: different lengths, scores that are not finite, or a confidence out of range.
    """
    scores, included = np.asarray(scores, np.float64), np.asarray(included, bool)
    require(scores.ndim == 1, "a row of scores", shape=scores.shape)
    require(scores.shape == included.shape, f"{len(scores)} values of included", included=included.shape)
    require(bool(np.isfinite(scores).all()), "finite scores", other=int((~np.isfinite(scores)).sum()))
    require(0 < confidence < 1, "0 < confidence < 1", confidence=confidence)
    kinds = scores[included], scores[~included]
    if min(map(len, kinds)) < FEWEST:
        return None
    apart = [kind - kind.mean() for kind in kinds]
    variance = sum(float(values @ values) for values in apart) / (len(scores) - 2)
    if variance <= (np.finfo(np.float64).eps * float(np.abs(scores).max())) ** 2:
        return None
    d = float(kinds[0].mean() - kinds[1].mean()) / sqrt(variance)
    low = d - _spread(d, apart, variance, confidence)
    return MeanDifference(d, _lowered(low, d, len(kinds[0]), len(kinds[1]), confidence))


def _lowered(low: float, d: float, first: int, second: int, confidence: float) -> float:
    """Compute by noncentral t the true value under which an estimate >= d has probability 1 - confidence, or low.

    The result is the lower of the two. That probability grows with the true value: one look at ``low`` tells whether
    it is the lower one, and no search is needed.

    T = (Z + nc) / sqrt(V / df), so P(T >= t) = E[Phi(nc - t sqrt(V / df))] over V, a chi-square variable.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    scale = sqrt(first * second / (first + second))
    scaled = d * scale * _deviations(first + second - 2)
    edges = scaled[[0, -1]]

    def excess(centre: float) -> float:
        return float(ndtr(centre - scaled).mean()) - (1 - confidence)

    if excess(low * scale) <= 0:
        return low
    centre: Any = brentq(excess, min(edges.min(), low * scale) - _WIDEST, low * scale)
    return min(low, float(centre) / scale)


@lru_cache(maxsize=8)
def _deviations(freedom: int) -> np.ndarray:
    """Return quantiles of sqrt(V / freedom) for a chi-square variable V; kept, for all rounds have as many canaries."""
    from scipy.special import gammaincinv

    stds = np.sqrt(2 * gammaincinv(freedom / 2, (np.arange(_POINTS) + 0.5) / _POINTS) / freedom)
    stds.flags.writeable = False
    return stds


def _spread(d: float, apart: list[np.ndarray], variance: float, confidence: float) -> float:
    """Compute how far below the estimate the bound is, from the estimate's influence function."""
    from scipy.special import stdtrit

    count, total = sum(map(len, apart)), 0.0
    for sign, values in zip((1, -1), apart, strict=True):
        influence = sign * values / (sqrt(variance) * len(values))
        influence -= d / (2 * variance * count) * (values**2 - variance)
        total += float(influence @ influence) * len(values) / (len(values) - 1)
    return float(stdtrit(count - 2, confidence)) * sqrt(total)


def largest_difference(mu: float) -> float:
    """Return the largest standardised mean difference of any score if a canary shifts a standard normal by ``mu``.

    Args:
        mu: in [0, 16].

    >>> round(largest_difference(1.0), 3)
    1.013
    """
    require(0 <= mu <= _LARGEST_MU, f"0 <= mu <= {_LARGEST_MU:g}", mu=mu)
    if mu == 0:
        return 0.0
    # 1 - tau = E[1 / cosh(L / 2)^2], where L ~ N(mu^2 / 2, mu^2) is the logarithm of p / q under P.
    ratio = mu**2 / 2 + _WIDEST * mu * _GRID
    density = np.exp(-((ratio - mu**2 / 2) ** 2) / (2 * mu**2))
    # Divided by its sum, the density needs no factor.
    rest = float((density / np.cosh(ratio / 2) ** 2).sum() / density.sum())
    return 2 * sqrt(max(0.0, 1 - rest) / rest)


def shift_of(difference: float, canaries: int, confidence: float = 0.95) -> float:
    """Return the least mu that allows a standardised mean difference: a lower bound on mu if the difference is one.

    However large the difference, independent canaries that are all guessed right show no more than their number does:
    a guess on a canary is right with probability at most Phi(mu / 2).

    Args:
        difference: any number; below 0 shows nothing.
        canaries: m >= 1.
        confidence: in (0, 1).

    >>> round(shift_of(largest_difference(0.8), 1000), 6)
    0.8
    """
    from scipy.optimize import brentq

    require(canaries >= 1, "canaries >= 1", canaries=canaries)
    require(0 < confidence < 1, "0 < confidence < 1", confidence=confidence)
    maximum = max(0.0, 2 * NormalDist().inv_cdf((1 - confidence) ** (1 / canaries)))
    if difference <= 0 or largest_difference(maximum) <= difference:
        return maximum if difference > 0 else 0.0
    mu: Any = brentq(lambda mu: largest_difference(mu) - difference, 0.0, maximum, xtol=1e-9)
    return float(mu)
