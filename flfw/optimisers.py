"""Local training's steps on named tensors: SGD and Adam.

``torch.optim`` would do, but importing it costs every client process 150 MB and four seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from flfw.experiment import require
from flfw.inversion.local_steps import LocalSteps
from flfw.nets import Tensors

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class Optimiser(ABC):
    """Changes parameters by their gradients; remembers what it needs for as long as it lives."""

    @abstractmethod
    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Change the parameters in place; gradients may be overwritten."""


@dataclass(frozen=True)
class LocalTraining:
    """Hyper-parameters of local training; the defaults are those of HyperFL's comparison."""

    optimiser: Literal["sgd", "adam"] = "sgd"  # adam: with betas 0.9 and 0.999, afresh in every round
    momentum: float = 0.5  # of sgd, in [0, 1); starts from zero velocity in every round
    weight_decay: float = 5e-4  # multiple of the parameter added to its gradient, >= 0

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "0 <= momentum < 1", momentum=self.momentum)
        require(self.weight_decay >= 0, "weight_decay >= 0", weight_decay=self.weight_decay)

    def optimiser_at(self, lr: float) -> Optimiser:
        """A fresh optimiser of step size ``lr`` > 0."""
        if self.optimiser == "adam":
            return Adam(lr, self.weight_decay)
        return SGD(lr, self.momentum, self.weight_decay)

    def steps_at(self, lr: float, steps: int) -> LocalSteps:
        """The same for an attacker: so many steps of the optimiser, all of them on the same examples."""
        momentum = self.momentum if self.optimiser == "sgd" else 0.0
        return LocalSteps(lr, steps, self.optimiser, momentum, self.weight_decay)


@final
class SGD(Optimiser):
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


@final
class Adam(Optimiser):
    """Adam (Kingma and Ba, ICLR 2015), weight decay in the gradient; the same arithmetic as ``torch.optim.Adam``.

    Args:
        lr: step size, > 0.
        weight_decay: multiple of the parameter added to its gradient.
    """

    def __init__(self, lr: float, weight_decay: float = 0.0) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self._steps = 0
        self._mean: Tensors = {}
        self._square: Tensors = {}

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Change the parameters in place; gradients may be overwritten."""
        self._steps += 1
        unbiased, unbiased_square = (1 - beta**self._steps for beta in _BETAS)
        for name, parameter in parameters.items():
            gradient = gradients[name]
            if self.weight_decay:
                gradient = gradient.add_(parameter, alpha=self.weight_decay)
            mean = self._mean.setdefault(name, torch.zeros_like(parameter))
            square = self._square.setdefault(name, torch.zeros_like(parameter))
            mean.lerp_(gradient, 1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
            scale = (square / unbiased_square).sqrt_().add_(_EPSILON)
            parameter.addcdiv_(mean, scale, value=-self.lr / unbiased)


def clip_norm(gradients: Tensors, bound: float) -> Tensors:
    """Scale the gradients, in place, so that their joint L2 norm is at most ``bound``."""
    if not gradients:
        return gradients
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients.values()]))
    if norm > bound:
        for gradient in gradients.values():
            gradient.mul_(bound / (norm + 1e-6))
    return gradients
