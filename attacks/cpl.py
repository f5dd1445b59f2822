"""CPL, "Client Privacy Leakage": iDLG from a patterned start, the attack of the Fed-CDP paper.

Paper       Wei et al., "A Framework for Evaluating Client Privacy Leakages in Federated Learning", ESORICS 2020, arXiv
            2004.10397; used in Wei et al., "Gradient-Leakage Resilient Federated Learning", ICDCS 2021, table VII.
Start       a random patch of half the image's height and width, U(0, 1) in normalised units, tiled two by two.
Labels      as in iDLG.
Minimises   || gradient of (x', label) - observed gradient ||^2 over x', without prior or box,
by          L-BFGS, step size 1, at most 300 steps of 20 evaluations.
Granted     nothing beyond the observation and the model.
Needs       a network that is twice differentiable everywhere; a last layer that is shared, with its bias.
Adaptive    a known mechanism stands inside the objective; known local steps are unrolled.
Departures  1. One start, as in the paper; it is over once the squared distance is below ``solved``, for which the paper
               states no value. Steps until then are the ``iterations`` of the audit.
            2. Of odd sizes the tiles are cut off. Rows have no neighbours to tile: theirs starts as U(0, 1).
            3. Batches: labels are recovered by their counts (`flfw.inversion.closed_form.labels`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attacks.dlg import DLGSettings, LeastSquares


@dataclass(frozen=True)
class CPLSettings(DLGSettings):
    """The search: DLG's, from one start."""

    restarts: int = 1  # starts at most, >= 1


@final
class CPL(LeastSquares):
    """Squared distance from a patterned start, with the label read off."""

    Settings = CPLSettings

    @property
    def labels(self) -> str:
        """Read off the last layer."""
        return "recovered"

    def start(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """A pattern."""
        return patterned(shape, rng)


def patterned(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """(B, C, H, W): for each image a patch from U(0, 1), tiled two by two; (B, d): U(0, 1)."""
    if len(shape) < 4:
        return torch.rand(shape, generator=rng)
    batch, channels, height, width = shape
    patch = torch.rand((batch, channels, -(-height // 2), -(-width // 2)), generator=rng)
    return patch.tile(1, 1, 2, 2)[..., :height, :width]
