"""The input space of a network: shape, range and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class InputSpec:
    """Input space of a network: raw inputs in [0, 1] are normalised to network inputs ``(x - mean) / std``.

    Attributes:
        shape: shape of one input, (C, H, W) or (d,).
        mean: mean, broadcastable to ``shape``.
        std: standard deviation, broadcastable to ``shape``, > 0.
    """

    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor

    @classmethod
    def from_constants(cls, shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]) -> InputSpec:
        """Make `InputSpec` from one mean and one deviation per channel (images) or per feature (rows)."""
        broadcast = (len(mean),) + (1,) * (len(shape) - 1)
        return cls(shape, torch.tensor(mean).view(broadcast), torch.tensor(std).view(broadcast))

    def to(self, device: torch.device) -> InputSpec:
        """Return a copy with the constants on another device."""
        return InputSpec(self.shape, self.mean.to(device), self.std.to(device))

    def normalise(self, x: Tensor) -> Tensor:
        """Normalise raw inputs (B, ...) in [0, 1] to network inputs."""
        return (x - self.mean.to(x.device)) / self.std.to(x.device)
