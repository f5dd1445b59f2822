"""Training at the server: methods that train the averaged model further, and distillation from the clients' models.

The teachers do not change and their inputs do not depend on the student. So their scores are computed for some hundred
inputs at a time, ahead of the student's small steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import kl_div, log_softmax, softmax

from flfw.bounds import BoundedSettings, PositiveFloat, PositiveInt
from flfw.inversion.compute import expect, steps
from flfw.nets import Tensors
from flfw.nets.training.devices import one_thread
from flfw.nets.training.optimisers import Optimiser, StatefulOptimiser
from flfw.rng import torch_generator
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


class TrainingServer(FederatedStrategy, ABC):
    """Base of these methods; a subclass writes `trained`.

    All uploads of a round are in memory at once, since they are the teachers; nothing else grows with their number. On
    the CPU one thread computes, so that the same uploads give the same bits on any machine. A run that was killed in
    this training resumes after the round before, and the clients send their uploads again.
    """

    @abstractmethod
    def trained(self, uploads: Sequence[Update], mean: Tensors) -> Tensors:
        """Compute the next broadcast tensors.

        Args:
            uploads: the round's updates, by partition, on the CPU.
            mean: their mean, weighted by examples.
        """

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Train the weighted mean further; return the next broadcast tensors."""
        uploads = list(updates)
        with one_thread():
            tensors = self.trained(uploads, weighted_mean(uploads))
        return {name: value.detach().cpu() for name, value in tensors.items()}

    @property
    def rng(self) -> torch.Generator:
        """Generator of the random numbers in this round's training."""
        return torch_generator(self.seed, "server training", self.round)

    @contextmanager
    def resumed(self, optimiser: StatefulOptimiser, parameters: Mapping[str, Tensor]) -> Iterator[None]:
        """Continue an optimiser from the round before; at the end its memory becomes the server's state."""
        optimiser.recall(parameters, self.state)
        yield
        self.state = {name: value.detach().cpu().clone() for name, value in optimiser.memory(parameters).items()}

    def on_device(self, batches: Iterable[GeneratorInputs]) -> Iterator[GeneratorInputs]:
        """Move batches to the server's device; they are drawn on the CPU, so that every device gets the same draws."""
        expect(self.settings.iterations)
        moved = (tuple(part.to(self.require_context.device) for part in batch) for batch in batches)
        return (batch for _, batch in zip(steps(self.settings.iterations), moved, strict=True))

    def shares(self, uploads: Sequence[Update]) -> list[tuple[float, dict[str, Any]]]:
        """Return each client's share of the examples w_i, and its tensors on the server's device."""
        total = sum(update.examples for update in uploads)
        device = self.require_context.device
        return [(u.examples / total, {name: v.to(device) for name, v in u.tensors.items()}) for u in uploads]


_AHEAD = 256  # inputs in one pass of a teacher; more are not faster and fill memory

GeneratorInputs: TypeAlias = tuple[Tensor, ...]
"""A batch: images (B, ...), or noise (B, d) and labels (B,)."""
Scores: TypeAlias = Callable[..., Tensor]
"""A batch's class scores (B, classes)."""


@dataclass(frozen=True)
class ServerTraining(BoundedSettings):
    """Hyper-parameters of the server's training; the defaults are those of FedCG's comparison."""

    iterations: PositiveInt = 2000  # steps in a round
    server_batch: PositiveInt = 16  # inputs in a step
    server_lr: PositiveFloat = 3e-4  # of Adam


def scores_with(model: nn.Module, tensors: Mapping[str, Tensor]) -> Scores:
    """Return the model's score function with these tensors in place of its own."""
    return lambda *inputs: functional_call(model, dict(tensors), inputs)


@torch.no_grad()
def with_teacher_scores(
    batches: Iterable[GeneratorInputs], teachers: Sequence[tuple[float, Scores]]
) -> Iterator[tuple[GeneratorInputs, Tensor]]:
    """Pair each batch with the teachers' weighted mean scores (B, classes).

    Memory is that of `_AHEAD` inputs in one teacher, for any number of teachers.

    Args:
        batches: batches of one size.
        teachers: weight and score function of each.
    """
    left = iter(batches)
    for first in left:
        size = len(first[0])
        group = [first, *islice(left, max(0, _AHEAD // size - 1))]
        inputs = tuple(torch.cat(parts) for parts in zip(*group, strict=True))
        mean = sum(weight * scores(*inputs) for weight, scores in teachers)
        assert isinstance(mean, Tensor), "at least one teacher"
        yield from zip(group, mean.split(size), strict=True)


def distil(
    scored_batches: Iterable[tuple[GeneratorInputs, Tensor]],
    student: Scores,
    parameters: Mapping[str, Tensor],
    optimiser: Optimiser,
) -> float:
    """Train a student on KL(softmax(teacher) || softmax(student)), the mean over a batch; one step a batch.

    Args:
        scored_batches: batches with the teacher's scores, as `with_teacher_scores` gives them.
        student: its score function.
        parameters: the student's parameters by name, changed in place.
        optimiser: makes the steps.

    Returns:
        The mean loss of the last tenth of the steps; 0 without steps.
    """
    losses: list[Tensor] = []
    for inputs, scores in scored_batches:
        loss = kl_div(log_softmax(student(*inputs), 1), softmax(scores, 1), reduction="batchmean")
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        optimiser.step(parameters, dict(zip(parameters, gradients, strict=True)))
        losses.append(loss.detach())
    last = losses[-max(1, len(losses) // 10) :]
    return float(torch.stack(last).mean()) if last else 0.0
