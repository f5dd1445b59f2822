"""Calibration: the least noise, or the most rounds, for a given epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite, log

from flfw.errors import require
from flfw.privacy.accountants import LARGEST, Accountant, AccountedEpsilon, compute_epsilon
from flfw.privacy.mechanism import Mechanism, Mechanisms, gaussian_events

_GOAL = 1e-3  # calibrate_noise_multiplier ends at most this far below its target


def calibrate_noise_multiplier(
    target_epsilon: float,
    mechanism: Mechanisms,
    delta: float,
    accountant: Accountant = "prv",
    beside: Sequence[Mechanism] = (),
) -> tuple[float, AccountedEpsilon]:
    """Return the smallest noise multiplier for a target, and its epsilon, at most 0.001 below the target.

    Args:
        target_epsilon: target, > 0 and finite.
        mechanism: one or several in turn; their noise multipliers are all replaced by the same one.
        delta: as for `compute_epsilon`.
        accountant: as for `compute_epsilon`.
        beside: further mechanisms that count against the target, with the noise that they have.

    Raises:
        InputError: a value out of range, no clipping, or a target below the least epsilon of the accountant.
    """
    require(0 < target_epsilon < inf, "0 < target_epsilon < inf", target_epsilon=target_epsilon)
    mechanisms = (mechanism,) if isinstance(mechanism, Mechanism) else tuple(mechanism)
    for part in mechanisms:
        require(part.clipping_norm < inf, "clip < inf", clip=part.clipping_norm)
        require(part.steps >= 1, "steps >= 1", steps=part.steps)
        require(part.max_participations != 0, "participations >= 1", participations=part.max_participations)

    def spent(sigma: float, by: Accountant) -> AccountedEpsilon:
        return compute_epsilon(
            gaussian_events([*(replace(part, noise_multiplier=sigma) for part in mechanisms), *beside]), delta, by
        )

    if accountant != "prv" or target_epsilon < 0.05:  # the error of PRV is then a large share of its epsilon
        return _bisected(target_epsilon, partial(spent, by=accountant), 1.0, 2.0)
    near = _bisected(target_epsilon, partial(spent, by="rdp"), 1.0, 2.0)[0]  # fast, and close to the result of PRV
    return _bisected(target_epsilon, partial(spent, by="prv"), near, 1.1)


def _bisected(
    target: float, spent: Callable[[float], AccountedEpsilon], start: float, factor: float
) -> tuple[float, AccountedEpsilon]:
    """Search by bisection for the least sufficient noise; two of three tries are interpolated by a power law."""
    high, enough = start, spent(start)
    while enough.epsilon > target:
        minimum, high = enough.epsilon, 2 * high
        require(high <= LARGEST, "a target_epsilon that the accountant can show", target_epsilon=target, least=minimum)
        enough = spent(high)
    low = high / factor
    while (lower := spent(low)).epsilon <= target:
        low, high, enough = low / factor, low, lower
    tries = 0
    while target - enough.epsilon > _GOAL and high / low - 1 > 1e-12:
        part, tries = 0.5, tries + 1
        if tries % 3 and isfinite(lower.epsilon) and enough.epsilon > 0:
            part = log(lower.epsilon / (target - _GOAL / 2)) / log(lower.epsilon / enough.epsilon)
        middle = low * (high / low) ** min(max(part, 0.01), 0.99)
        tried = spent(middle)
        if tried.epsilon <= target:
            high, enough = middle, tried
        else:
            low, lower = middle, tried
    return high, enough


def steps_within(
    budget: float, one: Mechanism, delta: float, accountant: Accountant = "prv", spent: Sequence[Mechanism] = ()
) -> int:
    """Return how often a mechanism, such as a round, can be repeated before epsilon would exceed a budget.

    Args:
        budget: the largest allowed epsilon, > 0 and finite.
        one: a single round, with its steps and participations.
        delta: as for `compute_epsilon`; for all rounds together.
        accountant: as for `compute_epsilon`.
        spent: earlier mechanisms that count against the same budget.

    Returns:
        A number of repetitions that keeps the budget, while one more does not; 0: one repetition exceeds it.

    Raises:
        InputError: a value out of range.
    """
    require(0 < budget < inf, "0 < budget < inf", budget=budget)
    require(one.steps >= 1, "steps >= 1", steps=one.steps)
    require(one.max_participations != 0, "participations >= 1", participations=one.max_participations)
    before, again = gaussian_events(spent) if spent else (), one.phase()

    def keeps(times: int) -> bool:
        repeated = replace(again, steps=times * again.steps)
        return compute_epsilon((*before, repeated), delta, accountant).epsilon <= budget

    low = steps_within(budget, one, delta, "rdp", spent) if accountant == "prv" else 0
    low = low if low and keeps(low) else 0
    stride = max(1, low // 16)
    while keeps(low + stride):
        low, stride = low + stride, 2 * stride
    high = low + stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
