"""Accountants: the epsilon of composed Gaussian mechanisms, with Poisson, balls-and-bins or no sampling.

    prv      Opacus' composition of privacy loss distributions (Gopi, Lee and Wutschitz, NeurIPS 2021): the tightest.
             It reports an upper bound that is about 0.01 above its estimate: where that of rdp is smaller, it is taken
             instead, as both hold at the same delta. If no phase is sampled, the sum of Gaussian losses is one
             Gaussian, and its epsilon is computed exactly (Balle and Wang, ICML 2018).
    rdp      Opacus' Renyi divergences (Mironov, Talwar and Zhang, 2019) and conversion (Balle et al., AISTATS 2020).
    moments  the same divergences with the conversion of 2017, min over a of RDP(a) + log(1/delta) / (a - 1), and the
             orders of that time: valid, looser, and reported in many papers.

All three are upper bounds for one unit more or less, for any number of adaptively chosen steps. Opacus' PRV computes
one direction, a unit less; that this is the worse one is proved for Renyi divergences only. The same input gives the
same number on every machine, as the size of a computation is limited by its grid points and not by time.

Balls and bins: each example takes part in one step of a pass, by its own uniform choice. Chua et al., "Balls-and-Bins
Sampling for DP-SGD", AISTATS 2025, and Feldman and Shenfeld, "Privacy Amplification by Random Allocation", NeurIPS
2025: a pass of t steps, which may depend on those before, is dominated by t numbers from N(0, z^2), against the same
with 1 added to one of them, uniformly chosen. The privacy loss of that pair is computed by the authors' package
PLD_accounting (Feldman and Shenfeld, "Efficient Privacy Loss Accounting for Subsampling and Random Allocation", ICML
2026), rounded upwards; passes compose as their losses add up, also with those of answers in which every example takes
part, which are together one Gaussian. More steps in a pass give a smaller epsilon: noise appended to the t numbers, and
all shuffled, is the pair of t + 1. For long passes with little noise the package's bound holds, but is several times
what a simulation gives: at delta 1e-3, z = 1 and t = 200 it is 0.63 for 0.19.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from math import exp, floor, inf, isfinite, log, log2, sqrt
from typing import Any, Literal, TypeAlias, TypeVar, final, get_args

import numpy as np

from flfw.errors import InputError, require
from flfw.privacy.mechanism import GaussianEvent, Mechanisms, gaussian_events

Accountant: TypeAlias = Literal["prv", "rdp", "moments"]
_MOMENTS_ORDERS = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *map(float, range(5, 64)), 128.0, 256.0, 512.0)
_FEW = (1.01, 1.02, 1.05)  # added to Opacus' orders, 1.1 to 63, for very large epsilons
_MANY = (*range(64, 128, 4), *range(128, 256, 16), *range(256, 512, 32), 512, 640, 768, 1000)  # for very small ones
LEAST, LARGEST = 1e-3, 1e6  # multipliers: below the first, epsilon exceeds 500000; above the second, it is cut to that
_POINTS, _REACH = 4e6, 300.0  # limits of a PRV: grid points in total (about 8 s), and range of the privacy loss
_ROUNDING = 1e-9  # share of an epsilon by which divergences of neighbouring orders may be in the wrong order
_ERROR, _ERROR_MOST, _ERROR_SHARE = 0.01, 0.08, 0.005  # error of a PRV: Opacus' default; the largest; share of epsilon
_ALLOCATED = (
    "Passes in which each example chooses a step are counted by PLD_accounting, whichever accountant is asked for."
)
"""Note on such a bound."""

_FINEST, _COARSEST, _SHARE = 1e-4, 0.05, 1e-3  # mesh of the losses: limits, and share of the epsilon that is expected
_FAR, _NEAR = 0.2, 0.8  # shares of the expected epsilon: below one and above the other, the mesh may be too coarse


def merged(parts: Sequence[GaussianEvent], largest: float) -> dict[tuple[float, float, int], int]:
    """Count the steps for each multiplier, at most ``largest``, rate and number of bins."""
    counts: dict[tuple[float, float, int], int] = {}
    for part in parts:
        key = min(part.noise_multiplier, largest), part.sampling_rate, part.bins
        counts[key] = counts.get(key, 0) + part.steps
    return counts


def allocated_epsilon(passes: Sequence[tuple[float, int, int]], delta: float, without: float) -> float:
    """Return an upper bound on epsilon; inf if the package cannot compute it.

    Args:
        passes: multiplier z > 0, steps t of a pass, and number of such passes; t = 1: there is no choice.
        delta: probability in (0, 1).
        without: the epsilon without credit for the choice, > 0: it decides the first mesh.

    Raises:
        InputError: PLD_accounting is not installed.
    """
    bound = _epsilon(tuple(passes), delta, _mesh(without))
    if bound > 0 and not _FAR * without <= bound < _NEAR * without:
        bound = min(bound, _epsilon(tuple(passes), delta, _mesh(min(bound, without / 10))))
    return bound


def _mesh(epsilon: float) -> float:
    return min(max(_SHARE * epsilon, _FINEST), _COARSEST)


@lru_cache(maxsize=256)
def _epsilon(passes: tuple[tuple[float, int, int], ...], delta: float, mesh: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that numba would be faster, and numpy's of infinite losses
        package, gaussian = _package()
        fft, several = package.ConvolutionMethod.FFT, len(passes) > 1
        if several:  # one grid for all losses, to the bit: a power of two is divided exactly
            mesh = 2.0 ** floor(log2(mesh / sum(count for *_, count in passes)))
        whole: Any = None
        try:
            for multiplier, steps, count in passes:
                params = package.types.PrivacyParams(sigma=multiplier, num_steps=steps, num_epochs=count)
                spacing = mesh * count if several else mesh  # of all these passes; it is divided by their number
                config = package.AllocationSchemeConfig(loss_discretization=spacing, convolution_method=fft)
                if steps == 1:
                    losses = gaussian(multiplier / sqrt(count), value_discretization_interval=mesh)
                else:
                    losses = package.gaussian_allocation_pld(params=params, config=config)
                whole = losses if whole is None else whole.compose(losses)
            return float(whole.get_epsilon_for_delta(delta))
        except (ValueError, ArithmeticError, RuntimeError, MemoryError):
            return float("inf")  # too coarse a mesh, or too wide a range: no bound from here


def _package() -> tuple[Any, Any]:
    try:
        losses = import_module("dp_accounting.pld.privacy_loss_distribution")  # which PLD_accounting brings along
        return import_module("PLD_accounting"), losses.from_gaussian_mechanism
    except ImportError as error:
        raise InputError("Expected the package PLD_accounting, got none: pip install PLD_accounting.") from error


@final
@dataclass(frozen=True)
class AccountedEpsilon:
    """An epsilon and the accountant that computed it.

    Attributes:
        epsilon: an upper bound, >= 0; inf: there is none.
        accountant: prv, rdp or moments; pld: that of `flfw.privacy.accountants`; exact: the formula for a Gaussian;
            none: there was nothing to compute.
        notes: sentences on deviations from the requested computation, with reasons.
    """

    epsilon: float
    accountant: str
    notes: tuple[str, ...] = ()


def compute_epsilon(parts: Sequence[GaussianEvent], delta: float, accountant: Accountant = "prv") -> AccountedEpsilon:
    """Compute the epsilon of composed phases.

    Args:
        parts: the phases; their order does not matter.
        delta: probability in (0, 1) with which epsilon may fail; it should be below one over the number of units.
        accountant: name of the accountant. If PRV cannot compute it, or its bound is not the smaller one, RDP takes
            its place and a note gives the reason.

    Raises:
        InputError: delta is out of range, the accountant is unknown, or Opacus is not installed.
    """
    require(0 < delta < 1, "0 < delta < 1", delta=delta)
    require(
        accountant in get_args(Accountant), f"accountant among {', '.join(get_args(Accountant))}", accountant=accountant
    )
    used = [part for part in parts if part.steps > 0]
    if not used:
        return AccountedEpsilon(0.0, "none")
    if min(part.noise_multiplier for part in used) == 0:
        return AccountedEpsilon(inf, "none", ("There is no noise on what is bounded, so no epsilon holds.",))
    if min(part.noise_multiplier for part in used) < LEAST:
        little = f"The noise is less than {LEAST:g} of what one unit can change: an epsilon that large is not computed."
        return AccountedEpsilon(inf, "none", (little,))
    composed = tuple(
        (z, q, steps) for (z, q, _), steps in merged([replace(part, bins=1) for part in used], LARGEST).items()
    )
    by = {"moments": _moments, "rdp": _rdp, "prv": _prv}[accountant]
    without = by(composed, delta)
    counts = merged(used, LARGEST)
    chosen = [(z, t, n) for (z, _, t), n in counts.items() if t > 1]
    if not chosen or min(q for _, q, _ in counts) < 1 or not 0 < without.epsilon < inf:
        return without
    if plain := sum(n / z**2 for (z, _, t), n in counts.items() if t == 1):
        chosen.append((plain**-0.5, 1, 1))
    allocated = allocated_epsilon(chosen, delta, without.epsilon)
    return AccountedEpsilon(allocated, "pld", (_ALLOCATED,)) if allocated < without.epsilon else without


T = TypeVar("T")


def largest(count: Callable[[T, Accountant], float], clients: Sequence[T], accountant: Accountant) -> tuple[T, float]:
    """Return the client with the largest epsilon, and that.

    PRV takes seconds. No epsilon by it is above that by RDP, so it counts only clients whose RDP is above the rest.

    Args:
        count: epsilon of a client by an accountant.
        clients: one or more.
        accountant: as for `compute_epsilon`.
    """
    if accountant != "prv" or len(clients) == 1:
        return max(((client, count(client, accountant)) for client in clients), key=lambda found: found[1])
    maximum, chosen = -inf, clients[0]
    for bound, client in sorted(((count(one, "rdp"), one) for one in clients), key=lambda pair: -pair[0]):
        if bound <= maximum:
            break
        if (found := count(client, "prv")) > maximum:
            maximum, chosen = found, client
    return chosen, maximum


def epsilon(mechanism: Mechanisms, delta: float, accountant: Accountant = "prv") -> float:
    """Compute the epsilon of one clipped example or client under one or several mechanisms: `compute_epsilon` in short.

    >>> from flfw.privacy.mechanism import Mechanism
    >>> epsilon(Mechanism(noise_multiplier=0.0, steps=1), delta=1e-5)
    inf
    >>> round(epsilon(Mechanism(noise_multiplier=6.0, steps=100), delta=1e-5), 2)
    8.0
    """
    return compute_epsilon(gaussian_events(mechanism), delta, accountant).epsilon


Composed: TypeAlias = tuple[tuple[float, float, int], ...]  # multiplier, rate, steps; no pair of the first two twice


@cache
def _opacus() -> tuple[Any, Any, Any]:
    """Import Opacus' analysis of Renyi divergences, its PRV and its RDP accountant when needed: it takes seconds."""
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise InputError("Expected the package opacus, got none: pip install opacus.") from error
    return rdp, PRVAccountant, RDPAccountant


@lru_cache(maxsize=65536)
def renyi_divergence(z: float, q: float, order: float) -> float:
    """Compute the RDP of one step at an order > 1; inf if Opacus' series fails, which only makes the bound looser."""
    module = _opacus()[0]
    try:
        return float(module.compute_rdp(q=q, noise_multiplier=z, steps=1, orders=order))
    except (ValueError, OverflowError):
        return inf


def _divergences(composed: Composed, orders: Sequence[float]) -> np.ndarray:
    return np.array([sum(steps * renyi_divergence(z, q, order) for z, q, steps in composed) for order in orders])


def _moments(composed: Composed, delta: float) -> AccountedEpsilon:
    orders = np.array(_MOMENTS_ORDERS)
    epsilons = _divergences(composed, _MOMENTS_ORDERS) + log(1 / delta) / (orders - 1)
    return AccountedEpsilon(float(epsilons.min()), "moments", _at_the_end(int(epsilons.argmin()), len(orders)))


@cache
def _orders() -> tuple[float, ...]:
    return (*_FEW, *map(float, (*_opacus()[2].DEFAULT_ALPHAS, *_MANY)))


def _rdp(composed: Composed, delta: float) -> AccountedEpsilon:
    module, orders = _opacus()[0], _orders()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)  # a note says it instead
        divergences = _that_matter(composed, orders, delta)
        smallest, best = module.get_privacy_spent(orders=list(orders), rdp=divergences, delta=delta)
    if not isfinite(smallest):
        return AccountedEpsilon(inf, "rdp", ("No order has a finite divergence.",))
    return AccountedEpsilon(max(0.0, float(smallest)), "rdp", _at_the_end(orders.index(float(best)), len(orders)))


def _that_matter(composed: Composed, orders: Sequence[float], delta: float) -> np.ndarray:
    """Compute the divergences at orders that may have the smallest epsilon; inf at the others.

    A divergence does not fall with its order, so one order bounds all higher ones from below. Opacus' series takes
    milliseconds for each order, and few of them are needed.

    Args:
        composed: the mechanisms.
        orders: in ascending order.
        delta: as for `compute_epsilon`.
    """
    at = np.array(orders)
    # What Opacus adds to a divergence for the epsilon.
    beside = np.log((at - 1) / at) - (np.log(delta) + np.log(at)) / (at - 1)
    divergences = np.full(len(at), inf)

    def look(index: int) -> float:
        (divergences[index],) = _divergences(composed, [orders[index]])
        return divergences[index] + beside[index]

    last = len(at) - 1
    best = np.fmin(inf, np.fmin(look(0), look(last)))  # a divergence that is no number counts for nothing
    open_ = [(0, last)]
    while open_:  # in width: the halves of all gaps, then their halves
        low, high = open_.pop(0)
        below = divergences[: low + 1]
        minimum = max(0.0, below[np.isfinite(below)].max(initial=0.0)) + beside[low + 1 : high].min(initial=inf)
        if high - low > 1 and minimum <= best + _ROUNDING * max(1.0, abs(best)):
            middle = (low + high) // 2
            best = np.fmin(best, look(middle))
            open_ += [(low, middle), (middle, high)]
    return divergences


def _at_the_end(index: int, count: int) -> tuple[str, ...]:
    if 0 < index < count - 1:
        return ()
    end = "smallest" if index == 0 else "largest"
    return (f"The accountant's best order is the {end} it has: epsilon holds, but is larger than it need be.",)


def _prv(composed: Composed, delta: float) -> AccountedEpsilon:
    if all(q == 1 for _, q, _ in composed):
        return AccountedEpsilon(_gaussian(sqrt(sum(steps / z**2 for z, _, steps in composed)), delta), "exact")
    rough = _rdp(composed, delta)
    # Opacus spans the loss from -L to L, with a mesh that narrows as the root of the steps.
    reach = _rdp(composed, delta / 4000).epsilon + 3
    points = 2 * reach * len(composed) * sqrt(sum(n for *_, n in composed) * log(12000 / delta) / 2)
    error = _ERROR
    while points / error > _POINTS and 2 * error <= min(_ERROR_MOST, _ERROR_SHARE * rough.epsilon):
        error *= 2
    if reach > _REACH:
        why = "the privacy loss is too large for it"
    elif delta < 1e-12 or delta > 0.5:  # rounding errors would dominate, or the epsilon would be below 0
        why = f"delta={delta:g} is not one it can resolve"
    elif points / error > _POINTS:
        why = f"it would take {points / error:.1g} points"
    else:
        try:
            bound = _prv_epsilon(composed, delta, error)
            if bound <= rough.epsilon:
                coarser = f"The PRV accountant's error, which epsilon includes, is {error:g}, not 0.01."
                return AccountedEpsilon(bound, "prv", () if error == _ERROR else (coarser,))
            why = f"its bound of {bound:.3g}, which includes an error of {error:g}, is the larger one"
        except (RuntimeError, ValueError, ArithmeticError, Warning) as failure:
            why = f"it failed ({' '.join(str(failure).split())[:80].rstrip('.')})"
    return replace(rough, notes=(f"The RDP accountant took the place of PRV: {why}.", *rough.notes))


@lru_cache(maxsize=256)
def _prv_epsilon(composed: Composed, delta: float, error: float) -> float:
    accountant = _opacus()[1]()
    accountant.history = list(composed)
    # A phase without sampling has log(1 - q) = -inf, which is correct; any other warning is a failure.
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)  # about the range, which may be too wide
        bound = float(accountant.get_epsilon(delta, eps_error=error))
    if not isfinite(bound) or bound < 0:
        raise ArithmeticError(f"epsilon={bound}")
    return bound


def _gaussian(mu: float, delta: float) -> float:
    """Compute the epsilon of N(0, 1) against N(mu, 1) at delta = P(-e/mu + mu/2) - exp(e) P(-e/mu - mu/2)."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr  # of which norm.cdf and norm.logcdf are slow covers

    def excess(e: float) -> float:
        other = float(log_ndtr(-e / mu - mu / 2))
        return float(ndtr(-e / mu + mu / 2)) - exp(min(0.0, e + other)) - delta

    above = mu**2 / 2 + mu * sqrt(2 * log(1 / delta))  # the bound of zero-concentrated differential privacy
    if excess(0.0) <= 0:
        return 0.0
    within = 1e-12 * max(1.0, above)
    root: Any = brentq(excess, 0.0, above, xtol=within)
    return float(root) + within
