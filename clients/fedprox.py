"""FedProx's client half: local SGD on the loss plus mu/2 ||w_k - w||^2, where w is this round's broadcast model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from torch import Tensor

from flfw.client.federated_client import FederatedClient


@final
class FedProxClient(FederatedClient):
    """Client with local SGD held near the broadcast model."""

    place_labels = True

    def install(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Store w as well."""
        super().install(received, version)
        self._broadcast = {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def train(self) -> dict[str, float]:
        """Return the mean loss of the last epoch, the proximal term included."""
        return {"loss": self.descend(self.moving(), self.at.experiment.local_epochs, self.optimiser())}

    def local_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss with the proximal term, which is 0 at the broadcast model."""
        distance = sum(((value - self._broadcast[name]) ** 2).sum() for name, value in self.model.named_parameters())
        return self.loss(x, y) + self.at.settings.mu / 2 * distance
