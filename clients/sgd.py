"""Local SGD on the whole model: the client half of every method without one of its own."""

from __future__ import annotations

from typing import final

from flfw.client.federated_client import FederatedClient


@final
class SGDClient(FederatedClient):
    """Client with E epochs of SGD on all parameters, shared or private."""

    place_labels = True

    def train(self) -> dict[str, float]:
        """Train; return the mean loss of the last epoch."""
        return {"loss": self.descend(self.moving(), self.at.experiment.local_epochs, self.optimiser())}
