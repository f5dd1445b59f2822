"""The answers of a client to probes, and to an observer on its machine; nothing is trained or kept for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from flfw.client.descent import LocalDescent
from flfw.client.workplace import Workplace
from flfw.messages.factored_upload import expand
from flfw.messages.sharing import matches
from flfw.nets.net import Tensors


class Probing(LocalDescent, ABC):
    """A client's local descent, as probes ask for it; base of `flfw.client.federated_client.FederatedClient`.

    Args:
        at: the workplace.

    Attributes:
        received: the tensors received in this round, by name; not to be written into.
    """

    def __init__(self, at: Workplace) -> None:
        super().__init__(at)
        self.received: Mapping[str, np.ndarray] = {}

    @abstractmethod
    def leaving(self) -> Tensors:
        """Make the message of a round from the model after local training."""

    def gradient(self, x: Tensor, y: Tensor) -> Tensors:
        """Answer a probe of one local step: the defended gradient of the loss for the tensors uploaded.

        Args:
            x: raw inputs (B, ...) in [0, 1].
            y: labels (B,).
        """
        rng = self.generator("probe")
        gradient = self.local_gradient(x, y, rng)
        return self.at.defence.update(gradient, rng) if self.at.defence else gradient

    def local_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute the direction of a local step for the uploads: their defended gradient, before `Defence.update`."""
        if self.at.defence:
            x, y = self.at.defence.batch(x, y, rng)
        descended = self.at.method.descended(self.model, self.at.settings)
        moving = {n: p for n, p in self.model.named_parameters() if matches(n, descended)}
        loss = self.loss(x.to(self.device), y.to(self.device))
        gradient = dict(zip(moving, (g.cpu() for g in torch.autograd.grad(loss, list(moving.values()))), strict=True))
        return self.at.defence.gradients(gradient, rng) if self.at.defence else gradient

    def followed_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute the direction of a local step as training does, by `follow`: a `local_gradient` for methods to use.

        It is theirs that do more to a gradient than compute it (clip, add noise, correct), and do it without a probe's
        help.
        """
        if self.at.defence:
            x, y = self.at.defence.batch(x, y, rng)
        _, direction = self.follow(self.moving(), x.to(self.device), y.to(self.device))
        direction = {name: value.cpu() for name, value in direction.items()}
        return self.at.defence.gradients(direction, rng) if self.at.defence else direction

    def observed(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Show the numbers an observer on the client reads of one example: by default the direction of its step."""
        return self.local_gradient(x, y, rng)

    def stepped(self, x: Tensor, y: Tensor, steps: int) -> Tensors:
        """Answer a probe of more local steps: the uploads after them, in the form in which the server has training's.

        Args:
            x: raw inputs (B, ...) in [0, 1], all of them in every step.
            y: labels (B,).
            steps: how many.
        """

        def again(rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            yield self.at.defence.batch(x, y, rng) if self.at.defence else (x, y)

        self.descend(self.moving(), steps, self.optimiser(), purpose="probe", clips=self.clips(), batches=again)
        return expand(self.leaving(), self.received)
