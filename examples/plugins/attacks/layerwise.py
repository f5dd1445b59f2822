"""Layerwise: search for data whose gradient has the direction of the observed one, tensor by tensor.

Paper       none; the cosine distance of Geiping et al., NeurIPS 2020, taken for each tensor and averaged.
Minimises   the mean over the tensors of 1 - cos, plus tv * TV(guess), by Adam.
Granted     the labels.
Adaptive    a known mechanism stands inside the objective; known local steps are unrolled.
Departures  1. small tensors count as much as large ones.
            2. for generated networks the tensors are those of the victim model's coordinates.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flfw.adversary.attack import AttackCost
from flfw.adversary.gradient_matching import GradientMatching
from flfw.errors import require
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.matching import cosine_distance, gaussian_likelihood
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.search import SearchConfig
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.net import Tensors


@dataclass(frozen=True)
class LayerwiseSettings:
    """Settings of the search."""

    iterations: int = 1000  # Adam steps, >= 1
    lr: float = 0.1  # step size, > 0
    tv: float = 1e-3  # weight of the total variation, >= 0

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations >= 1", iterations=self.iterations)
        require(self.lr > 0, "lr > 0", lr=self.lr)
        require(self.tv >= 0, "tv >= 0", tv=self.tv)


def layer_distance(trial: Tensors, observed: Tensors) -> Tensor:
    """Compute the mean cosine distance of the tensors."""
    each = [cosine_distance({name: trial[name]}, {name: value}) for name, value in observed.items()]
    return torch.stack(each).mean()


@final
class Layerwise(GradientMatching):
    """Search by the mean cosine distance of the tensors."""

    Settings = LayerwiseSettings

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings."""
        return AttackCost(self.settings.iterations, 1, "lowest mean cosine distance")

    def recipe(self, mechanism: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use the cosines or, for known noise, the likelihood."""
        noise = None if mechanism is None else mechanism.noise
        distance = layer_distance if noise is None else gaussian_likelihood(noise)
        descent = AdamSearch(self.settings.iterations, self.settings.lr, schedule="cosine")
        return SearchConfig(distance, descent, weighted((self.settings.tv, total_variation)))
