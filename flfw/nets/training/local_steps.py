"""Local steps of a client on named tensors, as differentiable functions of the data."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flfw.bounds import (
    BoundedSettings,
    NonNegativeFinite,
    NonNegativeInt,
    PositiveFinite,
    PositiveFloat,
    PositiveInt,
    ShareBelowOne,
)
from flfw.errors import require
from flfw.nets.net import Tensors

Places: TypeAlias = tuple[int, ...]
"""Indices of a guess's examples in one batch."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Mean loss of a batch, from scores (b, classes) and labels (b,)."""

_CLIP_EPSILON = 1e-6  # added to a norm above the bound, as `flfw.nets.training.optimisers.clip_norm` does


@final
@dataclass(frozen=True)
class LocalSteps(BoundedSettings):
    """Attacker's knowledge of a client's local training; the optimiser starts anew in every round.

    Attributes:
        lr: step size, > 0.
        steps: number of steps, >= 1.
        optimiser: ``adam`` adds weight decay to the gradient, as `flfw.nets.training.optimisers.Adam` does; ``adamw``
            shrinks the weights by it instead (Loshchilov and Hutter, ICLR 2019).
        momentum: momentum of ``sgd``, in [0, 1).
        weight_decay: multiple of the weight, >= 0.
        betas: decay rates of Adam's two means, each in [0, 1).
        epsilon: added to Adam's root, > 0.
        clip: bound of the joint L2 norm of a step's gradient, with that of the proximal term, >= 0; 0: none.
        batch_size: examples in a step, >= 0; the last batch of an epoch may be smaller. 0: all of them in every step.
            Ignored where an ``order`` is given.
        order: for each step the indices of the guess it used. None: unknown. Then index i of the guess is, by
            definition, the i-th example of the first epoch, so that one epoch needs no order. The labels are assumed to
            be in that order, and later epochs to repeat it, although clients shuffle again.
        proximal: weight mu >= 0 of mu/2 ||w - w_0||^2 in the local loss (FedProx: Li et al., MLSys 2020).
        moves: patterns of the parameters that local training changes, shared or not; default all.
        nesterov: whether the momentum is Nesterov's, as `torch.optim.SGD` has it.
        loss: the local loss.
    """

    lr: PositiveFinite
    steps: PositiveInt
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: ShareBelowOne = 0.0
    weight_decay: NonNegativeFinite = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: PositiveFloat = 1e-8
    clip: NonNegativeFinite = 0.0
    batch_size: NonNegativeInt = 0
    order: tuple[Places, ...] | None = None
    proximal: NonNegativeFinite = 0.0
    moves: tuple[str, ...] = ("*",)
    nesterov: bool = False
    loss: Loss = cross_entropy

    def __post_init__(self) -> None:
        super().__post_init__()
        has_velocity = self.optimiser == "sgd"
        require(has_velocity or self.momentum == 0, f"momentum=0 with {self.optimiser}", momentum=self.momentum)
        require(self.momentum > 0 or not self.nesterov, "momentum > 0 with nesterov", momentum=self.momentum)
        require(all(0 <= beta < 1 for beta in self.betas), "betas in [0, 1)", betas=self.betas)
        if self.order is not None:
            require(len(self.order) == self.steps, f"an order of {self.steps} steps", steps=len(self.order))
            require(all(self.order), "an order of batches of at least one example", order=self.order)

    def batches(self, count: int) -> tuple[Places, ...]:
        """Return for each step the indices it uses of ``count`` examples.

        Raises:
            InputError: the order has an index out of range.

        >>> LocalSteps(lr=0.1, steps=4, batch_size=2).batches(5)
        ((0, 1), (2, 3), (4,), (0, 1))
        """
        if self.order is not None:
            for index in (index for places in self.order for index in places):
                require(0 <= index < count, f"places 0 to {count - 1} in the order of {count} examples", place=index)
            return self.order
        size = self.batch_size or count
        epoch = [tuple(range(at, min(at + size, count))) for at in range(0, count, size)]
        return tuple(epoch[step % len(epoch)] for step in range(self.steps))


class _Rule(ABC):
    """Optimiser's directions, step after step, in new tensors; `flfw.nets.training.optimisers` works in place."""

    def __init__(self, local: LocalSteps) -> None:
        self._local = local

    @abstractmethod
    def direction(self, gradients: Tensors, weights: Tensors) -> Tensors:
        """Compute the change subtracted from the weights in a step, over the step size."""

    def _decayed(self, directions: Tensors, weights: Tensors) -> Tensors:
        decay = self._local.weight_decay
        return {n: d + decay * weights[n] for n, d in directions.items()} if decay else directions


@final
class _SGD(_Rule):
    """SGD with momentum, from zero velocity; with Nesterov's, a step looks one ahead."""

    def __init__(self, local: LocalSteps) -> None:
        super().__init__(local)
        self._velocity: Tensors = {}

    def direction(self, gradients: Tensors, weights: Tensors) -> Tensors:
        """Return the velocity, or with Nesterov's momentum its value one step ahead at this gradient."""
        momentum, gradients = self._local.momentum, self._decayed(gradients, weights)
        if momentum and self._velocity:
            self._velocity = {name: momentum * self._velocity[name] + way for name, way in gradients.items()}
        else:
            self._velocity = gradients
        if self._local.nesterov:
            return {name: way + momentum * self._velocity[name] for name, way in gradients.items()}
        return self._velocity


@final
class _Adam(_Rule):
    """Adam with weight decay in the gradient, or decoupled from it (AdamW)."""

    def __init__(self, local: LocalSteps) -> None:
        super().__init__(local)
        self._done = 0
        self._mean: Tensors = {}
        self._square: Tensors = {}

    def direction(self, gradients: Tensors, weights: Tensors) -> Tensors:
        """Compute the mean of the gradients so far over the root of the mean of their squares."""
        beside = self._local.optimiser == "adamw"
        if not beside:
            gradients = self._decayed(gradients, weights)
        self._done += 1
        (beta, beta_square), epsilon = self._local.betas, self._local.epsilon
        unbiased, unbiased_square = 1 - beta**self._done, 1 - beta_square**self._done
        directions = {}
        for name, gradient in gradients.items():
            mean = beta * self._mean.get(name, 0.0) + (1 - beta) * gradient
            square = beta_square * self._square.get(name, 0.0) + (1 - beta_square) * gradient**2
            self._mean[name], self._square[name] = mean, square
            directions[name] = mean / unbiased / (_root(square / unbiased_square) + epsilon)
        return self._decayed(directions, weights) if beside else directions


_RULES: dict[str, type[_SGD] | type[_Adam]] = {"sgd": _SGD, "adam": _Adam, "adamw": _Adam}


def _root(square: Tensor) -> Tensor:
    """Compute a root with derivative 0 at 0, for a dead unit's gradient; a plain root's would be infinite."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)
