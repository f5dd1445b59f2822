"""Updates of several local steps: simulated training on a guess of the data, step by step.

Local training is a function of the guess, and a search follows its derivative through all steps (the simulation of
Geiping et al., NeurIPS 2020, section 6, and of Dimitrov et al., TMLR 2022), also through momentum, Adam's means,
clipping and a proximal term.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from flfw.errors import require
from flfw.messages.sharing import matches
from flfw.nets.bottleneck import penalty
from flfw.nets.net import Tensors, targets
from flfw.nets.net import loss as loss_of
from flfw.victims.victim import VictimModel, mean_gradient

Places: TypeAlias = tuple[int, ...]
"""Indices of a guess's examples in one batch."""
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Mean loss of a batch, from scores (b, classes) and labels (b,)."""

_CLIP_EPSILON = 1e-6  # added to a norm above the bound, as `flfw.training.optimisers.clip_norm` does


@final
@dataclass(frozen=True)
class LocalSteps:
    """Attacker's knowledge of a client's local training; the optimiser starts anew in every round.

    Attributes:
        lr: step size, > 0.
        steps: number of steps, >= 1.
        optimiser: ``adam`` adds weight decay to the gradient, as `flfw.training.optimisers.Adam` does; ``adamw``
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

    lr: float
    steps: int
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 0.0
    batch_size: int = 0
    order: tuple[Places, ...] | None = None
    proximal: float = 0.0
    moves: tuple[str, ...] = ("*",)
    nesterov: bool = False
    loss: Loss = cross_entropy

    def __post_init__(self) -> None:
        require(0 < self.lr < inf, "0 < lr < inf", lr=self.lr)
        require(self.steps >= 1, "steps >= 1", steps=self.steps)
        require(self.optimiser in _RULES, f"optimiser {' or '.join(_RULES)}", optimiser=self.optimiser)
        require(0 <= self.momentum < 1, "0 <= momentum < 1", momentum=self.momentum)
        has_velocity = self.optimiser == "sgd"
        require(has_velocity or self.momentum == 0, f"momentum=0 with {self.optimiser}", momentum=self.momentum)
        require(self.momentum > 0 or not self.nesterov, "momentum > 0 with nesterov", momentum=self.momentum)
        require(0 <= self.weight_decay < inf, "0 <= weight_decay < inf", weight_decay=self.weight_decay)
        require(all(0 <= beta < 1 for beta in self.betas), "betas in [0, 1)", betas=self.betas)
        require(self.epsilon > 0, "epsilon > 0", epsilon=self.epsilon)
        require(0 <= self.clip < inf, "0 <= clip < inf", clip=self.clip)
        require(self.batch_size >= 0, "batch_size >= 0", batch_size=self.batch_size)
        require(0 <= self.proximal < inf, "0 <= proximal < inf", proximal=self.proximal)
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
            for place in (place for places in self.order for place in places):
                require(0 <= place < count, f"places 0 to {count - 1} in the order of {count} examples", place=place)
            return self.order
        size = self.batch_size or count
        epoch = [tuple(range(at, min(at + size, count))) for at in range(0, count, size)]
        return tuple(epoch[step % len(epoch)] for step in range(self.steps))


@final
class SteppedVictim(VictimModel):
    """Victim that sends weights after several local steps.

    Its coordinates are the change of the weights, ``(received - sent) / (lr * steps)``: after one step of plain SGD
    the gradient, after several the mean of the steps' gradients. Private parameters move in training like the shared
    ones, from their guessed values. Buffers stay unchanged, and the model is in evaluation mode: a BatchNorm layer uses
    the running statistics as they were received, and a `flfw.victims.batch_statistics.BatchStatistics` those of each
    step's batch.

    After one step of Adam little more than the gradient's signs is left, and a derivative near 0 for the search.

    Args:
        victim: a victim of one step; gives the model, the known tensors, the shared names, the inputs, and the
            function of each example's gradient.
        received: the shared tensors at the start of training, by name.
        local: the known settings of the training.
        direct: whether the sent tensors are in these coordinates already, and not weights.

    Raises:
        InputError: a shared tensor that moves was not received, or has another shape; or no shared tensor moves.
    """

    def __init__(self, victim: VictimModel, received: Tensors, local: LocalSteps, direct: bool = False) -> None:
        shared = [name for name in victim.shared if matches(name, local.moves)]
        super().__init__(victim.model, {**victim.known, **received}, shared, victim.inputs)
        self.local, self.each, self.direct = local, victim.each, direct
        self._moving = {n: p.shape for n, p in victim.model.named_parameters() if matches(n, local.moves)}
        require(bool(shared), "a shared tensor that local training moves", moves=local.moves)
        for name in self.shared:
            require(name in received, f"{name} among what was received", received=", ".join(received) or "nothing")
            shape = tuple(received[name].shape)
            require(shape == self._moving[name], f"{name} of shape {tuple(self._moving[name])}", received=shape)

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Compute the change of the shared parameters; no constants.

        Args:
            sent: the weights after training, by name, or their change in these coordinates.
        """
        if self.direct:
            return {name: sent[name] for name in self.shared}, {}
        travelled = self.local.lr * self.local.steps
        return {name: (self.known[name] - sent[name]) / travelled for name in self.shared}, {}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the change after training on a guess, by automatic differentiation through all steps.

        Raises:
            InputError: the order has an index out of the guess's range.
        """
        local, start = self.local, {**self.known, **unknown}
        # The sum is kept apart from the weights: small changes of large weights would be lost to rounding.
        moved = {name: torch.zeros_like(start[name]) for name in self._moving}
        rule = _RULES[local.optimiser](local)
        for places in local.batches(len(x)):
            weights = {name: start[name] - local.lr * way for name, way in moved.items()}
            gradients = self._step(_taken(x, places), _taken(y, places), start, weights)
            if local.proximal:
                gradients = {n: g + local.proximal * (weights[n] - start[n]) for n, g in gradients.items()}
            if local.clip:
                gradients = _clipped(gradients, local.clip)
            direction = rule.direction(gradients, weights)
            moved = {name: way + direction[name] for name, way in moved.items()}
        return {name: moved[name] / local.steps for name in self.shared}

    def _step(self, x: Tensor, y: Tensor, start: Tensors, weights: Tensors) -> Tensors:
        """Compute the gradient of a batch's mean loss at the moved weights, or the mean of `each`."""

        def gradient(inputs: Tensor, labels: Tensor) -> Tensors:
            def loss(moving: Tensors) -> Tensor:
                scores = functional_call(self.model, {**start, **moving}, (self.inputs.normalise(inputs),))
                follows = loss_of if self.local.loss is cross_entropy else self.local.loss
                return follows(scores, targets(scores, inputs, labels)) + penalty(self.model)

            return grad(loss)(weights)

        return mean_gradient(gradient, x, y, self.each)


class _Rule(ABC):
    """Optimiser's directions, step after step, in new tensors; `flfw.training.optimisers` works in place."""

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


def _clipped(gradients: Tensors, bound: float) -> Tensors:
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients.values()]))
    scale = torch.where(norm > bound, bound / (norm + _CLIP_EPSILON), 1.0)
    return {name: scale * gradient for name, gradient in gradients.items()}


def _taken(examples: Tensor, places: Places) -> Tensor:
    """Return the rows at the given indices; consecutive rows are a view."""
    if places == tuple(range(places[0], places[0] + len(places))):
        return examples[places[0] : places[0] + len(places)]
    return examples.index_select(0, torch.tensor(places, device=examples.device))
