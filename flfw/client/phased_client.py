"""Client halves whose training is a sequence of phases, so that some clients can go through each of them together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from flfw.client.federated_client import IN_THEIR_OWN_WAY, FederatedClient
from flfw.client.phases import Phases, one_by_one


class BatchableClient(FederatedClient, ABC):
    """Base of client halves that opt in to training together; `phases` takes the place of `train`."""

    @abstractmethod
    def phases(self) -> Phases[dict[str, float]]:
        """Yield each phase of a round's training, and return its metrics, at least ``loss``."""

    def train(self) -> dict[str, float]:
        """Go through the phases alone."""
        return one_by_one(self.phases())

    @classmethod
    def not_batchable_reason(cls, model: nn.Module, settings: Any) -> str:
        """Name the reason against joint steps, such as a way of training beside the phases; see the base."""
        reason = super().not_batchable_reason(model, settings)
        return reason or ("" if cls.train is BatchableClient.train else IN_THEIR_OWN_WAY)

    def training(self) -> Phases[dict[str, float]]:
        """Yield the phases, unless a subclass trains in another way."""
        if type(self).train is not BatchableClient.train:
            return (yield from super().training())
        return (yield from self.phases())
