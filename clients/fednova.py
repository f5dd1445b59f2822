"""FedNova's client half: local SGD on the loss plus mu/2 ||x_i - x||^2; it reports its number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from torch import Tensor

from flfw.client.phases import Phases
from flfw.client.stacked_descent import GradientClient
from flfw.nets import Tensors


@final
class FedNovaClient(GradientClient):
    """Client with local SGD that counts its steps."""

    place_labels = True
    regresses = True

    def load_received(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Store x as well."""
        super().load_received(received, version)
        self._broadcast = {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def training_phases(self) -> Phases[dict[str, float]]:
        """Return the mean loss of the last epoch, the proximal term included, and tau_i."""
        metrics = yield from super().training_phases()
        return {**metrics, "steps": self.steps_made}

    def proximal_anchor(self) -> Tensors:
        """Return the broadcast model."""
        return self._broadcast if self.ctx.settings.mu else {}

    def proximal_term(self, parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor | float:
        """Compute the proximal term, which is 0 at the broadcast model."""
        if not self.ctx.settings.mu:
            return 0.0
        distance = sum(((value - anchor[name]) ** 2).sum() for name, value in parameters.items())
        return self.ctx.settings.mu / 2 * distance
