"""Clients that descend on the gradient of one loss: alone, and some at once by one network with stacked weights.

`GradientClient` trains as most clients do: some epochs along the gradient of the loss on all parameters. Clients are
trained together where their training is a sequence of phases that all of them go through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from flfw.client.federated_client import IN_THEIR_OWN_WAY, FederatedClient
from flfw.client.phases import Batch, BatchedSteps, Phases, TrainingPhase, run_phases
from flfw.errors import require
from flfw.nets.net import Tensors, loss, running_statistics, targets
from flfw.nets.training.optimisers import SGD, Adam, FusedSGD, LocalTraining, PlainSGD, StatefulOptimiser

_FOLLOWED = ("loss", "penalised", "local_loss", "loss_and_direction", "trainable_parameters", "defended")
"""Functions of a client that joint steps stand for: who overrides one of them does not opt in."""

_DENSE = 16  # clients that take joint steps on a CPU
_VELOCITY = "velocity/"  # before a parameter's name, in the memory of `flfw.nets.training.optimisers.PlainSGD`
_NEAR = 1e-2  # part of the largest score by which types of few digits may differ when weights are stacked
_NUDGE, _SHOWN = 0.1, 80  # by which a trial moves weights; characters of an error that are shown
_IGNORED = -100  # the label of a row that only fills a batch up; `flfw.nets.net.loss` leaves it out of its mean


class BatchableClient(FederatedClient, ABC):
    """Base of client halves that opt in to training together: they write `training_phases`, which `train` goes through.

    A subclass that overrides `train` trains in its own way, and alone.
    """

    @abstractmethod
    def training_phases(self) -> Phases[dict[str, float]]:
        """Yield each phase of a round's training, and return its metrics, at least ``loss``."""

    def train(self) -> dict[str, float]:
        """Go through the phases alone."""
        return run_phases(self.training_phases())

    @classmethod
    def not_batchable_reason(cls, model: nn.Module, settings: Any) -> str:
        """Name the reason against joint steps, such as a way of training beside the phases; see the base."""
        reason = super().not_batchable_reason(model, settings)
        return reason or ("" if cls.train is BatchableClient.train else IN_THEIR_OWN_WAY)

    def train_by_phases(self) -> Phases[dict[str, float]]:
        """Yield the phases of `training_phases`; where a subclass overrides `train`, call that and yield none."""
        if type(self).train is not BatchableClient.train:
            return (yield from super().train_by_phases())
        return (yield from self.training_phases())


class GradientClient(BatchableClient, ABC):
    """Base of clients with E epochs along the gradient of the loss on all parameters, and of `proximal_term`."""

    def training_phases(self) -> Phases[dict[str, float]]:
        """Train; return the mean loss of the last epoch."""
        epochs = self.ctx.local.local_epochs

        def alone() -> float:
            return self.train_epochs(self.trainable_parameters(), epochs, self.optimiser())

        return {"loss": (yield TrainingPhase(alone, self.joint, epochs))}

    def joint(self, clients: Sequence[Any]) -> BatchedSteps | None:
        """Make the joint steps of some clients like this one; None: their optimisers have different settings."""
        optimisers = [_remembering(client.optimiser()) for client in clients]
        alike = all(_settings(one) == _settings(optimisers[0]) for one in optimisers)
        return StackedDescent(clients, optimisers) if alike else None

    def local_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss with the term of `proximal_term`."""
        return self.loss(x, y) + self.proximal_term(dict(self.model.named_parameters()), self.proximal_anchor())

    def proximal_anchor(self) -> Tensors:
        """Return the tensors of this client that `proximal_term` needs, by name; by default none."""
        return {}

    def proximal_term(self, parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor | float:
        """Compute a term of the local loss that depends on no example; by default 0.

        Args:
            parameters: the client's parameters.
            anchor: its `proximal_anchor`.
        """
        return 0.0

    @classmethod
    def not_batchable_reason(cls, model: nn.Module, settings: Any) -> str:
        """Name the reason against steps of stacked networks; see the base."""
        if reason := super().not_batchable_reason(model, settings):
            return reason
        if any(getattr(cls, name) is not getattr(cls.joined_as(), name) for name in _FOLLOWED):
            return IN_THEIR_OWN_WAY
        if running := running_statistics(model):
            return f"whose network has running statistics ({running[0]})"
        if not isinstance(settings, LocalTraining):
            return "whose optimiser is neither sgd nor adam"
        lasts = settings.optimiser == "adam" and bool(getattr(settings, "lasting", False))
        return "whose lasting Adam counts the steps of each client" * lasts

    @classmethod
    def joined_as(cls) -> type[GradientClient]:
        """Return the class whose local steps `joint` computes; a subclass with others does not opt in."""
        return GradientClient

    @classmethod
    def batched_on_cpu(cls, model: nn.Module) -> int:
        """Return 16 for a dense network, as four gain little; 1 for others: grouped convolutions are slow on a CPU."""
        trained = (one for one in model.modules() if next(one.parameters(recurse=False), None) is not None)
        return _DENSE if all(isinstance(one, nn.Linear) for one in trained) else 1


class ProximalClient(GradientClient, ABC):
    """Base of clients that are held near the broadcast model: the loss has mu/2 times the squared distance to it."""

    def load_received(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Store the broadcast model as well."""
        super().load_received(received, version)
        self._broadcast = {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def proximal_anchor(self) -> Tensors:
        """Return the broadcast model."""
        return self._broadcast

    def proximal_term(self, parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor | float:
        """Compute the proximal term, which is 0 at the broadcast model."""
        distance = sum(((value - anchor[name]) ** 2).sum() for name, value in parameters.items())
        return self.ctx.settings.mu / 2 * distance


@final
class StackedDescent(BatchedSteps):
    """Steps of clients whose parameters are stacked (K, ...), with one forward and one backward pass for all.

    Matrices are stacked as their transposes (K, in, out), in the order in which their gradients lie in memory: else
    each step would copy these.

    Args:
        clients: the clients; their models differ in numbers alone.
        optimisers: of each client, with the same settings.
    """

    def __init__(self, clients: Sequence[GradientClient], optimisers: Sequence[StatefulOptimiser]) -> None:
        first = clients[0]
        self._clients, self._model, self._attraction = clients, first.model, first.proximal_term
        self._inputs, self._at_work = first.ctx.task.inputs, len(clients)
        moving = [client.trainable_parameters() for client in clients]
        whole = dict(first.model.named_parameters()).keys()
        require(moving[0].keys() == whole, "local steps on all parameters", batched_clients=len(clients))
        self._turned = frozenset(name for name, value in moving[0].items() if value.dim() == 2)
        self._moving, self._stacked = moving, self._stack(moving)
        self._anchors = self._stack([client.proximal_anchor() for client in clients])
        self._optimisers = optimisers
        self._lasting = bool(first.lasting())
        self._optimiser = _like(self._optimisers[0])
        if self._lasting:
            memory = [one.memory(parameters) for one, parameters in zip(self._optimisers, moving, strict=True)]
            self._optimiser.recall(self._stacked, self._stack(memory))

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Do the next step of as many first clients as there are batches; return their mean losses."""
        self._shrink(len(batches))
        x, y = filled(batches)
        moving = {n: v[: len(batches)].detach().requires_grad_() for n, v in self._stacked.items()}
        anchors = {n: v[: len(batches)] for n, v in self._anchors.items()}
        losses = vmap(self._loss)(moving, anchors, x, y)
        gradients = torch.autograd.grad(losses.sum(), list(moving.values()))
        parameters = {n: v.detach() for n, v in moving.items()}  # views of the stack
        self._optimiser.step(parameters, dict(zip(moving, gradients, strict=True)))
        return losses.detach()

    @torch.no_grad()
    def write(self) -> None:
        """Bring the clients' own tensors up to their last steps, and lasting optimisers likewise."""
        self._keep_memory(0)
        for index, parameters in enumerate(self._moving):
            for name, value in parameters.items():
                value.copy_(self._turn(name, self._stacked[name][index]))

    def _turn(self, name: str, value: Tensor) -> Tensor:
        """Return a matrix, or an optimiser's memory of one, transposed; other tensors stay."""
        return value.t() if name.removeprefix(_VELOCITY) in self._turned else value

    def _stack(self, each: Sequence[Mapping[str, Tensor]]) -> Tensors:
        return {name: torch.stack([self._turn(name, one[name].detach()) for one in each]) for name in each[0]}

    def _loss(self, parameters: Tensors, anchor: Tensors, x: Tensor, y: Tensor) -> Tensor:
        parameters, anchor = ({n: self._turn(n, v) for n, v in held.items()} for held in (parameters, anchor))
        scores = functional_call(self._model, parameters, (self._inputs.normalise(x),))
        labels = targets(scores, x, y)
        if labels.dim() > 1:  # the places of texts
            labels = torch.where((y == _IGNORED).unsqueeze(1), _IGNORED, labels)
        return loss(scores, labels, ignore_index=_IGNORED) + self._attraction(parameters, anchor)

    def _shrink(self, working: int) -> None:
        """Leave the clients alone that have done all their steps."""
        if working == self._at_work:
            return
        self._keep_memory(working)
        before = self._optimiser.memory({n: v[: self._at_work] for n, v in self._stacked.items()})
        kept = {n: v[:working] if v.dim() else v for n, v in before.items()}
        self._optimiser, self._at_work = _like(self._optimiser), working
        self._optimiser.recall({n: v[:working] for n, v in self._stacked.items()}, kept)

    @torch.no_grad()
    def _keep_memory(self, working: int) -> None:
        """Write the optimiser's state of clients that are done to their own optimisers, where these last."""
        if not self._lasting:
            return
        held = self._optimiser.memory({n: v[: self._at_work] for n, v in self._stacked.items()})
        for index in range(working, self._at_work):
            memory = self._optimisers[index].memory(self._moving[index])
            for name, value in memory.items():
                value.copy_(self._turn(name, held[name][index]))


def filled(batches: Sequence[Batch]) -> Batch:
    """Stack batches of raw inputs (K, B, ...) and labels (K, B); shorter ones are filled up by rows that do not count.

    >>> filled([(torch.ones(2, 1), torch.tensor([3, 4])), (torch.ones(1, 1), torch.tensor([5]))])[1].tolist()
    [[3, 4], [5, -100]]
    """
    maximum = max(len(y) for _, y in batches)
    if all(len(y) == maximum for _, y in batches):
        return torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches])
    first_x, first_y = batches[0]
    x = first_x.new_zeros(len(batches), maximum, *first_x.shape[1:])
    y = first_y.new_full((len(batches), maximum), _IGNORED)
    for index, (inputs, labels) in enumerate(batches):
        x[index, : len(labels)], y[index, : len(labels)] = inputs, labels
        if len(labels):  # an example again: a row of zeros may be none on which the network has a gradient
            x[index, len(labels) :] = inputs[-1]
    return x, y


def unstackable(net: nn.Module, x: Tensor) -> str:
    """Name the reason against steps of a network with stacked weights, by a trial, as "which ..."; empty: none is seen.

    The trial moves the weights at random, as some layers do nothing at first.

    Args:
        net: the network, with numbers; it is left as it is.
        x: its inputs (B, ...), B >= 2.
    """
    tried = deepcopy(net).train()

    def scored(parameters: Tensors, inputs: Tensor) -> Tensor:
        return functional_call(tried, parameters, (inputs,))

    with torch.no_grad():
        held = {n: p + _moved(p) for n, p in tried.named_parameters()}
        alone, half = scored(held, x), len(x) // 2
        if not _near(scored(held, x[:half]), alone[:half]):
            return "which computes an example's scores from the others of its batch as well"
    stacked = {n: torch.stack([v, v]).requires_grad_(v.is_floating_point()) for n, v in held.items()}
    try:
        scores = vmap(scored)(stacked, torch.stack([x, x]))
        moving = [v for v in stacked.values() if v.requires_grad]
        torch.autograd.grad(scores.double().sum(), moving, allow_unused=True)
    except Exception as error:  # of anybody's network
        return f"which cannot be computed for stacked weights ({' '.join(str(error).split())[:_SHOWN]})"
    return "" if _near(scores[1].detach(), alone) else "which has other scores with stacked weights"


def _moved(parameter: Tensor) -> Tensor:
    return _NUDGE * torch.randn_like(parameter) if parameter.is_floating_point() else torch.zeros_like(parameter)


def _near(one: Tensor, other: Tensor) -> bool:
    """Return whether scores are the same up to rounding; those that are not finite tell nothing."""
    far = (one.double() - other.double()).abs().max()
    return not far > _NEAR * other.double().abs().max()


def _remembering(optimiser: object) -> StatefulOptimiser:
    require(isinstance(optimiser, SGD | Adam), "SGD or Adam for joint steps", optimiser=type(optimiser).__name__)
    assert isinstance(optimiser, StatefulOptimiser)
    return optimiser


def _settings(optimiser: StatefulOptimiser) -> tuple[object, ...]:
    """Return an optimiser's class and hyper-parameters."""
    if isinstance(optimiser, Adam):
        return Adam, optimiser.lr, optimiser.weight_decay, optimiser.betas
    assert isinstance(optimiser, SGD | FusedSGD), "others were refused"
    return SGD, optimiser.lr, optimiser.momentum, optimiser.weight_decay


def _like(optimiser: StatefulOptimiser) -> StatefulOptimiser:
    """Return a new optimiser of stacked parameters with the same hyper-parameters."""
    if isinstance(optimiser, Adam):
        return Adam(optimiser.lr, optimiser.weight_decay, optimiser.betas)
    assert isinstance(optimiser, PlainSGD), "others were refused"
    return FusedSGD(optimiser.lr, optimiser.momentum, optimiser.weight_decay)
