"""Defences that leave an attack nothing to find."""

import torch
from torch import Tensor

from flfw.nets import Tensors
from flfw.task.defence import Defence


class SendsNothing(Defence):
    """Zeroes whatever leaves the client."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Make zeros of the same shapes."""
        return {name: torch.zeros_like(value) for name, value in update.items()}


class Blanks(Defence):
    """Replaces the batch by black images, whose gradient gives black images away."""

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make black images of the same labels."""
        return torch.zeros_like(x), y
