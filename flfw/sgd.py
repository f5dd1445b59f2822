"""Stochastic gradient descent on named tensors.

``torch.optim`` would do, but importing it costs every client process 150 MB and four seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flfw.experiment import require
from flfw.nets import Tensors


@dataclass(frozen=True)
class LocalSGD:
    """Hyper-parameters of local training; the defaults are those of HyperFL's comparison."""

    momentum: float = 0.5  # in [0, 1)
    weight_decay: float = 5e-4  # >= 0

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "0 <= momentum < 1", momentum=self.momentum)
        require(self.weight_decay >= 0, "weight_decay >= 0", weight_decay=self.weight_decay)


class SGD:
    """SGD with momentum and weight decay, the same arithmetic as ``torch.optim.SGD``.

    Args:
        lr: step size, > 0.
        momentum: in [0, 1).
        weight_decay: multiple of the parameter added to its gradient.
    """

    def __init__(self, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._velocity: Tensors = {}

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Change the parameters in place; gradients may be overwritten."""
        for name, parameter in parameters.items():
            gradient = gradients[name]
            if self.weight_decay:
                gradient = gradient.add_(parameter, alpha=self.weight_decay)
            if self.momentum:
                if name in self._velocity:
                    gradient = self._velocity[name].mul_(self.momentum).add_(gradient)
                else:
                    self._velocity[name] = gradient
            parameter.sub_(gradient, alpha=self.lr)


def clip_norm(gradients: Tensors, bound: float) -> Tensors:
    """Scale the gradients, in place, so that their joint L2 norm is at most ``bound``."""
    if not gradients:
        return gradients
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients.values()]))
    if norm > bound:
        for gradient in gradients.values():
            gradient.mul_(bound / (norm + 1e-6))
    return gradients
