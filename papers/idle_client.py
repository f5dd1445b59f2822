"""Client that sends the model it received: the baselines' defended client in the released code of DCS^2.

There the gradient of Prune, DP-Gaussian and others is copied into the optimiser only if it holds one already, which it
never does. Their accuracies are those of the other clients. Not for use.
"""

from typing import final

import torch

from flfw.nets import Tensors
from flfw.task.defence import Defence


@final
class IdleClient(Defence):
    """Defence that changes nothing in the model."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Return an update of zeros."""
        return {name: torch.zeros_like(value) for name, value in update.items()}
