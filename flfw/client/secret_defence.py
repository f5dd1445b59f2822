"""Defence that draws in secret: its hooks get generators that nobody can repeat, in the place of the run's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from flfw.defence import Defence, DefendedData, LocalStep
from flfw.nets.net import Net, Tensors
from flfw.rng import secret_generator


@final
class DrawnInSecret(Defence):
    """Defence of one client whose hooks each get a new secret generator, in the place of the one handed over.

    So it holds for every defence that draws from the generator that it is given, also for a plug-in's. No two calls
    have a common state: a message that is asked for again, after a restart or not, has other draws.

    Args:
        defence: the defence.
    """

    def __init__(self, defence: Defence) -> None:
        super().__init__(defence.settings)
        self._defence = defence
        self.measures = defence.measures

    @property
    def active_hooks(self) -> frozenset[str]:
        """Names of the hooks at which the defence acts."""
        return self._defence.active_hooks

    def network(self, net: Net) -> Net:
        """Return the network as the defence changes it."""
        return self._defence.network(net)

    def prepare(self, model: nn.Module, rng: torch.Generator) -> None:
        """Set up a client's model, with a generator of its own."""
        self._defence.prepare(model, secret_generator())
        self.measures = self._defence.measures

    def check_model(self, model: nn.Module, uploads: Sequence[str]) -> None:
        """Refuse a model for which the defence does not work."""
        self._defence.check_model(model, uploads)

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        """Refuse inputs for which the defence does not work."""
        self._defence.check_inputs(shape)

    def check_data(self, held: DefendedData) -> None:
        """Refuse data for which the defence does not work."""
        self._defence.check_data(held)

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the batch after the defence, whose draws nobody can repeat."""
        x, y = self._defence.batch(x, y, secret_generator())
        self.measures = self._defence.measures
        return x, y

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        """Return the gradients after the defence, whose draws nobody can repeat."""
        return self._noting(self._defence.gradients(gradients, secret_generator()))

    def step(self, step: LocalStep, rng: torch.Generator) -> Tensors:
        """Return the gradients of a step after the defence, whose draws nobody can repeat."""
        return self._noting(self._defence.step(step, secret_generator()))

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Return the update after the defence, whose draws nobody can repeat."""
        return self._noting(self._defence.update(update, secret_generator()))

    def _noting(self, result: Tensors) -> Tensors:
        self.measures = self._defence.measures
        return result
