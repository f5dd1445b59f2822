"""Calibration: the least noise for a given epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite, log

from flfw.errors import require
from flfw.privacy.accountants import LARGEST, Accountant, epsilon, largest
from flfw.privacy.mechanism import Mechanism

_GOAL = 1e-3  # calibrate_noise_multiplier ends at most this far below its target


def calibrate_noise_multiplier(
    target_epsilon: float, clients: Sequence[Sequence[Mechanism]], delta: float, accountant: Accountant = "prv"
) -> float:
    """Return the smallest noise multiplier with which no client exceeds a target, or ends 0.001 below it at most.

    Args:
        target_epsilon: target, > 0 and finite.
        clients: for each client its mechanism, whose noise is replaced, and further ones that count beside it.
        delta: as for `compute_epsilon`.
        accountant: as for `compute_epsilon`.

    Raises:
        InputError: a value out of range, no clipping, or a target below the least epsilon of the accountant.
    """
    require(0 < target_epsilon < inf, "0 < target_epsilon < inf", target_epsilon=target_epsilon)

    def spent(sigma: float, client: Sequence[Mechanism], by: Accountant) -> float:
        return epsilon([replace(client[0], noise_multiplier=sigma), *client[1:]], delta, by)

    sigma, (exceeding, _) = 0.0, largest(partial(spent, clients[0][0].noise_multiplier), clients, accountant)
    while True:
        part = exceeding[0]
        require(part.clipping_norm < inf, "clip < inf", clip=part.clipping_norm)
        require(part.steps >= 1, "steps >= 1", steps=part.steps)
        require(part.max_participations != 0, "participations >= 1", participations=part.max_participations)
        near, factor = 1.0, 2.0
        if accountant == "prv" and target_epsilon >= 0.05:  # below, its error is a large share of its epsilon
            # RDP is fast, and close to the result of PRV.
            near, factor = _bisected(target_epsilon, partial(spent, client=exceeding, by="rdp"), near, factor), 1.1
        enough = _bisected(target_epsilon, partial(spent, client=exceeding, by=accountant), near, factor)
        sigma = enough if enough > sigma else 1.001 * sigma  # a numerical error of the accountant would go round
        exceeding, maximum = largest(partial(spent, sigma), clients, accountant)
        if maximum <= target_epsilon:
            return sigma


def _bisected(target: float, spent: Callable[[float], float], start: float, factor: float) -> float:
    """Search by bisection for the least sufficient noise; two of three tries are interpolated by a power law."""
    high, enough = start, spent(start)
    while enough > target:
        minimum, high = enough, 2 * high
        require(high <= LARGEST, "a target_epsilon that the accountant can show", target_epsilon=target, least=minimum)
        enough = spent(high)
    low = high / factor
    while (lower := spent(low)) <= target:
        low, high, enough = low / factor, low, lower
    tries = 0
    while target - enough > _GOAL and high / low - 1 > 1e-12:
        part, tries = 0.5, tries + 1
        if tries % 3 and isfinite(lower) and enough > 0:
            part = log(lower / (target - _GOAL / 2)) / log(lower / enough)
        middle = low * (high / low) ** min(max(part, 0.01), 0.99)
        tried = spent(middle)
        if tried <= target:
            high, enough = middle, tried
        else:
            low, lower = middle, tried
    return high
