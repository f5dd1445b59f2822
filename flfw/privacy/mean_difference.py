"""Lower bound on a Gaussian mechanism's mu from the standardised mean difference of canaries' scores.

Canaries are put into the data or left out by fair coins, and an auditor who does not know the coins gives each a score.
The estimate is Cohen's d: the mean score of those that were in, minus that of those left out, over the pooled standard
deviation. Guesses (`flfw.privacy.lower_bound`) use only the order of the highest and the lowest scores; d uses all.

What it may be. Let P and Q be the distributions of a score with its canary in and left out, and let

    tau = E_M[((p - q) / (p + q))^2],    M = (P + Q) / 2

By the inequality of Cauchy and Schwarz under M, no score has d^2 above 4 tau / (1 - tau). tau is a divergence: it does
not grow if the score forgets something of what was seen, nor if canaries that differ are put together. So it is at most
that of N(mu, 1) and N(0, 1), and the largest d is a function of mu, `largest_difference`: mu itself for small mu, 1.013
at mu 1. It holds for a score of any distribution, and for canaries that are told unequally well.

What is assumed. The interval around the estimate needs scores that are independent from canary to canary, as far as the
variance of their mean difference goes: the coins of the others, and noise that is shared, must not move the two means
apart by more than scores of this spread would. For normal scores of equal variance the interval is exact. For others
it is taken from the second moments of the estimate's influence function, and is right for many canaries.

Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988; exact intervals from the noncentral t
distribution: Hedges and Olkin, "Statistical Methods for Meta-Analysis", 1985, chapter 5; mu: Dong, Roth and Su,
"Gaussian Differential Privacy", 2022.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from flfw.errors import require

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

    deviations = np.sqrt(2 * gammaincinv(freedom / 2, (np.arange(_POINTS) + 0.5) / _POINTS) / freedom)
    deviations.flags.writeable = False
    return deviations


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

    >>> shift_of(largest_difference(0.8), 1000)
    0.8
    """
    from scipy.optimize import brentq

    require(canaries >= 1, "canaries >= 1", canaries=canaries)
    require(0 < confidence < 1, "0 < confidence < 1", confidence=confidence)
    most = max(0.0, 2 * NormalDist().inv_cdf((1 - confidence) ** (1 / canaries)))
    if difference <= 0 or largest_difference(most) <= difference:
        return most if difference > 0 else 0.0
    mu: Any = brentq(lambda mu: largest_difference(mu) - difference, 0.0, most, xtol=1e-9)
    return float(mu)
