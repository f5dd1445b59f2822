"""Composition theorems: upper bounds on epsilon that know only a few numbers of each step, not its whole privacy loss.

Older papers count by them, and newer accountants are compared with them. There are k equal steps of noise multiplier
sigma and sampling rate q; delta is for all steps together.

    basic         Dwork, Kenthapadi, McSherry, Mironov and Naor, EUROCRYPT 2006: the epsilons add up.
    advanced      Dwork, Rothblum and Vadhan, FOCS 2010, theorem III.3: they grow about as the root of the steps.
    optimal       Kairouz, Oh and Viswanath, ICML 2015, theorem 3.3: exact for the worst mechanism with the same epsilon
                  and delta in each step.
    concentrated  Bun and Steinke, TCC 2016, propositions 1.3 and 1.6: zero-concentrated differential privacy, zCDP.

The first three know one pair of each step: its delta d and its epsilon, which is exact for one Gaussian step (Balle and
Wang, ICML 2018) and amplified by sampling (`amplified`). They differ only in what k such pairs add up to. An accountant
of `flfw.privacy.accountants` knows the loss of the step at every delta, and is below them.

All hold for one unit more or less and for adaptively chosen steps. Sampling must be Poisson and hidden from the
adversary (`flfw.privacy.mechanism`); otherwise the rate is 1. Epsilon and delta have no unit. Each function takes

    part    the steps: multiplier >= 0 and finite, rate in (0, 1], a whole number of steps >= 0
    delta   probability in (0, 1) with which epsilon may fail

and returns epsilon >= 0; inf: there is no bound. It raises `InputError` for a value out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, expm1, inf, isfinite, log, log1p, sqrt
from typing import Any

import numpy as np

from flfw.errors import require
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.mechanism import GaussianEvent

_LARGEST = 700.0  # largest x for which exp(x) does not overflow
_LEAST_DELTA = 1e-300  # below it the exact formula of a step underflows
_WIDE = 20  # range of the logit of a share of delta: shares from 2e-9 to 1 - 2e-9
_WIDTH = 20.0  # half of the summed range of a binomial variable, in roots of its trials: the rest is 2 exp(-800)
_ROUNDING = 1e-9  # share of a delta that covers the rounding errors of its sum


def basic(part: GaussianEvent, delta: float) -> float:
    """Compute epsilon by basic composition: the sum of the epsilons, and of the deltas, of the steps.

        epsilon = k e(d),    d = delta / k

    Equal deltas leave nothing to choose. For one step this is the exact epsilon.

    >>> once = GaussianEvent(noise_multiplier=6.0, sampling_rate=1.0, steps=1)
    >>> basic(once, 1e-5) == compute_epsilon([once], 1e-5).epsilon
    True
    """
    _require_ranges(part, delta)
    return part.steps * step_epsilon(part, delta / part.steps) if part.steps else 0.0


def advanced(part: GaussianEvent, delta: float) -> float:
    """Compute epsilon by advanced composition.

        epsilon = e sqrt(2 k log(1 / s)) + k e (exp(e) - 1),    e = e(d),    k d + s = delta

    The split of delta into s and k d is searched for the smallest epsilon. For few steps, or a large epsilon of the
    step, the result is above `basic`.
    """
    _require_ranges(part, delta)
    if part.steps == 0:
        return 0.0
    k = part.steps

    def bound(share: float, rest: float) -> float:
        e = step_epsilon(part, rest * delta / k)
        if e == 0 or e > _LARGEST:
            return 0.0 if e == 0 else inf
        return e * sqrt(-2 * k * (log(delta) + log(share))) + k * e * expm1(e)

    return _minimum(bound)


def optimal(part: GaussianEvent, delta: float) -> float:
    """Compute epsilon by optimal composition, see `randomised_responses`.

        epsilon = the epsilon of k randomised responses of e(d) at delta s,    (1 - d)^k (1 - s) = 1 - delta

    The split of delta into s and d is searched for the smallest epsilon; with s = 0 epsilon is k e(d), so the result is
    never above `basic`. With the same split it is never above `advanced`. For one step it is the exact epsilon.
    """
    _require_ranges(part, delta)
    if part.steps == 0:
        return 0.0
    k = part.steps

    def bound(share: float, rest: float) -> float:
        each = -expm1(log1p(-delta * rest / (1 - delta * share)) / k)
        return randomised_responses(step_epsilon(part, each), k, share * delta)

    return min(bound(0.0, 1.0), _minimum(bound))


def concentrated(part: GaussianEvent, delta: float) -> float:
    """Compute epsilon by zCDP: each Gaussian step has rho = 1 / (2 sigma^2), and the rhos add up.

        epsilon = rho + 2 sqrt(rho log(1 / delta)),    rho = k / (2 sigma^2)

    The rate gives no credit. A sampled step has no smaller rho: its Renyi divergence of order a is at least
    a / (2 sigma^2) - a / (a - 1) log(1 / q), and zCDP demands at most rho a for all a, however large. Truncated zCDP
    (Bun, Dwork, Rothblum and Steinke, STOC 2018) limits a and gives credit, but its theorem is for samples of fixed
    size and the exchange of one unit, which is another claim; it is not computed here.
    """
    _require_ranges(part, delta)
    if part.steps == 0 or part.noise_multiplier == 0:
        return inf if part.steps else 0.0
    rho = part.steps / 2 / part.noise_multiplier / part.noise_multiplier
    return rho + 2 * sqrt(rho) * sqrt(-log(delta))


def amplified(epsilon: float, rate: float) -> float:
    """Return the epsilon of a mechanism on a Poisson sample: log(1 + q (exp(epsilon) - 1)).

    Its delta is q times that of the mechanism (Balle, Barthe and Gaboardi, NeurIPS 2018, theorem 8). For a unit that is
    removed, the bound is exact.

    Args:
        epsilon: of the mechanism without sampling, >= 0; inf: none.
        rate: q in (0, 1].

    >>> amplified(1.0, 1.0), round(amplified(1.0, 0.01), 5)
    (1.0, 0.01704)
    """
    require(epsilon >= 0, "epsilon >= 0", epsilon=epsilon)
    require(0 < rate <= 1, "0 < rate <= 1", rate=rate)
    if epsilon < _LARGEST:
        return log1p(rate * expm1(epsilon))
    return epsilon + log(rate + (1 - rate) * exp(-epsilon))


def step_epsilon(part: GaussianEvent, delta: float) -> float:
    """Compute the epsilon of one of the steps: exact for a Gaussian step at delta / q, then amplified.

    Args:
        part: as for `basic`; the number of steps is ignored.
        delta: of one step, >= 0.

    Raises:
        InputError: a value out of range.
    """
    require(delta >= 0, "delta >= 0", delta=delta)
    _require_phase(part)
    whole = delta / part.sampling_rate
    if whole >= 1:
        return 0.0  # a unit that is drawn with probability q changes no probability by more than q
    if whole < _LEAST_DELTA:
        return inf
    return amplified(compute_epsilon([GaussianEvent(part.noise_multiplier, 1.0, 1)], whole).epsilon, part.sampling_rate)


def randomised_responses(epsilon: float, steps: int, delta: float) -> float:
    """Compute the smallest epsilon at delta of composed mechanisms that each have an epsilon, and the delta 0.

    The worst such mechanism is a randomised response: it answers whether the unit is there, and lies with probability
    1 / (1 + exp(epsilon)). With l lies among k answers the privacy loss is (k - 2 l) epsilon, so the result e solves

        delta = E (1 - exp(e - (k - 2 l) epsilon))+ ,    l ~ Binomial(k, 1 / (1 + exp(epsilon)))

    At e = (k - 2 i) epsilon this is the sum of theorem 3.3 for i. Only l within 20 roots of k of its mean are summed:
    by Hoeffding's inequality the others have a probability below any floating-point number.

    Args:
        epsilon: of each step, >= 0; inf: none.
        steps: k >= 1.
        delta: in [0, 1).

    Raises:
        InputError: a value out of range.
    """
    from scipy.optimize import brentq
    from scipy.special import expit
    from scipy.stats import binom

    require(epsilon >= 0, "epsilon >= 0", epsilon=epsilon)
    require(steps >= 1, "steps >= 1", steps=steps)
    require(0 <= delta < 1, "0 <= delta < 1", delta=delta)
    total = steps * epsilon
    if delta == 0 or total == 0 or not isfinite(total):
        return total
    lie = float(expit(-epsilon))
    lowest, highest = steps * lie - _WIDTH * sqrt(steps), steps * lie + _WIDTH * sqrt(steps)
    lies = np.arange(max(0, int(lowest)), min(steps, int(highest) + 1) + 1)
    probability, loss = binom.pmf(lies, steps, lie), (steps - 2 * lies) * epsilon

    def excess(e: float) -> float:
        return float(probability @ -np.expm1(np.minimum(e - loss, 0.0))) - delta * (1 - _ROUNDING)

    if excess(0.0) <= 0:
        return 0.0
    within = 1e-12 * max(1.0, total)
    root: Any = brentq(excess, 0.0, total, xtol=within)
    return min(total, float(root) + 2 * within)


def _minimum(bound: Callable[[float, float], float]) -> float:
    """Return the smallest value of a bound over splits of delta.

    Each value is a valid bound for itself, so the smallest is valid too, however coarse the search. Splits are equally
    spaced in their logit; twice, the surroundings of the best are searched with a tenth of the spacing.

    Args:
        bound: function of a share of delta in (0, 1) and of the rest, 1 - share.
    """
    values: dict[float, float] = {}

    def value(logit: float) -> float:
        values[logit] = bound(1 / (1 + exp(-logit)), 1 / (1 + exp(logit)))
        return values[logit]

    best = min(map(float, range(-_WIDE, _WIDE + 1)), key=value)
    for spacing in (0.1, 0.01):
        best = min((best + spacing * index for index in range(-9, 10)), key=value)
    return min(values.values())


def _require_phase(part: GaussianEvent) -> None:
    require(0 <= part.noise_multiplier < inf, "0 <= multiplier < inf", multiplier=part.noise_multiplier)
    require(0 < part.sampling_rate <= 1, "0 < rate <= 1", rate=part.sampling_rate)
    require(isinstance(part.steps, int) and part.steps >= 0, "a whole number steps >= 0", steps=part.steps)


def _require_ranges(part: GaussianEvent, delta: float) -> None:
    _require_phase(part)
    require(0 < delta < 1, "0 < delta < 1", delta=delta)
