"""HyperFL: read embedding, extractor and its gradient off the hypernetwork's, then search for the data alone.

Paper       Guo et al., "A New Federated Learning Framework Against Gradient Inversion Attacks", AAAI 2025, arXiv
            2412.07187, which attacks its own method in the ways ``joint`` and ``two_stage``. ``closed_form`` is ours.
Needs       a shared hypernetwork of one hidden layer and linear heads, or a shared extractor.
Granted     the labels for ``joint`` and ``two_stage``; for ``closed_form`` nothing but the observation.

    theta_k = W_k h + b_k, h = ReLU(A v + c)
        dL/db_k = dL/dtheta_k,  dL/dA = d v^T,  dL/dc = d     hence v, theta = h(v; varphi) and dL/dtheta, exactly
        delta = dL/db of the extractor's last layer           hence, for one example, dL/dz by its outputs z
    minimise over x: distance(grad_theta <delta, z(x; theta)>, dL/dtheta) + tv * TV(x)

closed_form <delta, z(x)> has the true gradient at the true x, and needs neither classifier nor label. For several
            examples the deltas are separated by the zeros that a rectifier leaves in them, or searched for
            (`flfw.inversion.private.extractor`). Each of three distances has one search. Its last tenth minimises the
            relative squared distance, which compares all searches; the one with the lowest is kept. If the extractor
            ends in a convolution, all of delta is unknown, its length too: the same number of searches use the cosine
            distance with L-BFGS, which needs a smooth activation.
joint       Data, embedding and classifier are searched for together, by the cosine distance.
two_stage   Embedding and dL/dtheta are searched for first; then, with theta = h(v; varphi), data and classifier.
Departures  1. Searches are `ig`'s: Adam on the sign of the gradient, step size 0.1, a tenth at 3/8, 5/8 and 7/8, in the
               box. The paper follows the gradient, with a TV weight of 1e-6, for 10,000 iterations: ``signed``, ``tv``,
               ``iterations``. The TV weight here was chosen on MNIST's training images 100-103.
            2. The paper gives no numbers for its two stages: both have the same iterations.
            3. For several local steps weight decay is removed, and the result is attacked as one gradient: static.
            4. Where the extractor itself is shared (fedper, fedavg, the easy control) nothing has to be read off, or
               searched for first; the classifier is not used either.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import nn

from flfw.adversary.attack import Attack, AttackCost, NotApplicableError, Private
from flfw.bounds import BoundedSettings, NonNegativeFloat, PositiveFloat, PositiveInt
from flfw.inversion.client_models.victim import GeneratedVictim, VictimModel
from flfw.inversion.closed_form.linear import without_decay
from flfw.inversion.matching import Distance, cosine_distance, relative_distance
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.private.extractor import (
    HeadlessVictim,
    SurrogateVictim,
    ends_fully_connected,
    extractor_of,
    named,
    read_off,
    search,
)
from flfw.inversion.search import SearchConfig, SearchTarget, Stage, invert
from flfw.inversion.search_optimisers import LBFGS, AdamSearch
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.net import Net, Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient

_LAST, _FINER = 10, 1e-2  # the last search: one over its share of the iterations; its step size over the first one's
_NOTHING = 1 - 1e-6  # value of either distance just below that of a guess whose gradient is 0
_INNER, _SMOOTH = 20, 1e-3  # for L-BFGS: evaluations in a step; weight of the total variation over that for Adam


@dataclass(frozen=True)
class HyperFLInversionSettings(BoundedSettings):
    """Settings of the search."""

    variant: Literal["closed_form", "two_stage", "joint"] = "closed_form"  # treatment of private tensors
    distance: Literal["all", "cosine", "relative", "features"] = "all"  # for closed_form: one search by each, or by one
    iterations: PositiveInt = 500  # Adam steps of each search
    lr: PositiveFloat = 0.1  # first step size in deviations of the normalised input
    tv: NonNegativeFloat = 3e-3  # weight of the total variation
    signed: bool = True  # follow the sign of the gradient; the paper does not
    restarts: PositiveInt = 1  # searches from different images, by each distance


@final
class HyperFLInversion(Attack):
    """Inversion of a hypernetwork's gradient."""

    Settings = HyperFLInversionSettings
    sampled = True
    tuned_on = "MNIST training images 100-103 (the weight of the total variation)"

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings; both stages for ``two_stage``."""
        chosen = self.settings
        if chosen.variant == "closed_form":
            return AttackCost(chosen.iterations, len(self._distances) * chosen.restarts, "lowest matching distance")
        stages = 2 if chosen.variant == "two_stage" else 1
        return AttackCost(stages * chosen.iterations, chosen.restarts, "lowest matching distance")

    @property
    def labels(self) -> str:
        """Source of the labels; the closed form needs none."""
        return "not used" if self.settings.variant == "closed_form" else "given"

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``not needed`` where the closed form knows delta: for one example, at a fully connected layer."""
        if self.settings.variant != "closed_form" or not isinstance(model, GeneratedNet | Net):
            return "searched for"
        return "not needed" if batch == 1 and ends_fully_connected(extractor_of(model)) else "searched for in part"

    @property
    def _distances(self) -> tuple[str, ...]:
        chosen = self.settings.distance
        return ("cosine", "relative", "features") if chosen == "all" else (chosen,)

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Search for all victims of one model at once; an upload of zeros gives no result."""
        results: dict[int, Reconstruction] = {}
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for known in knowledge:
            require_reading(known.model)
            if self.settings.variant != "closed_form" and known.labels is None:
                raise NotApplicableError("its variants joint and two_stage need the labels: grant them")
        behind = [_behind(observation, known) for observation, known in zip(observations, knowledge, strict=True)]
        for i, known in enumerate(knowledge):
            if any(bool(value.any()) for value in behind[i].values()):
                groups[id(known.model), known.batch].append(i)
            else:
                results[i] = Reconstruction(torch.full((known.batch, *known.model.inputs.shape), torch.nan))
        way = self._closed_form if self.settings.variant == "closed_form" else self._with_labels
        for members in groups.values():
            group = ([behind[i] for i in members], [knowledge[i] for i in members], [rngs[i] for i in members])
            results |= zip(members, way(*group), strict=True)
        return [results[i] for i in range(len(observations))]

    def _closed_form(
        self, sent: list[Tensors], knowledge: list[Knowledge], rngs: list[torch.Generator]
    ) -> list[Reconstruction]:
        model, batch, device = knowledge[0].model, knowledge[0].batch, knowledge[0].model.inputs.mean.device
        victim = SurrogateVictim(extractor_of(model.model), model.inputs, batch)
        # Without labels, a search would look for them too.
        unused = torch.zeros(batch, dtype=torch.int64, device=device)
        both = [(read_off(model, gradient), rng) for gradient, rng in zip(sent, rngs, strict=True)]
        targets = [SearchTarget(victim.sent(reading, rng), unused, rng) for reading, rng in both]
        distances = {"cosine": cosine_distance, "relative": relative_distance, "features": victim.features}
        recipes = [self._recipe(distances[name]) if victim.linear else self._smooth() for name in self._distances]
        searched = [invert(victim, targets, one, box=knowledge[0].box, compute=self.compute) for one in recipes]
        best = [min(candidates, key=lambda one: one.matching_loss) for candidates in zip(*searched, strict=True)]
        return [Reconstruction(result.samples, result.matching_loss, result.iterations) for result in best]

    def _recipe(self, distance: Distance) -> SearchConfig:
        """Use a distance first, and at last the relative squared distance, which compares searches."""
        chosen, prior = self.settings, weighted((self.settings.tv, total_variation))
        last = max(1, chosen.iterations // _LAST)
        if distance is relative_distance or last == chosen.iterations:
            adam = AdamSearch(chosen.iterations, chosen.lr, chosen.signed)
            return SearchConfig(relative_distance, adam, prior, restarts=chosen.restarts, failed_above=_NOTHING)
        opening = Stage(distance, AdamSearch(chosen.iterations - last, chosen.lr, chosen.signed), prior)
        finer = AdamSearch(last, _FINER * chosen.lr, chosen.signed, "cosine")
        return SearchConfig(
            relative_distance, finer, prior, restarts=chosen.restarts, failed_above=_NOTHING, opening=(opening,)
        )

    def _smooth(self) -> SearchConfig:
        """Use the cosine distance and L-BFGS; an iteration is one evaluation."""
        inner = min(_INNER, self.settings.iterations)
        descent = LBFGS(self.settings.iterations // inner, inner=inner)
        prior = weighted((_SMOOTH * self.settings.tv, total_variation))
        return SearchConfig(cosine_distance, descent, prior, restarts=self.settings.restarts, failed_above=_NOTHING)

    def _with_labels(
        self, sent: list[Tensors], knowledge: list[Knowledge], rngs: list[torch.Generator]
    ) -> list[Reconstruction]:
        """Run ``joint`` or ``two_stage``: unknown tensors are searched for together with the data."""
        chosen, victim = self.settings, knowledge[0].model
        if chosen.variant == "two_stage" and isinstance(victim.model, GeneratedNet):
            generated = GeneratedVictim(victim.model, victim.known, victim.inputs)
            first = AdamSearch(chosen.iterations, chosen.lr, schedule="cosine")
            sent = [named(reading) for reading in search(generated, sent, rngs, first, self.compute)]
            victim = HeadlessVictim(victim.model, victim.inputs)
        adam, prior = AdamSearch(chosen.iterations, chosen.lr, chosen.signed), weighted((chosen.tv, total_variation))
        recipe = SearchConfig(cosine_distance, adam, prior, restarts=chosen.restarts, failed_above=_NOTHING)
        targets = [_labelled(*case) for case in zip(sent, knowledge, rngs, strict=True)]
        batch = invert(victim, targets, recipe, box=knowledge[0].box, compute=self.compute)
        return [Reconstruction(one.samples, one.matching_loss, one.iterations, one.labels) for one in batch]


def _behind(observation: Observation, knowledge: Knowledge) -> Tensors:
    """Compute the gradient behind an observation; for a hypernetwork's steps a sum of gradients, without decay."""
    knowledge.model.check(observation.sent)
    if knowledge.weights and isinstance(knowledge.model.model, GeneratedNet):
        return without_decay({name: observation.received[name] for name in observation.sent}, observation.sent)
    return mean_gradient(observation, knowledge)


def require_reading(victim: VictimModel) -> None:
    """Refuse a victim without an extractor that is shared, or generated from a shared hypernetwork."""
    model = victim.model
    if not isinstance(model, GeneratedNet | Net):
        raise NotApplicableError(f"it needs an extractor, generated or shared, got {type(model).__name__}")
    if not any(True for _ in extractor_of(model).parameters()):
        raise NotApplicableError("it needs an extractor with weights, got one without")
    part = "hypernet." if isinstance(model, GeneratedNet) else "extractor."
    needed = [name for name, _ in model.named_parameters() if name.startswith(part)]
    missing = [name for name in needed if name not in victim.known or name not in victim.shared]
    if missing:
        raise NotApplicableError(f"it needs all of {part}* and its gradients, got none of {missing[0]}")


def _labelled(sent: Tensors, knowledge: Knowledge, rng: torch.Generator) -> SearchTarget:
    assert knowledge.labels is not None, "refused before"
    return SearchTarget(sent, knowledge.labels, rng)
