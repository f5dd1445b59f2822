"""Priors: scores of how unlike data a guess is, without an observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Prior: TypeAlias = Callable[[Tensor], Tensor]
"""Function of a guess (B, ...) in normalised units to a scalar; smaller is more likely."""


def total_variation(x: Tensor) -> Tensor:
    """Compute the mean absolute difference of vertical plus of horizontal neighbours (..., H, W); 0 for rows (..., d).

    >>> import torch
    >>> float(total_variation(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])))
    1.0
    """
    if x.dim() < 3:
        return x.new_zeros(())
    differences = (x[..., 1:, :] - x[..., :-1, :]), (x[..., 1:] - x[..., :-1])
    means = [each.abs().mean() for each in differences if each.numel()]  # an image may be one pixel wide
    return torch.stack(means).sum() if means else x.new_zeros(())


def neighbour_differences(scale: float) -> Prior:
    """Return the negative log of a Laplace prior on neighbours' differences, up to a constant, in nats.

    Args:
        scale: scale of a difference, in deviations of the normalised input, > 0.

    >>> import torch
    >>> float(neighbour_differences(0.5)(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])))
    4.0
    """

    def surprise(x: Tensor) -> Tensor:
        if x.dim() < 3:
            return x.new_zeros(())
        return ((x[..., 1:, :] - x[..., :-1, :]).abs().sum() + (x[..., 1:] - x[..., :-1]).abs().sum()) / scale

    return surprise


def energy(x: Tensor) -> Tensor:
    """Compute the mean square of a guess: GradInversion's L2 prior (Yin et al., CVPR 2021), a Gaussian around the mean.

    >>> import torch
    >>> float(energy(torch.tensor([1.0, -3.0])))
    5.0
    """
    return (x**2).mean()


def none(x: Tensor) -> Tensor:
    """Return 0: every guess is equally likely."""
    return x.new_zeros(())


def weighted(*parts: tuple[float, Prior]) -> Prior:
    """Return the sum of priors, each times its weight; priors of weight 0 are left out."""
    used = [(weight, prior) for weight, prior in parts if weight]

    def total(x: Tensor) -> Tensor:
        result = x.new_zeros(())
        for weight, prior in used:
            result = result + weight * prior(x)
        return result

    return total
