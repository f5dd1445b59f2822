"""FedProx's client half: local SGD on the loss plus mu/2 ||w_k - w||^2, where w is what was received this round."""

from __future__ import annotations

from typing import final

from torch import Tensor

from flfw.client import FederatedClient


@final
class FedProxClient(FederatedClient):
    """Local SGD held near the broadcast model."""

    def train(self) -> dict[str, float]:
        """Returns the mean loss of the last epoch, the proximal term included."""
        experiment, settings = self.at.experiment, self.at.settings
        weights = dict(self.model.named_parameters())
        broadcast = {name: value.detach().clone() for name, value in weights.items()}

        def proximal_loss(x: Tensor, y: Tensor) -> Tensor:
            distance = sum(((value - broadcast[name]) ** 2).sum() for name, value in weights.items())
            return self.loss(x, y) + settings.mu / 2 * distance

        loss = self.descend(
            weights,
            experiment.local_epochs,
            settings.optimiser_at(experiment.lr),
            loss=proximal_loss,
        )
        return {"loss": loss}
