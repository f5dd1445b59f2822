"""Base of methods whose server trains the averaged model further, with a state and a device of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flfw.nets import Tensors
from flfw.nets.training.devices import one_thread
from flfw.nets.training.optimisers import StatefulOptimiser
from flfw.rng import torch_generator
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.distillation import GeneratorInputs
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
    def going_on(self, optimiser: StatefulOptimiser, parameters: Mapping[str, Tensor]) -> Iterator[None]:
        """Continue an optimiser from the round before; at the end its memory becomes the server's state."""
        optimiser.recall(parameters, self.state)
        yield
        memory = optimiser.memory(parameters)
        self.state = {name: value.detach().cpu().clone() for name, value in memory.items()}

    def on_device(self, batches: Iterable[GeneratorInputs]) -> Iterator[GeneratorInputs]:
        """Move batches to the server's device; they are drawn on the CPU, so that every device gets the same draws."""
        return (tuple(part.to(self.require_context.device) for part in batch) for batch in batches)

    def shares(self, uploads: Sequence[Update]) -> list[tuple[float, dict[str, Any]]]:
        """Return each client's share of the examples w_i, and its tensors on the server's device."""
        total = sum(update.examples for update in uploads)
        device = self.require_context.device
        return [(u.examples / total, {name: v.to(device) for name, v in u.tensors.items()}) for u in uploads]
