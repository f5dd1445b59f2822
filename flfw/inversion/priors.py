"""Priors: scores of how unlike data a guess is, or steps towards likelier data, without an observation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.net import Tensors

Prior: TypeAlias = Callable[[Tensor], Tensor]
"""Function of a guess (B, ...) in normalised units to a scalar; smaller is more likely."""

ModelPrior: TypeAlias = Callable[[VictimModel, Tensor, Tensors, Tensors], Tensor]
"""Function of a victim, network inputs (B, ...), a value for each of its unknown tensors, and the constants of the
search, to a scalar; smaller is more likely. It uses the victim's network, but not the observed gradient."""


class Proximal(ABC):
    """Step of guesses towards likelier data, between the steps of a descent: a prior by its effect, without a score.

    Attributes:
        every: steps of the descent for each such step, >= 1.
    """

    every: int

    @abstractmethod
    def bound(self, labels: Tensor | None, rngs: Sequence[torch.Generator]) -> Proximal:
        """Return the step for P problems.

        Args:
            labels: (P, B) of the examples; None: they are searched for.
            rngs: a generator for each problem.
        """

    @abstractmethod
    def moved(self, x: Tensor, done: float) -> Tensor:
        """Return guesses (P, B, ...) in normalised units after the step.

        Args:
            x: the guesses before it; not changed.
            done: share of the descent that is done, in (0, 1].
        """


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


def within(change: Tensor, radius: Tensor) -> Tensor:
    """Return the nearest vectors in the L1 ball around 0 (Duchi et al., ICML 2008).

    Args:
        change: (P, B, ...), a vector for each example.
        radius: (P, B), >= 0.

    >>> within(torch.tensor([[[3.0, -1.5], [0.5, 0.5]]]), torch.tensor([[2.0, 2.0]])).tolist()
    [[[1.75, -0.25], [0.5, 0.5]]]
    """
    sizes = change.flatten(2).abs()
    ordered = sizes.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - radius[..., None]
    count = torch.arange(1, sizes.shape[-1] + 1, device=sizes.device)
    last = (ordered * count > excess).sum(-1, keepdim=True).clamp(min=1)  # entries that stay above 0
    cut = excess.gather(-1, last - 1) / last
    cut = torch.where(sizes.sum(-1, keepdim=True) <= radius[..., None], 0.0, cut)
    return change.sign() * (sizes - cut).clamp(min=0).view_as(change)
