"""Methods whose server trains the averaged model, with a memory of its own and on its own device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flfw.nets import Tensors
from flfw.rng import torch_generator
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.distillation import GeneratorInputs
from flfw.server.strategy import FederatedStrategy
from flfw.training.optimisers import Remembering
from flfw.training.threads import one_thread


class TrainingServer(FederatedStrategy, ABC):
    """Base of these methods; a subclass writes `trained`.

    A round's uploads are all in memory at a time, for they are the teachers; nothing else grows with their number. On
    the CPU one thread computes, so that the same uploads give the same bits anywhere. A run that was killed in here
    goes on from the round before, whose uploads the clients send again.
    """

    @abstractmethod
    def trained(self, uploads: Sequence[Update], mean: Tensors) -> Tensors:
        """Make the next broadcast tensors.

        Args:
            uploads: of the round, by partition, on the CPU.
            mean: their mean, weighted by examples.
        """

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Take the weighted mean, and train it further."""
        uploads = list(updates)
        with one_thread():
            trained = self.trained(uploads, weighted_mean(uploads))
        return {name: value.detach().cpu() for name, value in trained.items()}

    @property
    def rng(self) -> torch.Generator:
        """A generator for this round's training."""
        return torch_generator(self.seed, "server training", self.round)

    @contextmanager
    def going_on(self, optimiser: Remembering, parameters: Mapping[str, Tensor]) -> Iterator[None]:
        """Let an optimiser go on, inside, from the round before; its memory then is the server's state."""
        optimiser.recall(parameters, self.state)
        yield
        memory = optimiser.memory(parameters)
        self.state = {name: value.detach().cpu().clone() for name, value in memory.items()}

    def on_device(self, batches: Iterable[GeneratorInputs]) -> Iterator[GeneratorInputs]:
        """Move batches to the device; they are drawn on the CPU, so that the draws are the same on each."""
        return (tuple(part.to(self.place.device) for part in batch) for batch in batches)

    def shares(self, uploads: Sequence[Update]) -> list[tuple[float, dict[str, Any]]]:
        """Compute each client's share of the examples w_i, beside its tensors on the server's device."""
        total = sum(update.examples for update in uploads)
        device = self.place.device
        return [(u.examples / total, {name: v.to(device) for name, v in u.tensors.items()}) for u in uploads]
