"""Phases of a client's training, through which batched clients go side by side.

A client half that opts in yields its phases one after the other. Alone it does each by `TrainingPhase.alone`. Together,
batched clients do the same phase at once by `BatchedSteps`: step by step, each with its own batches from its own
generators.
So only the order of sums differs from one by one. A client with fewer steps keeps its parameters once it is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from flfw.client.local_trainer import LocalTrainer

Result = TypeVar("Result")
Batch: TypeAlias = tuple[Tensor, Tensor]
"""Raw inputs (B, ...) and labels (B,)."""


class BatchedSteps(ABC):
    """Local steps of some clients at once.

    The clients come in the order of their numbers of steps, the largest first, so that those that are not done yet are
    always the first ones.
    """

    @abstractmethod
    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Do the next step of as many first clients as there are batches; return their mean losses, one for each."""

    @abstractmethod
    def write(self) -> None:
        """Bring the clients' own tensors up to their last steps."""


@final
@dataclass(frozen=True)
class TrainingPhase:
    """Descent in a client's training.

    Attributes:
        alone: function that does it for this client alone, and returns the mean loss of the last epoch.
        together: function that makes the joint steps of some clients in this phase; None: for these clients, one after
            the other is faster.
        epochs: passes over a client's own data.
        purpose: name of the generator of the shuffles, see `flfw.client.local_trainer.LocalTrainer.train_epochs`.
    """

    alone: Callable[[], float]
    together: Callable[[Sequence[Any]], BatchedSteps | None]
    epochs: int
    purpose: str = "batches"


Phases: TypeAlias = Generator[TrainingPhase, float, Result]
"""Work that yields each phase, is sent its loss, and returns a result."""


class JointStepsFailed(Exception):
    """Error in joint steps: nobody can tell which client is at fault."""


def run_phases(work: Phases[Result]) -> Result:
    """Do the work of a client alone; return its result."""
    try:
        phase = next(work)
        while True:
            phase = work.send(phase.alone())
    except StopIteration as end:
        return end.value


def run_phases_together(clients: Sequence[LocalTrainer], works: Sequence[Phases[Result]]) -> list[Result | Exception]:
    """Do the work of some clients, each phase together.

    Args:
        clients: the clients, all of one class.
        works: the work of each.

    Returns:
        The result of each; an exception where a client failed by itself, which the others do not notice.

    Raises:
        JointStepsFailed: joint steps failed.
    """
    results: dict[int, Result | Exception] = {}
    losses: dict[int, float | None] = dict.fromkeys(range(len(works)))
    while losses:
        phases: dict[int, TrainingPhase] = {}
        for index, loss in losses.items():
            try:
                phases[index] = next(works[index]) if loss is None else works[index].send(loss)
            except StopIteration as end:
                results[index] = end.value
            except Exception as error:  # this client's failure alone
                results[index] = error
        try:
            means = descend_together([clients[index] for index in phases], list(phases.values()))
        except Exception as error:
            raise JointStepsFailed(str(error)) from error
        losses = dict(zip(phases, means, strict=True))
    return [results[index] for index in range(len(works))]


def descend_together(clients: Sequence[LocalTrainer], phases: Sequence[TrainingPhase]) -> list[float]:
    """Do a phase of some clients; return the mean losses of their last epochs."""
    if len(phases) < 2:
        return [phase.alone() for phase in phases]
    first = phases[0]
    if any((one.purpose, one.epochs) != (first.purpose, first.epochs) for one in phases):
        raise ValueError("clients in different phases")
    lengths = [ceil(len(client.indices("train")) / client.ctx.local.batch_size) for client in clients]
    order = sorted(range(len(clients)), key=lambda index: -lengths[index])
    counts = [first.epochs * lengths[index] for index in order]
    joint = first.together([clients[index] for index in order])
    if joint is None:
        return [phase.alone() for phase in phases]
    streams = [_stream(clients[index], first) for index in order]
    noted = _LastEpochs([lengths[index] for index in order], counts)
    for number in range(max(counts)):
        batches = [next(streams[index]) for index in range(len(order)) if counts[index] > number]
        noted.note(number, joint.step(batches), batches)
    if any(next(stream, None) is not None for stream in streams):
        raise ValueError("more batches in an epoch than its examples fill")
    joint.write()
    for index, count in zip(order, counts, strict=True):
        clients[index].steps_made += count
    means = noted.means()
    return [means[order.index(index)] for index in range(len(order))]


def _stream(client: LocalTrainer, phase: TrainingPhase) -> Iterator[Batch]:
    rng = client.generator(phase.purpose)
    for _ in range(phase.epochs):
        yield from client.batches(rng)


@final
class _LastEpochs:
    """Losses of the last epochs of clients with so many steps in an epoch (``lengths``) and in all (``counts``)."""

    def __init__(self, lengths: Sequence[int], counts: Sequence[int]) -> None:
        self._lengths, self._counts = lengths, counts
        self._losses: list[list[Tensor]] = [[] for _ in counts]

    def note(self, number: int, losses: Tensor, batches: Sequence[Batch]) -> None:
        for index, (_, y) in enumerate(batches):
            if number >= self._counts[index] - self._lengths[index] and len(y):
                self._losses[index].append(losses[index])

    def means(self) -> list[float]:
        return [sum(torch.stack(one).tolist()) / len(one) if one else 0.0 for one in self._losses]
