"""PPSGD's client half: for every batch a step of the head, then a noisy one of the extractor."""

from collections.abc import Mapping
from typing import final

from torch import Tensor

from flfw.client.federated_client import FederatedClient
from flfw.dp.client import DPClient
from flfw.nets import Tensors


@final
class PPSGDClient(DPClient):
    """Client that trains both parts in turn."""

    def train(self) -> dict[str, float]:
        """Train both parts; return the mean loss of the last epoch, after the head's steps, and `measures`."""
        settings, head = self.ctx.settings, self.unshared_parameters()
        plain = settings.optimiser_at(settings.head_lr)

        def follow(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
            if len(y):
                plain.step(head, FederatedClient.loss_and_direction(self, head, x, y)[1])
            return self.loss_and_direction(parameters, x, y)

        epochs = self.ctx.local.local_epochs
        loss = self.train_epochs(self.trainable_parameters(), epochs, self.optimiser(), follow=follow)
        return {"loss": loss, **self.measures()}
