"""Privacy filter: whether mechanisms that an adversary chooses one after the other keep an epsilon fixed beforehand.

A server chooses each message after it has seen all earlier answers. Then the best accountant or the best Renyi order
must not be picked afterwards for the whole delta. These measures hold for such choices, as each is one number that adds
up, with a limit fixed beforehand:

    Gaussian   the sum of 1 / z^2, without credit for sampling (Smith and Thakurta, "Fully adaptive composition for
               Gaussian differential privacy", 2022; Koskela, Tobaben and Honkela, ICLR 2023)
    Renyi      the divergence at one order, with credit for sampling (Feldman and Zrnic, "Individual privacy accounting
               via a Renyi filter", NeurIPS 2021), at a few orders that follow from the limit alone

The first gets half of delta, and the orders share the other half. What keeps at least one of them all along keeps
(epsilon, delta): part the transcripts by the first measure that each keeps, and add up.
"""

from collections.abc import Sequence
from math import inf, log

from flfw.privacy.accountants import LARGEST, LEAST, compute_epsilon, renyi_divergence
from flfw.privacy.mechanism import GaussianEvent, Mechanism

_SHARES = (1.0, 0.8, 0.65, 0.5)  # of the best order without sampling; with it, higher orders diverge
_ORDERS = (*(1 + step / 10 for step in range(1, 100)), *map(float, range(11, 64)), *map(float, range(64, 1025, 32)))


def spent(units: Sequence[tuple[Mechanism, int]], limit: float, delta: float) -> float:
    """Return the epsilon of mechanisms so far: at most ``limit`` exactly if the filter lets them happen.

    Args:
        units: the mechanisms in turn, each with the number of clipped vectors of one unit in it, as for
            `flfw.privacy.mechanism.Mechanism.phase`.
        limit: the epsilon that is not to be exceeded, > 0, fixed before the first mechanism.
        delta: probability in (0, 1) with which it may fail.
    """
    half = delta / 2
    plain = compute_epsilon(
        [mechanism.phase(copies, amplified=False) for mechanism, copies in units], half, "prv"
    ).epsilon
    if not any(mechanism.amplified for mechanism, _ in units):
        return plain
    parts, share = [mechanism.phase(copies) for mechanism, copies in units], half / len(_SHARES)
    best = order(limit, share)
    return min(plain, *(_at_order(parts, 1 + (best - 1) * part, share) for part in _SHARES))


def order(limit: float, delta: float) -> float:
    """Return the Renyi order at which Gaussian noise without sampling can be used most often within a limit.

    >>> order(2.0, 1e-5)
    10.2
    """
    return max(_ORDERS, key=lambda alpha: (limit - _offset(alpha, delta)) / alpha)


def renyi(parts: Sequence[GaussianEvent], alpha: float) -> float:
    """Compute the Renyi divergence of composed phases at one order > 1; inf: there is no bound."""
    used = [part for part in parts if part.steps]
    if any(part.noise_multiplier < LEAST for part in used):
        return inf
    return sum(
        part.steps * renyi_divergence(min(part.noise_multiplier, LARGEST), part.sampling_rate, alpha) for part in used
    )


def _at_order(parts: Sequence[GaussianEvent], alpha: float, delta: float) -> float:
    divergence = renyi(parts, alpha)
    return inf if divergence == inf else max(0.0, divergence + _offset(alpha, delta))


def _offset(alpha: float, delta: float) -> float:
    """Return epsilon less the divergence of an order: Balle et al., AISTATS 2020, theorem 21."""
    return log((alpha - 1) / alpha) - (log(delta) + log(alpha)) / (alpha - 1)
