"""CENTAUR's client half: the head first, then the extractor in noisy steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from torch import Tensor

from flfw.client import FederatedClient
from flfw.nets import Tensors
from flfw.noisy_client import NoisyClient


@final
class CentaurClient(NoisyClient):
    """One epoch on the head, E on the extractor."""

    def train(self) -> dict[str, float]:
        """Returns the mean losses of the last epoch and of the head's, and `measures`."""
        settings, moving = self.at.settings, self.moving()
        head = {name: p for name, p in self.model.named_parameters() if name not in moving}
        plain = settings.optimiser_at(settings.head_lr)

        def follow(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
            return FederatedClient.follow(self, parameters, x, y)

        head_loss = self.descend(head, settings.head_epochs, plain, purpose="head", follow=follow)
        return {**super().train(), "head_loss": head_loss}
