"""Features behind a shared classifier's gradient: read off, or searched for through the classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from flfw.adversary.attack import AttackCost
from flfw.adversary.gradient_matching import GradientMatching
from flfw.bounds import BoundedSettings, PositiveInt
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.closed_form.features import (
    feature_victim,
    features_range,
    features_shape,
    first_linear,
    read_features,
)
from flfw.inversion.matching import gaussian_likelihood, relative_distance
from flfw.inversion.priors import energy
from flfw.inversion.search import SearchConfig
from flfw.inversion.search_optimisers import LBFGS
from flfw.recording.observation import Knowledge, Observation, mean_gradient

_INNER = 20  # evaluations in a step of L-BFGS


@dataclass(frozen=True)
class FeatureSearchSettings(BoundedSettings):
    """Settings of the search."""

    evaluations: PositiveInt = 1000  # of L-BFGS


@final
class FeatureSearch(GradientMatching):
    """Search for features whose gradient through the known classifier matches the observed one."""

    Settings = FeatureSearchSettings

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings."""
        return AttackCost(self.settings.evaluations, 1, "lowest squared distance")

    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use L-BFGS on the relative squared distance; for known noise, likelihood and Gaussian prior in nats."""
        inner = min(_INNER, self.settings.evaluations)
        descent, size = LBFGS(self.settings.evaluations // inner, inner=inner), operator.noise if operator else None
        if size is None:
            return SearchConfig(relative_distance, descent)
        return SearchConfig(gaussian_likelihood(size), descent, lambda x: energy(x) * x.numel() / 2)

    def features(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Tensor]:
        """Return each victim's features (B, ...): exact for one example at a fully connected layer, else searched for.

        Args:
            observations: observations of victims with one model and batch size.
            knowledge: knowledge with a model whose classifier is known, and with labels where a search is needed.
            rngs: generators of the searches.
        """
        model, inputs = knowledge[0].model.model, knowledge[0].model.inputs
        first, shape = first_linear(model), features_shape(model, inputs)
        if first and knowledge[0].batch == 1 and not knowledge[0].operator:
            gradients = [mean_gradient(o, k) for o, k in zip(observations, knowledge, strict=True)]
            return [read_features(g[f"{first}.weight"], g[f"{first}.bias"]).view(1, *shape) for g in gradients]
        victim, box = feature_victim(knowledge[0].model), features_range(model)
        results = self.run(observations, [replace(k, model=victim, box=box) for k in knowledge], rngs)
        return [one.samples for one in results]
