"""Epsilon of passes in which each example takes part in one step, by its own uniform choice ("balls and bins").

Chua et al., "Balls-and-Bins Sampling for DP-SGD", AISTATS 2025, and Feldman and Shenfeld, "Privacy Amplification by
Random Allocation", NeurIPS 2025: a pass of t steps, which may depend on those before, is dominated by t numbers from
N(0, z^2), against the same with 1 added to one of them, uniformly chosen. The privacy loss of that pair is computed by
the authors' package PLD_accounting (Feldman and Shenfeld, "Efficient Privacy Loss Accounting for Subsampling and Random
Allocation", ICML 2026), rounded upwards; passes compose as their losses add up.

More steps in a pass give a smaller epsilon: noise appended to the t numbers, and all shuffled, is the pair of t + 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from flfw.errors import InputError
from flfw.privacy.mechanism import GaussianEvent

ALLOCATED = (
    "Passes in which each example chooses a step are counted by PLD_accounting, whichever accountant is asked for."
)
"""Note on such a bound."""

_FINEST, _COARSEST, _SHARE = 1e-4, 0.05, 1e-3  # mesh of the losses: limits, and share of the epsilon that is expected
_FAR = 0.2  # share of the expected epsilon: below it, the mesh was far too coarse


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
        passes: multiplier z > 0, steps t >= 2 of a pass, and number of such passes.
        delta: probability in (0, 1).
        without: the epsilon without credit for the choice, > 0: it decides the first mesh.

    Raises:
        InputError: PLD_accounting is not installed.
    """
    bound = _epsilon(tuple(passes), delta, _mesh(without))
    if 0 < bound < _FAR * without and _mesh(bound) < _mesh(without):
        bound = min(bound, _epsilon(tuple(passes), delta, _mesh(bound)))
    return bound


def _mesh(epsilon: float) -> float:
    return min(max(_SHARE * epsilon, _FINEST), _COARSEST)


@lru_cache(maxsize=256)
def _epsilon(passes: tuple[tuple[float, int, int], ...], delta: float, mesh: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that numba would be faster, and numpy's of infinite losses
        package = _package()
        config = package.AllocationSchemeConfig(
            loss_discretization=mesh, convolution_method=package.ConvolutionMethod.FFT
        )
        whole: Any = None
        try:
            for multiplier, steps, count in passes:
                params = package.types.PrivacyParams(sigma=multiplier, num_steps=steps, num_epochs=count)
                losses = package.gaussian_allocation_pld(params=params, config=config)
                whole = losses if whole is None else whole.compose(losses)
            return float(whole.get_epsilon_for_delta(delta))
        except (ValueError, ArithmeticError, RuntimeError, MemoryError):
            return float("inf")  # too coarse a mesh, or too wide a range: no bound from here


def _package() -> Any:
    try:
        return import_module("PLD_accounting")
    except ImportError as error:
        raise InputError("Expected the package PLD_accounting, got none: pip install PLD_accounting.") from error
