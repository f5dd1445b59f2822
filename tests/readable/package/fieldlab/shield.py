"""Shield: of each tensor only the signs and one length leave the client."""

from dataclasses import dataclass
from typing import final

import torch

from flfw.errors import require
from flfw.nets import Tensors
from flfw.task.defence import Defence


@dataclass(frozen=True)
class ShieldSettings:
    """The length of the update."""

    scale: float = 1.0  # factor of the mean magnitude, > 0

    def __post_init__(self) -> None:
        require(self.scale > 0, "scale > 0", scale=self.scale)


@final
class Shield(Defence):
    """Replace each entry by its sign times the tensor's mean magnitude."""

    Settings = ShieldSettings

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Send the signs."""
        return {name: self.settings.scale * value.abs().mean() * value.sign() for name, value in update.items()}
