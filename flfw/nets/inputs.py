"""The input space of a network: shape, range and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Inputs:
    """How raw inputs in the box [0, 1] become what the network sees: ``(x - mean) / std``.

    Attributes:
        shape: of one input, (C, H, W) or (d,).
        mean: broadcastable to ``shape``.
        std: broadcastable to ``shape``, > 0.
    """

    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]) -> Inputs:
        """From one mean and deviation per channel (images) or per feature (rows)."""
        broadcast = (len(mean),) + (1,) * (len(shape) - 1)
        return cls(shape, torch.tensor(mean).view(broadcast), torch.tensor(std).view(broadcast))

    def to(self, device: torch.device) -> Inputs:
        """The same with its constants on another device."""
        return Inputs(self.shape, self.mean.to(device), self.std.to(device))

    def normalise(self, x: Tensor) -> Tensor:
        """Raw inputs (B, ...) in [0, 1] to network inputs."""
        return (x - self.mean.to(x.device)) / self.std.to(x.device)
