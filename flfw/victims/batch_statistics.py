"""BatchNorm as in training, by the statistics of the batch: for attackers without the running ones."""

from __future__ import annotations

from copy import deepcopy
from typing import final

from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm


@final
class BatchStatistics(nn.Module):
    """Stands in for a BatchNorm layer: the same gamma and beta by the same names, and no running statistics.

    Args:
        layer: to stand in for.
    """

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, ...); a single number a channel, which has no deviation, as fresh statistics would."""
        if x.numel() > x.shape[1]:
            return batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        zeros = x.new_zeros(x.shape[1])
        return batch_norm(x, zeros, zeros + 1, self.weight, self.bias, training=False, eps=self.eps)


def normalising_by_batch(model: nn.Module) -> nn.Module:
    """Copy a model, with `BatchStatistics` in place of each BatchNorm layer."""
    copy = deepcopy(model)
    for module in copy.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(module, name, BatchStatistics(child))
    return copy
