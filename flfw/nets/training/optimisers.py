"""Optimisers of local training on named tensors: SGD and Adam.

``torch.optim`` has the same, but its import costs every client process 150 MB and four seconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import Literal, final

import torch
from torch import Tensor, nn

from flfw.bounds import BoundedSettings, NonNegativeFloat, ShareBelowOne
from flfw.nets import Tensors
from flfw.nets.training.local_steps import LocalSteps

_EPSILON = 1e-8


class Optimiser(ABC):
    """Optimiser of parameters by their gradients, with a state as long as the object exists."""

    @abstractmethod
    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Change the parameters in place; gradients may be overwritten."""


class StatefulOptimiser(Optimiser, ABC):
    """Optimiser with a state that can be stored, so that another optimiser continues from it."""

    @abstractmethod
    def memory(self, parameters: Mapping[str, Tensor]) -> Tensors:
        """Return the state tensors for these parameters, by name, not copied: writing into them changes the state.

        Before the first step all are zero.
        """

    @torch.no_grad()
    def recall(self, parameters: Mapping[str, Tensor], remembered: Mapping[str, Tensor]) -> None:
        """Continue from a stored state for the same parameters; an empty state means a fresh start."""
        for name, value in self.memory(parameters).items() if remembered else ():
            value.copy_(remembered[name])


@dataclass(frozen=True)
class LocalTraining(BoundedSettings):
    """Hyper-parameters of local training; the defaults are from HyperFL's comparison."""

    optimiser: Literal["sgd", "adam"] = "sgd"  # adam has betas 0.9 and 0.999
    momentum: ShareBelowOne = 0.5  # for sgd
    weight_decay: NonNegativeFloat = 5e-4  # multiple of the parameter added to its gradient

    def optimiser_at(self, lr: float) -> StatefulOptimiser:
        """Return a fresh optimiser of step size ``lr`` > 0."""
        if self.optimiser == "adam":
            return Adam(lr, self.weight_decay)
        return SGD(lr, self.momentum, self.weight_decay)

    def steps_at(self, lr: float, steps: int) -> LocalSteps | None:
        """Return the attacker's model of local training: ``steps`` of a fresh optimiser, all on the same examples."""
        momentum = self.momentum if self.optimiser == "sgd" else 0.0
        return LocalSteps(lr, steps, self.optimiser, momentum, self.weight_decay)


@dataclass(frozen=True)
class PersistentTraining(LocalTraining):
    """Local training with an optimiser state that may be kept between rounds."""

    lasting: bool = False  # whether a client keeps its optimiser state; False: each round starts with a fresh one

    def steps_at(self, lr: float, steps: int) -> LocalSteps | None:
        """Return None with a lasting optimiser, as only the client knows its state."""
        return None if self.lasting else super().steps_at(lr, steps)


class PlainSGD(StatefulOptimiser, ABC):
    """SGD with momentum and weight decay, the same arithmetic as ``torch.optim.SGD``; velocities start at 0.

    Args:
        lr: step size, > 0.
        momentum: in [0, 1).
        weight_decay: multiple of the parameter added to its gradient.
    """

    def __init__(self, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._velocity: Tensors = {}

    def memory(self, parameters: Mapping[str, Tensor]) -> Tensors:
        """Return the velocities; an empty dictionary without momentum."""
        moved = parameters if self.momentum else {}
        for name, value in moved.items():
            if name not in self._velocity:
                self._velocity[name] = torch.zeros_like(value.detach())
        return {f"velocity/{name}": self._velocity[name] for name in moved}


@final
class SGD(PlainSGD):
    """SGD parameter by parameter: the first gradient becomes the velocity, without a copy."""

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
class FusedSGD(PlainSGD):
    """SGD in one operation on all parameters, for large ones: as `SGD` but for rounding."""

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Change the parameters in place; gradients may be overwritten."""
        torch.ops.aten._fused_sgd_(
            list(parameters.values()),
            [gradients[name].contiguous() for name in parameters],
            list(self.memory(parameters).values()),
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )


@final
class Adam(StatefulOptimiser):
    """Adam (Kingma and Ba, ICLR 2015), weight decay in the gradient; the same arithmetic as ``torch.optim.Adam``.

    Args:
        lr: step size, > 0.
        weight_decay: multiple of the parameter added to its gradient.
        betas: decay rates of the mean gradient and of the mean square, in [0, 1).
    """

    def __init__(self, lr: float, weight_decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.lr, self.weight_decay, self.betas = lr, weight_decay, betas
        self._mean: Tensors = {}
        self._square: Tensors = {}
        self._steps: Tensors = {}

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Change the parameters in place; gradients may be overwritten."""
        self._begin(parameters)
        for name in parameters:
            self._steps[name] += 1
        torch.ops.aten._fused_adam_(  # one call for all tensors, the same as in torch.optim.Adam(fused=True)
            list(parameters.values()),
            [gradients[name].contiguous() for name in parameters],
            [self._mean[name] for name in parameters],
            [self._square[name] for name in parameters],
            [],
            [self._steps[name] for name in parameters],
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=_EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def memory(self, parameters: Mapping[str, Tensor]) -> Tensors:
        """Return the means of the gradients and of their squares, and the numbers of steps."""
        self._begin(parameters)
        kinds = {"mean": self._mean, "square": self._square, "steps": self._steps}
        return {f"{kind}/{name}": state[name] for kind, state in kinds.items() for name in parameters}

    def _begin(self, parameters: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            if name not in self._steps:
                self._mean[name], self._square[name] = (torch.zeros_like(parameter.detach()) for _ in range(2))
                self._steps[name] = torch.zeros((), device=parameter.device)


def clip_norm(gradients: Tensors, bound: float) -> Tensors:
    """Scale the gradients in place to a joint L2 norm of at most ``bound``."""
    if not gradients:
        return gradients
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients.values()]))
    if norm > bound:
        for gradient in gradients.values():
            gradient.mul_(bound / (norm + 1e-6))
    return gradients


def descend(module: nn.Module, losses: Iterable[Tensor], adam: Adam, steps: int) -> None:
    """Take a step down each loss, with a step size that falls to 0 along half a cosine.

    Args:
        module: its parameters that require gradients are changed in place.
        losses: each is computed after the step before.
        adam: fresh, with the first step size.
        steps: number of losses.
    """
    parameters, first = {name: p for name, p in module.named_parameters() if p.requires_grad}, adam.lr
    for done, loss in enumerate(losses):
        adam.lr = first * (1 + cos(pi * done / steps)) / 2
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        adam.step(parameters, dict(zip(parameters, gradients, strict=True)))


def loss_and_grad(loss: Tensor, parameters: Mapping[str, Tensor]) -> tuple[float, Tensors]:
    """Return a mean loss as a number, and its gradient by parameter."""
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return float(loss.detach()), dict(zip(parameters, gradients, strict=True))
