"""TabLeak: rows of a table as the median of many searches over relaxed categories.

Paper       Vero et al., "TabLeak: Tabular Data Leakage in Federated Learning", ICML 2023, arXiv 2210.01785.
Relaxes     a category to the softmax of free scores, a number to a sigmoid, so that every guess is a row.
Minimises   the mean over the tensors of 1 - cos(gradient of guess, observed gradient),
by          Adam on the sign of the gradient, step size 0.06, 1,500 steps, from scores drawn from U(0, 1).
Joins       the results of 30 such searches: their rows are matched with those of the search of lowest distance, then
            the median of each number, and of each category the value whose median probability is highest.
Certainty   The share of the searches that agree with a feature of the joint result is its ``agreement``.
Needs       rows of a table; public rows, which show what columns form a category.
Granted     the labels, or recovered ones (``labels=counts``), as in the paper's two settings.
Adaptive    a known mechanism stands inside the objective, and known local steps are unrolled.
Departures  1. With known noise the distance is the likelihood's.
            2. Categories are neighbouring binary columns that exclude each other in all public rows; the authors read
               them off the data set's description.
            3. The joint result counts only if its own distance is at most that of the search of lowest distance, both
               with whole categories; else the latter does.
            4. Their temperature of the softmax is a constant 1 in the published settings, and here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal, final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from flfw.adversary.attack import AttackCost, NotApplicableError, Uses
from flfw.adversary.gradient_matching import GradientMatching, GrantedOperator
from flfw.bounds import BoundedSettings, PositiveFinite, PositiveInt
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.relaxed_rows import Categories, RelaxedRows, agreement
from flfw.inversion.fit import fits
from flfw.inversion.matching import gaussian_likelihood, tensorwise_cosine_distance
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.recording.observation import Knowledge, Reconstruction

_SCORES = 1e3  # the greatest score, beyond which a softmax is 0 or 1 in any case
_NEVER = 1e6  # cost of matching rows of different labels
_TOLERANCE = 0.05  # difference of two numbers in [0, 1] that agree


@dataclass(frozen=True)
class TabLeakSettings(BoundedSettings):
    """Settings of the searches."""

    iterations: PositiveInt = 1500  # Adam steps of each search
    lr: PositiveFinite = 0.06  # step size in units of the scores
    restarts: PositiveInt = 30  # searches that are joined
    labels: Literal["given", "counts"] = "given"  # granted, or recovered from the gradient


@final
class TabLeak(GradientMatching):
    """Ensemble of searches over relaxed rows."""

    numbers: ClassVar[bool] = True
    Settings = TabLeakSettings

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings."""
        return AttackCost(self.settings.iterations, self.settings.restarts, "median of all, aligned with the nearest")

    @property
    def labels(self) -> str:
        """Source of the labels, from the settings."""
        return self.settings.labels

    @property
    def uses(self) -> Uses:
        """Public rows, for the categories."""
        return frozenset({"public"})

    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use the distance tensor by tensor, or the likelihood of known noise."""
        adam = AdamSearch(self.settings.iterations, self.settings.lr, signed=True, schedule="constant")
        noise = None if operator is None else operator.noise
        distance = tensorwise_cosine_distance if noise is None else gaussian_likelihood(noise)
        return SearchConfig(distance, adam, start=lambda shape, rng: torch.rand(shape, generator=rng))

    def reconstruct(
        self, knowledge: Knowledge, targets: Sequence[SearchTarget], operator: GrantedOperator
    ) -> list[Reconstruction]:
        """Search from several starts for the rows of each victim, and join the results."""
        if len(knowledge.model.inputs.shape) != 1:
            raise NotApplicableError("it needs rows of a table, got images")
        if knowledge.public is None:
            raise NotApplicableError("it needs public rows, which show what columns form a category")
        categories = Categories.of_rows(knowledge.public.samples)
        victim, restarts = RelaxedRows(knowledge.model, categories), self.settings.restarts
        each = [target for target in targets for _ in range(restarts)]
        box = (-_SCORES, _SCORES)
        searches = invert(victim, each, self.recipe(operator), operator=operator, box=box, compute=self.compute)
        return [
            self._joined(knowledge, categories, target, searches[i * restarts : (i + 1) * restarts], operator)
            for i, target in enumerate(targets)
        ]

    def _joined(
        self,
        knowledge: Knowledge,
        categories: Categories,
        target: SearchTarget,
        searches: Sequence[SearchResult],
        operator: GrantedOperator,
    ) -> Reconstruction:
        """Join the searches for one victim."""
        ended = sorted((one for one in searches if one.matching_loss < inf), key=lambda one: one.matching_loss)
        if not ended:
            return Reconstruction(searches[0].samples, inf, labels=target.labels)
        rows = aligned(categories, ended)
        nearest, joint = categories.rounded(rows[0]), categories.joined(rows)
        if not knowledge.model.unknown and len(rows) > 1:
            places = [(joint, target.labels), (nearest, target.labels)]
            of_joint, of_nearest = fits(knowledge.model, target, self.recipe(operator), places, mechanism=operator)
            joint = joint if of_joint.distance <= of_nearest.distance else nearest
        votes = None  # of one search, which agrees with itself in any case
        if len(rows) > 1:
            votes = agreement(categories, [*categories.rounded(rows)], joint, _TOLERANCE)
        return Reconstruction(
            joint.clamp(*knowledge.box), ended[0].matching_loss, labels=target.labels, agreement=votes
        )


def aligned(categories: Categories, searches: Sequence[SearchResult]) -> Tensor:
    """Return relaxed rows (R, B, d) of searches, each in the order that is nearest to the first one's rows."""
    rows = [categories.relaxed(one.samples) for one in searches]
    first, labels = rows[0].double(), searches[0].labels
    ordered = []
    for row, search in zip(rows, searches, strict=True):
        costs = torch.cdist(first, row.double()).square() + _NEVER * (labels[:, None] != search.labels)
        ordered.append(row[torch.from_numpy(linear_sum_assignment(costs.cpu().numpy())[1])])
    return torch.stack(ordered)
