"""FedProx's client half: local SGD on the loss plus mu/2 ||w_k - w||^2, where w is this round's broadcast model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from torch import Tensor

from flfw.client.stacked_descent import GradientClient
from flfw.nets import Tensors


@final
class FedProxClient(GradientClient):
    """Client with local SGD held near the broadcast model."""

    place_labels = True
    regresses = True

    def load_received(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Store w as well."""
        super().load_received(received, version)
        self._broadcast = {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def proximal_anchor(self) -> Tensors:
        """Return w."""
        return self._broadcast

    def proximal_term(self, parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor | float:
        """Compute the proximal term, which is 0 at the broadcast model."""
        distance = sum(((value - anchor[name]) ** 2).sum() for name, value in parameters.items())
        return self.ctx.settings.mu / 2 * distance
