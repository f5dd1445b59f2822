"""FedNova's client half: local SGD on the loss plus mu/2 ||x_i - x||^2; it reports its number of steps."""

from collections.abc import Mapping
from typing import final

from torch import Tensor

from flfw.client.gradient_client import ProximalClient
from flfw.client.phases import Phases
from flfw.nets import Tensors


@final
class FedNovaClient(ProximalClient):
    """Client with local SGD that counts its steps."""

    place_labels = True
    regresses = True

    def training_phases(self) -> Phases[dict[str, float]]:
        """Return the mean loss of the last epoch, the proximal term included, and tau_i."""
        return {**(yield from super().training_phases()), "steps": self.steps_made}

    def proximal_anchor(self) -> Tensors:
        """Return the broadcast model, if there is a proximal term."""
        return super().proximal_anchor() if self.ctx.settings.mu else {}

    def proximal_term(self, parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor | float:
        """Compute the proximal term, if there is one."""
        return super().proximal_term(parameters, anchor) if self.ctx.settings.mu else 0.0
