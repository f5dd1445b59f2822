"""FedNova's client half: local SGD on the loss plus mu/2 ||x_i - x||^2; it reports its number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from torch import Tensor

from flfw.client import FederatedClient


@final
class FedNovaClient(FederatedClient):
    """Client with local SGD that counts its steps."""

    place_labels = True

    def install(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Store x as well."""
        super().install(received, version)
        self._broadcast = {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def train(self) -> dict[str, float]:
        """Return the mean loss of the last epoch, the proximal term included, and tau_i."""
        loss = self.descend(self.moving(), self.at.experiment.local_epochs, self.optimiser())
        return {"loss": loss, "steps": self.steps_made}

    def local_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss with the proximal term, which is 0 at the broadcast model."""
        if not self.at.settings.mu:
            return self.loss(x, y)
        distance = sum(((value - self._broadcast[name]) ** 2).sum() for name, value in self.model.named_parameters())
        return self.loss(x, y) + self.at.settings.mu / 2 * distance
