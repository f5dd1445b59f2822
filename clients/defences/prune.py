"""Prune: only the entries of largest magnitude of each tensor are sent.

Paper       a baseline of the gradient-inversion papers (Zhu et al., "Deep Leakage from Gradients", NeurIPS 2019,
            section 5.2; the DCS^2 paper prunes 70 % on MNIST and 90 % on CIFAR-10).
Acts on     the change of the shared tensors (in a probe: their gradient), each tensor by itself.
Departures  none: as in those papers' comparisons, entries that are not sent are lost, with no residual for later.
"""

from dataclasses import dataclass, replace
from typing import final

import torch

from flfw.bounds import BoundedSettings, ShareBelowOne
from flfw.nets import Tensors
from flfw.nets.training.clipping import keep_largest
from flfw.task.defence import Defence


@dataclass(frozen=True)
class PruneSettings(BoundedSettings):
    """Share of the entries that are not sent."""

    ratio: ShareBelowOne = 0.9  # share of each tensor's entries set to 0


@final
class Prune(Defence):
    """Defence that zeroes the smallest entries of each tensor."""

    Settings = PruneSettings

    @classmethod
    def weakest_settings(cls, settings: PruneSettings) -> PruneSettings:
        """Return settings that zero at most a tenth of the entries."""
        return replace(settings, ratio=min(settings.ratio, 0.1))

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Keep the largest ``1 - ratio`` of each tensor's entries."""
        return {name: keep_largest(value, self.settings.ratio) for name, value in update.items()}
