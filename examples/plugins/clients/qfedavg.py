"""q-FedAvg's client half: local SGD; it also reports its mean loss at the received model."""

from typing import final

import torch

from flfw.client.federated_client import FederatedClient

_BATCH = 500  # examples whose loss is computed at once


@final
class QFedAvgClient(FederatedClient):
    """Local SGD, with the loss before it as a metric."""

    def train(self) -> dict[str, float]:
        """Return the mean loss of the last epoch, and the loss before the first."""
        before = self._mean_loss()
        loss = self.train_epochs(self.trainable_parameters(), self.ctx.local.local_epochs, self.optimiser())
        return {"loss": loss, "loss_received": before}

    @torch.no_grad()
    def _mean_loss(self) -> float:
        own, total = self.indices("train"), 0.0
        for start in range(0, len(own), _BATCH):
            x, y = self.examples("train", own[start : start + _BATCH])
            total += float(self.loss(x, y)) * len(y)
        return total / len(own)
