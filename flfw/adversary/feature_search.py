"""The features behind a shared classifier's gradient: read off, or searched for through the classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from flfw.adversary.attack import Budget
from flfw.adversary.gradient_matching import GradientMatching
from flfw.adversary.observation import Knowledge, Observation, mean_gradient
from flfw.errors import require
from flfw.inversion.automatic import Automatic
from flfw.inversion.closed_form.features import (
    feature_victim,
    features_range,
    features_shape,
    first_linear,
    read_features,
)
from flfw.inversion.descent import LBFGS
from flfw.inversion.matching import gaussian_likelihood, relative_distance
from flfw.inversion.priors import energy
from flfw.inversion.search import Recipe
from flfw.victims.operator import Operator

_INNER = 20  # evaluations in a step of L-BFGS


@dataclass(frozen=True)
class FeatureSearchSettings:
    """The search."""

    evaluations: int = 1000  # of L-BFGS, >= 1

    def __post_init__(self) -> None:
        require(self.evaluations >= 1, "evaluations >= 1", evaluations=self.evaluations)


@final
class FeatureSearch(GradientMatching):
    """The search for features whose gradient through the known classifier is the one observed."""

    Settings = FeatureSearchSettings

    @property
    def budget(self) -> Budget:
        """As set."""
        return Budget(self.settings.evaluations, 1, "lowest squared distance")

    def recipe(self, told: Operator | Automatic | None) -> Recipe:
        """L-BFGS on the relative squared distance; with noise of known size, likelihood and Gaussian prior in nats."""
        inner = min(_INNER, self.settings.evaluations)
        descent, size = LBFGS(self.settings.evaluations // inner, inner=inner), told.noise if told else None
        if size is None:
            return Recipe(relative_distance, descent)
        return Recipe(gaussian_likelihood(size), descent, lambda x: energy(x) * x.numel() / 2)

    def features(
        self, seen: Sequence[Observation], known: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Tensor]:
        """Of each victim (B, ...): exactly for one example at a fully connected layer, else by the search.

        Args:
            seen: of victims of one model and batch size.
            known: whose model has a classifier that is known, and labels where a search is needed.
            rngs: of the searches.
        """
        model, inputs = known[0].model.model, known[0].model.inputs
        first, shape = first_linear(model), features_shape(model, inputs)
        if first and known[0].batch == 1 and not known[0].mechanism:
            gradients = [mean_gradient(o, k) for o, k in zip(seen, known, strict=True)]
            return [read_features(g[f"{first}.weight"], g[f"{first}.bias"]).view(1, *shape) for g in gradients]
        victim, box = feature_victim(known[0].model), features_range(model)
        found = self.run(seen, [replace(k, model=victim, box=box) for k in known], rngs)
        return [one.samples for one in found]
