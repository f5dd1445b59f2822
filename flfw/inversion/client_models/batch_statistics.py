"""Normalisation as in training, by the statistics of the data at hand: for attackers of a client's gradient.

A client's training normalises by the mean and the variance of the batch (BatchNorm) or of each example's own maps
(InstanceNorm), so that its gradient depends on them. The running statistics serve evaluation alone; where they are
sent, an attacker may know them beside.
"""

from abc import ABC
from collections.abc import Collection
from copy import deepcopy
from typing import final

from torch import Tensor, nn
from torch.nn.functional import batch_norm, instance_norm
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.backbones.freezing import is_frozen

_RUNNING = ("running_mean", "running_var")


class TrainingStatistics(nn.Module, ABC):
    """Stands in for a normalisation layer: the same gamma and beta by the same names, and the statistics of training.

    Nothing is written, so that it is fit for vmap.

    Args:
        layer: to stand in for.
        held: whether its running statistics are in the ``state_dict``; else no attacker searches for them.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, layer: _NormBase, held: bool) -> None:
        super().__init__()
        self.register_parameter("weight", layer.weight)  # None where a hypernetwork generates it
        self.register_parameter("bias", layer.bias)
        for name in _RUNNING:
            self.register_buffer(name, getattr(layer, name), persistent=held)
        self.eps, self.momentum = layer.eps, layer.momentum


@final
class BatchStatistics(TrainingStatistics):
    """BatchNorm by the statistics of each batch."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, ...); a single number a channel, which has no deviation, by the running statistics."""
        if x.numel() > x.shape[1]:
            return batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        zeros = x.new_zeros(x.shape[1])
        mean, var = (zeros, zeros + 1) if self.running_mean is None else (self.running_mean, self.running_var)
        return batch_norm(x, mean, var, self.weight, self.bias, training=False, eps=self.eps)


@final
class InstanceStatistics(TrainingStatistics):
    """InstanceNorm by the statistics of each example."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, ...)."""
        return instance_norm(x, None, None, self.weight, self.bias, use_input_stats=True, eps=self.eps)


def normalising_by_batch(model: nn.Module) -> nn.Module:
    """Copy a model, with `BatchStatistics` in place of each BatchNorm layer that keeps statistics in training."""
    copy = deepcopy(model)
    _replace(copy, (), _BatchNorm, BatchStatistics)
    return copy


def normalise_by_batch(victim: VictimModel) -> None:
    """Put `BatchStatistics` in place of each BatchNorm layer of a victim's own model, as a client's training has it.

    Running statistics that the attacker holds stay known. Those that it does not hold need not be searched for.
    """
    _forget(victim, _replace(victim.model, victim.known, _BatchNorm, BatchStatistics))


def normalise_by_instance(victim: VictimModel) -> None:
    """Put `InstanceStatistics` in place of each InstanceNorm layer with running statistics, as in a client's training.

    Without running statistics such a layer does the same in training and in evaluation. Known ones stay known.
    """
    _forget(victim, _replace(victim.model, victim.known, _InstanceNorm, InstanceStatistics))


def _forget(victim: VictimModel, layers: list[str]) -> None:
    """Drop the running statistics of replaced layers from the tensors to search for."""
    for layer in layers:
        for name in _RUNNING:
            victim.unknown.pop(f"{layer}.{name}", None)


def _replace(
    model: nn.Module, known: Collection[str], kind: type[_NormBase], by: type[BatchStatistics | InstanceStatistics]
) -> list[str]:
    """Replace the layers of a kind, and return their names; ``known`` names the tensors that the attacker holds."""
    layers = []
    for path, module in list(model.named_modules()):
        for place, child in list(module.named_children()):
            running = child.running_mean is not None if isinstance(child, _InstanceNorm) else True
            if isinstance(child, kind) and running and not is_frozen(child):
                layers.append(f"{path}.{place}".lstrip("."))
                setattr(module, place, by(child, held=f"{layers[-1]}.{_RUNNING[0]}" in known))
    return layers
