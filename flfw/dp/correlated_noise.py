"""Noise of a trusted server that is correlated over rounds, by a banded matrix; see `flfw.privacy.banded`.

A round computes

    y_t = c_0 x_t + c_1 x_(t-1) + ... + z_t                  with noise, on the grid where the source is secure
    s_t = (y_t - c_1 s_(t-1) - c_2 s_(t-2) - ...) / c_0      what the server uses in place of the sum x_t

Only the first line has data in it, and its noise is independent of all other rounds': rounding y_t to a grid is
post-processing, as for any secure noise. The second line is computed from y_1, ..., y_t alone, by rounding errors and
all, so it is post-processing too. (To draw z_t, and to add C^-1 z to x_t, is equal on paper. With a computer's
numbers, the digits of x_t would be left in the sum.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flfw.nets.net import Tensors
from flfw.training.gaussian import GaussianNoise

_SUM, _RELEASED = "sum", "released"


def correlated(
    sums: Tensors, past: Tensors, coefficients: Sequence[float], deviation: float, noise: GaussianNoise
) -> tuple[Tensors, Tensors]:
    """Return a round's s_t, and the past for the next round.

    Args:
        sums: x_t by name, float64; a client changes them by a bounded length.
        past: what the round before returned; empty before the first round. It holds sums without noise, so it stays
            with the server.
        coefficients: c_0 > 0, ..., c_(b-1).
        deviation: of z_t in each entry, >= 0.
        noise: source of z_t.
    """
    first, *later = coefficients
    mixed, known = ({name: torch.zeros_like(value) for name, value in sums.items()} for _ in range(2))
    for ago, coefficient in enumerate(later, 1):
        for name in sums:
            if f"{_SUM}.{ago}.{name}" in past:
                mixed[name] += coefficient * past[f"{_SUM}.{ago}.{name}"]
                known[name] += coefficient * past[f"{_RELEASED}.{ago}.{name}"]
    noisy = noise.added({name: value + first * sums[name] for name, value in mixed.items()}, deviation)
    released = {name: (value - known[name]) / first for name, value in noisy.items()}
    return released, _shifted(past, sums, released, len(later))


def _shifted(past: Tensors, sums: Tensors, released: Tensors, most: int) -> Tensors:
    """Return the past of the next round, in which everything is a round older, up to ``most`` rounds."""
    moved: Tensors = {}
    for kind, latest in ((_SUM, sums), (_RELEASED, released)):
        for name, value in latest.items():
            for ago in range(most, 1, -1):
                if (before := past.get(f"{kind}.{ago - 1}.{name}")) is not None:
                    moved[f"{kind}.{ago}.{name}"] = before
            if most:
                moved[f"{kind}.1.{name}"] = value
    return moved
