"""CENTAUR's client half: the head first, then the extractor in noisy steps."""

from collections.abc import Iterator, Mapping
from typing import final

import torch
from torch import Tensor

from flfw.client.federated_client import FederatedClient
from flfw.dp.client import DPClient
from flfw.nets import Tensors


@final
class CentaurClient(DPClient):
    """Client that trains the head for one epoch, then the extractor for E."""

    def train(self) -> dict[str, float]:
        """Train both parts; return the mean losses of their last epochs, and `measures`."""
        settings = self.ctx.settings
        plain = settings.optimiser_at(settings.head_lr)

        def follow(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
            return FederatedClient.loss_and_direction(self, parameters, x, y)

        def passes(rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            return FederatedClient.batches(self, rng)  # never Poisson batches: the head's steps have no noise

        head_loss = self.train_epochs(
            self.unshared_parameters(), settings.head_epochs, plain, purpose="head", follow=follow, batches=passes
        )
        return {**super().train(), "head_loss": head_loss}
