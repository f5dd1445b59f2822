"""DLG, "Deep Leakage from Gradients": search for image and label whose gradient is the one observed.

Paper       Zhu et al., "Deep Leakage from Gradients", NeurIPS 2019, arXiv 1906.08935.
Minimises   || gradient of (x', softmax(y')) - observed gradient ||^2 over x' and y', without prior or box,
by          L-BFGS, step size 1, 300 steps of 20 evaluations, both from N(0, 1).
Granted     nothing beyond the observation and the model: labels are searched for.
Needs       a network that is twice differentiable everywhere, as the sigmoid LeNet is. With ReLU it mostly fails.
Adaptive    a known mechanism stands inside the objective; known local steps are unrolled.
Departures  1. A search that diverges or gets stuck is begun again from another start, at most ``restarts`` times in
               all; the start with the lowest distance counts, and none is begun once the distance is below ``solved``.
            2. The distance is divided by the squared length of the observed gradient. A victim whose label the network
               is sure of sends a tiny one; L-BFGS, and what counts as solved, would take any guess for good enough.
            3. The result is clamped to the box, after the search.
            4. ``iterations`` in the audit are those of the start that counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import final

import torch
from torch import Tensor

from flfw.adversary.attack import Budget
from flfw.adversary.gradient_matching import GradientMatching
from flfw.errors import require
from flfw.inversion.automatic import Automatic
from flfw.inversion.descent import LBFGS
from flfw.inversion.matching import gaussian_likelihood, relative_distance
from flfw.inversion.search import Recipe, normal
from flfw.victims.operator import Operator


@dataclass(frozen=True)
class DLGSettings:
    """The search."""

    iterations: int = 300  # L-BFGS steps of 20 evaluations from each start, >= 1
    lr: float = 1.0  # of a step, > 0
    restarts: int = 8  # starts at most, >= 1
    solved: float = 1e-7  # squared distance, over that of the observed gradient from 0, that ends a search; >= 0

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations >= 1", iterations=self.iterations)
        require(0 < self.lr < inf, "0 < lr < inf", lr=self.lr)
        require(self.restarts >= 1, "restarts >= 1", restarts=self.restarts)
        require(self.solved >= 0, "solved >= 0", solved=self.solved)


class LeastSquares(GradientMatching, ABC):
    """The search of DLG and of the attacks that differ from it in labels and start alone."""

    Settings = DLGSettings

    @property
    def budget(self) -> Budget:
        """As set."""
        return Budget(self.settings.iterations, self.settings.restarts, "lowest squared distance")

    @property
    @abstractmethod
    def labels(self) -> str:
        """How it comes by the labels."""

    def start(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """A first guess (B, ...), in normalised units."""
        return normal(shape, rng)

    def recipe(self, told: Operator | Automatic | None) -> Recipe:
        """Relative squared distance, or a likelihood where the size of the noise is known; L-BFGS, no prior."""
        noise = None if told is None else told.noise
        return Recipe(
            distance=relative_distance if noise is None else gaussian_likelihood(noise),
            descent=LBFGS(self.settings.iterations, self.settings.lr),
            start=self.start,
            restarts=self.settings.restarts,
            solved=self.settings.solved,
            boxed=False,
            lost=1.0 if noise is None else inf,  # relative squared distance of no gradient at all
        )


@final
class DLG(LeastSquares):
    """Squared distance, image and label."""

    @property
    def labels(self) -> str:
        """Part of the guess."""
        return "searched for"
