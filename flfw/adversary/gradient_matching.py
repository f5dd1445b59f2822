"""Attacks that search for the data whose gradient, through all granted mechanisms, matches the observed one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, TypeAlias, final

import torch
from torch import Tensor

from flfw.adversary.attack import Attack, AttackCost, Models, NotApplicableError
from flfw.bounds import BoundedSettings, PositiveInt
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.choose_operator import alike, choose_operator
from flfw.inversion.client_models.operator import DataOperator, Operator
from flfw.inversion.closed_form import linear
from flfw.inversion.closed_form.labels import NoLabels, recovered
from flfw.inversion.fit import Fit, fits
from flfw.inversion.matching import gaussian_likelihood, relative_distance
from flfw.inversion.priors import energy
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, invert
from flfw.inversion.search_optimisers import LBFGS
from flfw.nets.net import Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient
from flfw.rng import torch_generator

GrantedOperator: TypeAlias = Operator | DifferentiableDefence | None
"""Known mechanism between the gradient and the observation, as it stands in the objective; None: none."""


class GradientMatching(Attack, ABC):
    """Base of the optimisation attacks; a subclass writes `recipe`, and `labels` if it is not granted them.

    Victims of one model are searched for at once. A granted mechanism stands inside the objective, and granted local
    steps are unrolled in it. BatchNorm normalises a guess by the guess's own statistics, as the client's training does.
    """

    sampled = True
    selection: ClassVar[str] = "lowest distance"
    """The rule that chooses the result, without the truth; printed in the report."""

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings ``iterations`` and ``restarts``."""
        return AttackCost(self.settings.iterations, self.settings.restarts, self.selection)

    @property
    def models(self) -> Models:
        """Mechanisms of every kind; a subclass with a closed form beside its search leaves out those it cannot use."""
        return frozenset({"defence", "steps", "batch_statistics"})

    @abstractmethod
    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Return the settings of the search.

        Args:
            operator: the known mechanism between the gradient and the observation; it stands in the objective. Where
                it has a ``noise``, distances have to be likelihoods of that deviation.
        """

    def recipes(
        self, knowledge: Knowledge, operator: Operator | DifferentiableDefence | None
    ) -> Sequence[SearchConfig]:
        """Return the searches of which, for each victim, the result that `counting` chooses is kept.

        By default `recipe` alone. Several have to end in the same distance, or their results could not be compared.

        Args:
            knowledge: the knowledge about the victims.
            operator: the known mechanism, as for `recipe`.
        """
        return [self.recipe(operator)]

    def counting(self, results: Sequence[SearchResult]) -> SearchResult:
        """Return the result of a victim that counts, by default the one with the lowest distance.

        Args:
            results: one for each of `recipes`, in their order.
        """
        return min(results, key=lambda result: result.matching_loss)

    def first_guess(self, knowledge: Knowledge, labels: Tensor | None) -> Tensor | None:
        """Return the first guess (B, ...) in normalised units; None: the recipe draws it, as by default.

        Args:
            knowledge: the knowledge about the observation.
            labels: (B,) given or recovered; None: they are searched for.
        """
        return None

    def prior_constants(self, observation: Observation, knowledge: Knowledge) -> Tensors:
        """Return constants for the recipe's model prior, by name; by default none.

        Args:
            observation: the observation.
            knowledge: the knowledge about it.
        """
        return {}

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Search for all victims of one model at once."""
        results: dict[int, Reconstruction] = {}
        groups: dict[tuple[int, int, int, str | int], tuple[GrantedOperator, dict[int, SearchTarget]]] = {}
        for i, known in enumerate(knowledge):
            operator, target = self._target(observations[i], known, rngs[i])
            like = id(known.model), id(known.operator), known.batch, _like(known, operator) or i
            groups.setdefault(like, (operator, {}))[1][i] = target
        for operator, targets in groups.values():
            known = knowledge[next(iter(targets))]
            results |= zip(targets, self.reconstruct(known, [*targets.values()], operator), strict=True)
        return [results[i] for i in range(len(observations))]

    def reconstruct(
        self, knowledge: Knowledge, targets: Sequence[SearchTarget], operator: GrantedOperator
    ) -> list[Reconstruction]:
        """Search for the data of victims of one model by each of `recipes`; a subclass may join their results.

        Args:
            knowledge: the knowledge about the first of them; all have the same model, batch, box and public data.
            targets: an observation each.
            operator: the known mechanism of all.
        """
        results = [
            invert(knowledge.model, targets, recipe, operator=operator, box=knowledge.box, compute=self.compute)
            for recipe in self.recipes(knowledge, operator)
        ]
        return [_reconstruction(self.counting(each)) for each in zip(*results, strict=True)]

    def objective(
        self, observation: Observation, knowledge: Knowledge, guesses: Sequence[Reconstruction], rng: torch.Generator
    ) -> list[Fit] | None:
        """Compute the last search's objective; None where labels or private tensors are searched for as well.

        Where the client changes its data, that of the version of a guess that fits best; None: too many versions.
        """
        if self.labels == "searched for" or knowledge.model.unknown:
            return None
        operator, target = self._target(observation, knowledge, rng)
        versions = [_versions(knowledge, guess) for guess in guesses]
        if not all(versions):
            return None
        places = [(one, guess.labels) for guess, many in zip(guesses, versions, strict=True) for one in many]
        values = iter(fits(knowledge.model, target, self.recipe(operator), places, mechanism=operator))
        return [min(islice(values, len(many)), key=lambda fit: fit.distance) for many in versions]

    def _target(
        self, observation: Observation, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[GrantedOperator, SearchTarget]:
        """Return the mechanism in the objective, and the target; its labels are read off the undone observation."""
        sent = observation.sent if knowledge.unrolled else mean_gradient(observation, knowledge)
        given = None
        if self.labels == "given":
            if knowledge.labels is None:
                raise NotApplicableError("it needs the labels: grant them, or have it recover them")
            given = knowledge.labels
        mechanism = _settled(knowledge, sent, given)
        labels = given
        if self.labels == "not used":
            # Without any labels, a search would look for them.
            labels = torch.zeros(knowledge.batch, dtype=torch.int64, device=knowledge.model.inputs.mean.device)
        elif self.labels not in ("given", "searched for"):
            operator = mechanism.undoing if isinstance(mechanism, DifferentiableDefence) else mechanism
            try:
                labels = recovered(knowledge.model, sent, knowledge.batch, self.labels, rng, operator)
            except NoLabels as error:
                raise NotApplicableError(str(error)) from error
        first, prior_constants = self.first_guess(knowledge, labels), self.prior_constants(observation, knowledge)
        return mechanism, SearchTarget(sent, labels, rng, knowledge.batch, first, prior_constants)


def _settled(knowledge: Knowledge, sent: Tensors, labels: Tensor | None) -> GrantedOperator:
    """Return the mechanism in the objective.

    A defence, such as a bound, may act on one victim and not on another: each observation is tested separately.
    """
    if isinstance(knowledge.operator, DataOperator):
        return None  # the gradient is that of the changed data
    if not isinstance(knowledge.operator, DifferentiableDefence):
        return knowledge.operator
    return choose_operator(
        knowledge.operator, knowledge.model, sent, labels, knowledge.batch, torch_generator(0, "settled")
    )


def _versions(knowledge: Knowledge, guess: Reconstruction) -> list[Tensor]:
    """Return all that the client may have made of a guess before it computed the gradient; empty: too many."""
    if guess.searched is not None:
        return [guess.searched]
    if isinstance(knowledge.operator, DataOperator) and bool(guess.samples.isfinite().all()):
        return knowledge.operator.versions(guess.samples)
    return [guess.samples]


def _like(knowledge: Knowledge, operator: GrantedOperator) -> str:
    """Return a key of the victims of one mechanism that may be searched for together; empty: this one alone."""
    if operator is None or not isinstance(knowledge.operator, DifferentiableDefence):
        return "as granted"
    return alike(operator)


def _reconstruction(result: SearchResult) -> Reconstruction:
    return Reconstruction(result.samples, result.matching_loss, result.iterations, result.labels)


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
        first, shape = linear.first_linear(model), linear.features_shape(model, inputs)
        if first and knowledge[0].batch == 1 and not knowledge[0].operator:
            gradients = [mean_gradient(o, k) for o, k in zip(observations, knowledge, strict=True)]
            return [linear.read_features(g[f"{first}.weight"], g[f"{first}.bias"]).view(1, *shape) for g in gradients]
        victim, box = linear.feature_victim(knowledge[0].model), linear.features_range(model)
        results = self.run(observations, [replace(k, model=victim, box=box) for k in knowledge], rngs)
        return [one.samples for one in results]
