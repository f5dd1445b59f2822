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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal, final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from flfw.adversary.attack import NotApplicableError, Uses
from flfw.adversary.gradient_matching import GradientMatching, GrantedOperator
from flfw.bounds import BoundedSettings, PositiveFinite, PositiveInt
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import VictimModel, WrappingVictim
from flfw.inversion.fit import fits
from flfw.inversion.matching import gaussian_likelihood, tensorwise_cosine_distance
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.inputs import InputSpec
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
    selection = "median of all, aligned with the nearest"

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


@dataclass(frozen=True)
class Categories:
    """Columns of a table by their kinds.

    Attributes:
        groups: neighbouring binary columns of which at most one is 1 in a row: the values of a category. A binary
            column that goes with no other one is a group of its own.
        open: for each group whether all of its columns may be 0.
        numbers: the other columns, with values in [0, 1].
    """

    groups: tuple[tuple[int, ...], ...]
    open: tuple[bool, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of_rows(cls, rows: Tensor) -> Categories:
        """Find the groups in public rows (N, d), from left to right.

        A column joins the group on its left if no row has a 1 in both. So the first values of a category may be taken
        for values of the one before it, where those who have them have none there.

        >>> rows = torch.tensor([[0.3, 1.0, 0.0, 1.0], [0.5, 0.0, 1.0, 1.0], [0.5, 1.0, 0.0, 0.0]])
        >>> Categories.of_rows(rows)
        Categories(groups=((1, 2), (3,)), open=(False, True), numbers=(0,))
        """
        binary = ((rows == 0) | (rows == 1)).all(0)
        groups: list[list[int]] = []
        ones = torch.zeros(len(rows))  # in the last group
        for column in torch.nonzero(binary).flatten().tolist():
            beside = bool(groups) and groups[-1][-1] == column - 1
            if beside and not bool(((ones > 0) & (rows[:, column] > 0)).any()):
                groups[-1].append(column)
                ones = ones + rows[:, column]
            else:
                groups.append([column])
                ones = rows[:, column].clone()
        free = [bool((rows[:, group].sum(1) == 0).any()) for group in groups]
        return cls(tuple(map(tuple, groups)), tuple(free), tuple(torch.nonzero(~binary).flatten().tolist()))

    def relaxed(self, x: Tensor) -> Tensor:
        """Return the rows of unbounded numbers (..., d): each category's probabilities, and numbers in (0, 1)."""
        parts = [x[..., list(self.numbers)].sigmoid()] if self.numbers else []
        for group, free in zip(self.groups, self.open, strict=True):
            scores = x[..., list(group)]
            if free:
                scores = torch.cat([scores, torch.zeros_like(scores[..., :1])], -1)
            parts.append(scores.softmax(-1)[..., : len(group)])
        order = [*self.numbers, *(column for group in self.groups for column in group)]
        return torch.cat(parts, -1)[..., torch.tensor(order, device=x.device).argsort()]

    def rounded(self, rows: Tensor) -> Tensor:
        """Set the most probable value of each category to 1 and all others to 0, in relaxed rows (..., d)."""
        return self._chosen(rows, rows.clone(), lambda chances: chances)

    def joined(self, rows: Tensor) -> Tensor:
        """Join relaxed rows (R, B, d) of R results to rows (B, d): medians of numbers, and whole categories.

        The value of a category, or none of its values where it is open, is the one of the highest median probability.
        """
        return self._chosen(rows, _median(rows), _median)

    def _chosen(self, rows: Tensor, result: Tensor, join: Callable[[Tensor], Tensor]) -> Tensor:
        """Overwrite the categories of ``result`` by the value that is the most probable after ``join``."""
        for group, free in zip(self.groups, self.open, strict=True):
            chances = rows[..., list(group)]
            if free:
                chances = torch.cat([chances, 1 - chances.sum(-1, keepdim=True)], -1)
            full = torch.nn.functional.one_hot(join(chances).argmax(-1), chances.shape[-1])
            result[..., list(group)] = full[..., : len(group)].to(rows.dtype)
        return result


@final
class RelaxedRows(WrappingVictim):
    """Client whose rows are given as unbounded numbers, see `Categories.relaxed`.

    Args:
        client: computes the gradient for rows.
        categories: of its table.
    """

    def __init__(self, client: VictimModel, categories: Categories) -> None:
        inputs = client.inputs
        super().__init__(client, InputSpec(inputs.shape, torch.zeros_like(inputs.mean), torch.ones_like(inputs.std)))
        self._categories = categories

    def around(self, client: VictimModel) -> RelaxedRows:
        """Return the victim of another client with the same table."""
        return RelaxedRows(client, self._categories)

    def raw(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the rows that unbounded numbers ``x`` (B, d) stand for."""
        return self._categories.relaxed(x)


def agreement(categories: Categories, results: Sequence[Tensor], rows: Tensor, tolerance: float) -> Tensor:
    """Compute for each feature the share of results that agree with it, in [0, 1].

    Args:
        categories: of the table; the columns of a category have one share, of the results with the same value in it.
        results: rows (B, d) of several searches, rounded, each in the same order.
        rows: (B, d) the rows to compare with.
        tolerance: greatest difference of two numbers that agree.
    """
    close = (torch.stack(list(results)) - rows).abs() <= tolerance  # (R, B, d)
    for group in categories.groups:
        close[..., list(group)] = close[..., list(group)].all(-1, keepdim=True)
    return close.double().mean(0)


def _median(rows: Tensor) -> Tensor:
    return rows.median(0).values
