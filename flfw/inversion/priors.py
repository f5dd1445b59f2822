"""Priors: scores of how unlike data a guess is, or steps towards likelier data; most need no observation.

One has statistics of BatchNorm's inputs: those of a guess's batch beside those of the client's.

    sum over layers of  w_l ( ||mean_l(x) - mu_l|| + ||var_l(x) - var_l|| )

(Yin et al., "See through Gradients", CVPR 2021, equation 10). mu and var are a layer's running statistics, of all data
that it saw in training, or the very statistics of the client's batch, where a message reveals them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.inversion.client_models.batch_statistics import BatchStatistics
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.backbones.freezing import is_frozen
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


_MEAN, _VARIANCE = "batch_norm.mean.", "batch_norm.variance."
_TINY = 1e-30  # keeps the gradient of a norm finite where the norm is 0


def received_statistics(model: nn.Module, received: Mapping[str, Tensor]) -> Tensors:
    """Return the running statistics of the layers of which a client received them, named for `LayerStatistics`."""
    result: Tensors = {}
    for name, _ in _layers(model):
        mean, variance = received.get(f"{name}.running_mean"), received.get(f"{name}.running_var")
        if mean is not None and variance is not None:
            result |= {_MEAN + name: mean, _VARIANCE + name: variance}
    return result


def sent_statistics(model: nn.Module, received: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> Tensors:
    """Compute the statistics of the batch behind one local step from the running ones before and after it.

    A step moves them to ``(1 - momentum) before + momentum batch``. So float32 running statistics give the batch's to
    about 1e-6 of their size. A layer with a cumulative mean (a momentum of None) is left out.

    Args:
        model: the client's network.
        received: tensors that the client received, by name.
        sent: tensors that it sent after one step, by name.

    Returns:
        Means and unbiased variances, named for `LayerStatistics`; only of layers whose running statistics were sent.
    """
    before = received_statistics(model, received)
    after = received_statistics(model, sent)
    momenta = {name: layer.momentum for name, layer in _layers(model)}
    result: Tensors = {}
    for name in before.keys() & after.keys():
        momentum = momenta[name.removeprefix(_MEAN).removeprefix(_VARIANCE)]
        if momentum:
            result[name] = before[name] + (after[name] - before[name]) / momentum
    return {name: result[name] for name in before if name in result}


@final
@dataclass(frozen=True)
class LayerStatistics:
    """Prior of a guess by its batch's statistics at BatchNorm's inputs: a `flfw.inversion.priors.ModelPrior`.

    The constants of a search hold mu and var, as `received_statistics` and `sent_statistics` name them. Variances are
    unbiased, as running ones are. Layers without constants are left out, and so is one with a single number a channel,
    which has no variance.

    Attributes:
        weight: weight of each layer, >= 0.
        first: weight of the network's first layer over that of the others, >= 0.
    """

    weight: float
    first: float = 1.0

    def __call__(self, victim: VictimModel, x: Tensor, unknown: Tensors, constants: Tensors) -> Tensor:
        """Compute the weighted sum for network inputs (B, ...)."""
        total = x.new_zeros(())
        if not any(name.startswith(_MEAN) for name in constants):
            return total
        statistics = batch_statistics(victim.model, {**victim.known, **unknown}, x)
        for index, (name, (mean, variance)) in enumerate(statistics.items()):
            if _MEAN + name in constants:
                off = _length(mean - constants[_MEAN + name]) + _length(variance - constants[_VARIANCE + name])
                total = total + self.weight * (self.first if index == 0 else 1.0) * off
        return total


def batch_statistics(model: nn.Module, weights: Tensors, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute mean and unbiased variance of each BatchNorm layer's inputs, by the layer's name, in forward order.

    Args:
        model: the network.
        weights: its tensors by name.
        x: network inputs (B, ...).

    Returns:
        (C,) each; no entry for a layer with a single number a channel.
    """
    result: dict[str, tuple[Tensor, Tensor]] = {}

    def keeping(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            by_channel = inputs[0].transpose(0, 1).flatten(1)
            if by_channel.shape[1] > 1:
                result[name] = by_channel.mean(1), by_channel.var(1)

        return keep

    hooks = [layer.register_forward_pre_hook(keeping(name)) for name, layer in _layers(model)]
    try:
        functional_call(model, weights, (x,))
    finally:
        for hook in hooks:
            hook.remove()
    return result


def _layers(model: nn.Module) -> list[tuple[str, _BatchNorm | BatchStatistics]]:
    """List the layers that normalise by the batch in training, by name."""
    normalising = [(n, m) for n, m in model.named_modules() if isinstance(m, _BatchNorm | BatchStatistics)]
    return [(n, m) for n, m in normalising if isinstance(m, BatchStatistics) or not is_frozen(m)]


def _length(value: Tensor) -> Tensor:
    return (value.square().sum() + _TINY).sqrt()
