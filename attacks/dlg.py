"""DLG, "Deep Leakage from Gradients": search for an image and a label whose gradient matches the observed one.

Paper       Zhu et al., "Deep Leakage from Gradients", NeurIPS 2019, arXiv 1906.08935.
Minimises   || gradient of (x', softmax(y')) - observed gradient ||^2 over x' and y', without prior or box,
by          L-BFGS, step size 1, 300 steps of 20 evaluations, both from N(0, 1).
Granted     nothing but the observation and the model: labels are searched for.
Needs       a network that is twice differentiable everywhere, as the sigmoid LeNet is. With ReLU it mostly fails.
Adaptive    a known mechanism stands inside the objective; known local steps are unrolled.
Departures  1. A search that diverges or gets stuck is repeated from another start, with at most ``restarts`` starts in
               all. The start with the lowest distance counts; a distance below ``solved`` ends the search.
            2. The distance is divided by the squared length of the observed gradient. If the network is sure of a
               victim's label, its gradient is tiny, and any guess would be good enough for L-BFGS and ``solved``.
            3. The result is clamped to the box, after the search.
            4. ``iterations`` in the audit are those of the start that counts.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import final

import torch
from torch import Tensor

from flfw.adversary.gradient_matching import GradientMatching
from flfw.bounds import BoundedSettings, NonNegativeFloat, PositiveFinite, PositiveInt
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.matching import gaussian_likelihood, relative_distance
from flfw.inversion.outliers import AsOutliers
from flfw.inversion.search import SearchConfig, Stage, normal
from flfw.inversion.search_optimisers import LBFGS


@dataclass(frozen=True)
class DLGSettings(BoundedSettings):
    """Settings of the search."""

    iterations: PositiveInt = 300  # L-BFGS steps of 20 evaluations from each start
    lr: PositiveFinite = 1.0  # step size
    restarts: PositiveInt = 8  # largest number of starts
    solved: NonNegativeFloat = 1e-7  # squared distance over the observation's squared length that ends a search


class LeastSquares(GradientMatching, ABC):
    """Search of DLG and of attacks that differ from it only in labels and start."""

    Settings = DLGSettings
    selection = "lowest squared distance"

    @property
    @abstractmethod
    def labels(self) -> str:
        """Source of the labels; see `Attack.labels`."""

    def start(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Draw a first guess (B, ...), in normalised units."""
        return normal(shape, rng)

    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use L-BFGS on the relative squared distance, or on a likelihood for known noise; no prior.

        Against replaced entries, half of the steps come first, on the squared distance from the plausible entries.
        """
        noise, steps, opening = None if operator is None else operator.noise, self.settings.iterations, ()
        if isinstance(operator, AsOutliers) and steps > 1:
            first = LBFGS(steps // 2, self.settings.lr)
            steps, opening = steps - first.iterations, (Stage(relative_distance, first, through=False),)
        return SearchConfig(
            distance=relative_distance if noise is None else gaussian_likelihood(noise),
            descent=LBFGS(steps, self.settings.lr),
            opening=opening,
            start=self.start,
            restarts=self.settings.restarts,
            solved=self.settings.solved,
            boxed=False,
            failed_above=1.0 if noise is None else inf,  # relative squared distance of a gradient of 0
        )


@final
class DLG(LeastSquares):
    """Squared distance, with image and label searched for."""

    @property
    def labels(self) -> str:
        """``searched for``: part of the guess."""
        return "searched for"
