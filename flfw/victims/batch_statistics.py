"""BatchNorm as in training, by the statistics of the batch: for attackers of a client's gradient.

A client's training normalises by the mean and the variance of the batch at hand, so that its gradient depends on them.
The running statistics serve evaluation alone; where they are sent, an attacker may know them beside.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from typing import final

from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.nets.backbones.freezing import is_frozen
from flfw.victims.victim import VictimModel

_RUNNING = ("running_mean", "running_var")


@final
class BatchStatistics(nn.Module):
    """Stands in for a BatchNorm layer: the same gamma and beta by the same names, and the statistics of each batch.

    Nothing is written, so that it is fit for vmap.

    Args:
        layer: to stand in for.
        held: whether its running statistics are in the ``state_dict``; else no attacker searches for them.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, layer: _BatchNorm, held: bool) -> None:
        super().__init__()
        self.register_parameter("weight", layer.weight)  # None where a hypernetwork generates it
        self.register_parameter("bias", layer.bias)
        for name in _RUNNING:
            self.register_buffer(name, getattr(layer, name), persistent=held)
        self.eps, self.momentum = layer.eps, layer.momentum

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, ...); a single number a channel, which has no deviation, by the running statistics."""
        if x.numel() > x.shape[1]:
            return batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        zeros = x.new_zeros(x.shape[1])
        mean, var = (zeros, zeros + 1) if self.running_mean is None else (self.running_mean, self.running_var)
        return batch_norm(x, mean, var, self.weight, self.bias, training=False, eps=self.eps)


def normalising_by_batch(model: nn.Module) -> nn.Module:
    """Copy a model, with `BatchStatistics` in place of each BatchNorm layer that keeps statistics in training."""
    copy = deepcopy(model)
    _replace(copy, ())
    return copy


def normalise_by_batch(victim: VictimModel) -> None:
    """Put `BatchStatistics` in place of each BatchNorm layer of a victim's own model, as a client's training has it.

    Running statistics that the attacker holds stay known. Those that it does not hold need not be searched for.
    """
    for layer in _replace(victim.model, victim.known):
        for name in _RUNNING:
            victim.unknown.pop(f"{layer}.{name}", None)


def _replace(model: nn.Module, known: Collection[str]) -> list[str]:
    """Replace the layers, and return their names; ``known`` names the tensors that the attacker holds."""
    layers = []
    for path, module in list(model.named_modules()):
        for place, child in list(module.named_children()):
            if isinstance(child, _BatchNorm) and not is_frozen(child):
                layers.append(f"{path}.{place}".lstrip("."))
                setattr(module, place, BatchStatistics(child, held=f"{layers[-1]}.{_RUNNING[0]}" in known))
    return layers
