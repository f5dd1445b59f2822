"""Drop entries: a random share of each tensor's entries is set to 0; the others are scaled up, so the mean is kept.

Paper       none; the mask of dropout (Srivastava et al., JMLR 2014), applied to the update.
Acts on     the change of the shared tensors (in a probe: their gradient).
Departures  none.
"""

from dataclasses import dataclass, replace
from typing import final

import torch

from flfw.errors import require
from flfw.nets import Tensors
from flfw.task.defence import Defence


@dataclass(frozen=True)
class DropEntriesSettings:
    """The share of the entries that are not sent."""

    share: float = 0.5  # in [0, 1)

    def __post_init__(self) -> None:
        require(0 <= self.share < 1, "0 <= share < 1", share=self.share)


@final
class DropEntries(Defence):
    """Drop each entry with probability `share`."""

    Settings = DropEntriesSettings

    @classmethod
    def weakest_settings(cls, settings: DropEntriesSettings) -> DropEntriesSettings:
        """Return a share that leaves almost all entries."""
        return replace(settings, share=min(settings.share, 0.01))

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Draw a mask for each tensor."""
        return {name: value * self._mask(value, rng) for name, value in update.items()}

    def _mask(self, value: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        kept = torch.rand(value.shape, generator=rng) >= self.settings.share
        return kept / (1 - self.settings.share)
