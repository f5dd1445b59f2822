"""Distillation at the server: a student learns the mean scores of the clients' models, on data of no client.

The teachers do not change and their inputs do not depend on the student. So their scores are computed for some hundred
inputs at a time, ahead of the student's small steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import kl_div, log_softmax, softmax

from flfw.errors import require
from flfw.nets.training.optimisers import Optimiser

_AHEAD = 256  # inputs in one pass of a teacher; more are not faster and fill memory

GeneratorInputs: TypeAlias = tuple[Tensor, ...]
"""A batch: images (B, ...), or noise (B, d) and labels (B,)."""
Scores: TypeAlias = Callable[..., Tensor]
"""A batch's class scores (B, classes)."""


@dataclass(frozen=True)
class ServerTraining:
    """Hyper-parameters of the server's training; the defaults are those of FedCG's comparison."""

    iterations: int = 2000  # steps in a round
    server_batch: int = 16  # inputs in a step
    server_lr: float = 3e-4  # of Adam, > 0

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations >= 1", iterations=self.iterations)
        require(self.server_batch >= 1, "server_batch >= 1", server_batch=self.server_batch)
        require(self.server_lr > 0, "server_lr > 0", server_lr=self.server_lr)


def speaking(model: nn.Module, tensors: Mapping[str, Tensor]) -> Scores:
    """Return the model's score function with these tensors in place of its own."""
    return lambda *inputs: functional_call(model, dict(tensors), inputs)


@torch.no_grad()
def taught(
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
    lessons: Iterable[tuple[GeneratorInputs, Tensor]],
    student: Scores,
    parameters: Mapping[str, Tensor],
    optimiser: Optimiser,
    done: Callable[[], None] = lambda: None,
) -> float:
    """Train a student on KL(softmax(teacher) || softmax(student)), the mean over a batch; one step a batch.

    Args:
        lessons: batches with the teacher's scores, as `taught` gives them.
        student: its score function.
        parameters: the student's parameters by name, changed in place.
        optimiser: makes the steps.
        done: called after each step.

    Returns:
        The mean loss of the last tenth of the steps; 0 without steps.
    """
    losses: list[Tensor] = []
    for inputs, scores in lessons:
        loss = kl_div(log_softmax(student(*inputs), 1), softmax(scores, 1), reduction="batchmean")
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        optimiser.step(parameters, dict(zip(parameters, gradients, strict=True)))
        losses.append(loss.detach())
        done()
    last = losses[-max(1, len(losses) // 10) :]
    return float(torch.stack(last).mean()) if last else 0.0
