"""Answers of a client to probes, and to an observer on its machine; they change no state of the client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from flfw.client.context import ClientContext
from flfw.client.local_trainer import LocalTrainer
from flfw.messages.factored_upload import expand
from flfw.messages.sharing import matches
from flfw.nets.net import Tensors


class ProbeResponder(LocalTrainer, ABC):
    """Local descent of a client with answers to probes; base of `flfw.client.federated_client.FederatedClient`.

    Args:
        ctx: the context.

    Attributes:
        received: the tensors received in this round, by name; read-only.
    """

    def __init__(self, ctx: ClientContext) -> None:
        super().__init__(ctx)
        self.received: Mapping[str, np.ndarray] = {}

    @abstractmethod
    def leaving(self) -> Tensors:
        """Build the upload of a round from the model after local training."""

    def gradient(self, x: Tensor, y: Tensor) -> Tensors:
        """Answer a probe of one local step by the gradient of the uploaded tensors, after the defence.

        Args:
            x: raw inputs (B, ...) in [0, 1].
            y: labels (B,).
        """
        rng = self.generator("probe")
        gradient = self.local_gradient(x, y, rng)
        return self.ctx.defence.update(gradient, rng) if self.ctx.defence else gradient

    def local_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute a local step's direction for the uploads: the defended gradient, before `Defence.update`."""
        x, y = self.guarded(x, y, rng)
        descended = self.ctx.method.descended(self.model, self.ctx.settings)
        moving = {n: p for n, p in self.model.named_parameters() if matches(n, descended)}
        loss = self.loss(x.to(self.device), y.to(self.device))
        gradient = dict(zip(moving, (g.cpu() for g in torch.autograd.grad(loss, list(moving.values()))), strict=True))
        return {**gradient, **self.defended(gradient, x, y, rng)}

    def followed_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute the direction of a local step by `loss_and_direction`, as training does.

        A method may use it as `local_gradient`. It is for methods whose `loss_and_direction` changes the gradient: by
        clipping, noise or a correction.
        """
        x, y = self.guarded(x, y, rng)
        _, direction = self.loss_and_direction(self.trainable_parameters(), x.to(self.device), y.to(self.device))
        direction = {name: value.cpu() for name, value in direction.items()}
        return {**direction, **self.defended(direction, x, y, rng)}

    def observed(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Return the gradient of one example that an observer on the client reads: by default its step direction."""
        return self.local_gradient(x, y, rng)

    def stepped(self, x: Tensor, y: Tensor, steps: int) -> Tensors:
        """Answer a probe of many local steps by the uploads after them, as the server reads the uploads of training.

        Args:
            x: raw inputs (B, ...) in [0, 1], all of them in every step.
            y: labels (B,).
            steps: number of local steps.
        """
        there = x.to(self.device), y.to(self.device)
        if self._stored is not None and self._stored[0] is y:
            self._stored = there[1], self._stored[1]

        def again(rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            yield self.guarded(*there, rng)

        self.train_epochs(
            self.trainable_parameters(), steps, self.optimiser(), purpose="probe", clips=self.clips(), batches=again
        )
        return expand(self.leaving(), self.received)
