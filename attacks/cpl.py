"""CPL, "Client Privacy Leakage": iDLG from a patterned start, the attack in the Fed-CDP paper.

Paper       Wei et al., "A Framework for Evaluating Client Privacy Leakages in Federated Learning", ESORICS 2020, arXiv
            2004.10397; used in Wei et al., "Gradient-Leakage Resilient Federated Learning", ICDCS 2021, table VII.
Start       a random patch of half the image's height and width, U(0, 1) in normalised units, tiled two by two.
Labels      as in iDLG.
Minimises   || gradient of (x', label) - observed gradient ||^2 over x', without prior or box,
by          L-BFGS, step size 1, at most 300 steps of 20 evaluations.
Granted     nothing but the observation and the model.
Needs       a network that is twice differentiable everywhere; a shared last layer, with its bias.
Adaptive    a known mechanism stands inside the objective; known local steps are unrolled.
Departures  1. One start, as in the paper; it ends once the squared distance is below ``solved``, for which the paper
               gives no value. The steps until then are the ``iterations`` of the audit.
            2. For odd sizes the tiles are cut off. Rows of a table have no neighbours to tile: they start from U(0, 1).
            3. Batches: labels are recovered by their counts (`flfw.inversion.closed_form.labels`).
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flfw.attacks.dlg import DLGSettings, LeastSquares


@dataclass(frozen=True)
class CPLSettings(DLGSettings):
    """Settings of the search: DLG's, with one start."""

    restarts: int = 1  # largest number of starts, >= 1


@final
class CPL(LeastSquares):
    """Squared distance from a patterned start, with the label read off."""

    Settings = CPLSettings

    @property
    def labels(self) -> str:
        """``recovered``: read off the last layer."""
        return "recovered"

    def start(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Draw a pattern."""
        return patterned(shape, rng)


def patterned(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Draw (B, C, H, W), for each image a patch from U(0, 1), tiled two by two; or (B, d) from U(0, 1)."""
    if len(shape) < 4:
        return torch.rand(shape, generator=rng)
    batch, channels, height, width = shape
    patch = torch.rand((batch, channels, -(-height // 2), -(-width // 2)), generator=rng)
    return patch.tile(1, 1, 2, 2)[..., :height, :width]
