"""Membership: scores of examples that a client may have trained on, from what it sent; no search.

Paper       Zhu et al., "FedMIA", CVPR 2025, arXiv 2402.06289 (cosine, fedmia); Li et al., ICLR 2023
            (gradient_difference); the whitened projection of `flfw.adversary.membership.statistics`.
Needs       real uploads of training: audited rounds after 0.
Granted     what clients received and sent in the audited rounds, labelled candidates, public data, lr and steps.
Statistics  cosine, gradient_difference, whitened and loss_drop: means over the rounds. trajectory: sum over rounds of
            the whitened z-scores. fedmia: the cosine against two other clients or more. label_only and loss_only read
            no client's message: they are floors. Of a published model alone: loss, and rmia with reference
            models trained on public data (`flfw.adversary.membership.published_model`). lira: the logit of the true
            class in the upload, against shadow trainings (Carlini et al., S&P 2022; Student-t as in arXiv 2603.11799),
            summed over the rounds;
            lira_update: the same with the whitened projection in the place of the logit. Half of the candidates are
            in a shadow's set, or as many as the client has examples, and public ones up to its number. Both need
            all tensors of the client's model, and local training that is steps on one loss.
Adaptive    told of what hides the data, `flfw.adversary.membership.informed`: whitened and trajectory, and without
            noise cosine. Modelled are prune, dp_gaussian, low_precision of more than two bits, and methods that clip
            and add noise; the steps are taken to be at the received weights. A private classifier or extractor is
            stood in for by what public data teach; HyperFL's extractor and its gradient are read off first. With
            FedCG's generators, generated: whether a feature is nearer to the client's than to others'.
Departures  fedmia's null is the other clients of a round that received the same; lira's values are taken above each
            candidate's mean, and its priors are fitted; the rest are ours.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from flfw.adversary.membership.gradients import Gradient, compared_gradients, gradient_sketches
from flfw.adversary.membership.informed import informed_scores
from flfw.adversary.membership.published_model import References, published_scores
from flfw.adversary.membership.shadow_models import ShadowClients, ShadowSets, confidences, excess_ratio
from flfw.adversary.membership.statistics import (
    Whitening,
    cosine,
    excess_loss_drop,
    fedmia,
    floors,
    gradient_difference,
    label_only,
    losses_with,
    mean_gradient_behind,
    public_examples,
    trajectory,
)
from flfw.adversary.membership_attack import MembershipAttack, MembershipRound, MembershipView, PublishedModel
from flfw.errors import require
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.private.surrogate import replaceable
from flfw.inversion.sketch import Sketch
from flfw.nets.net import Tensors
from flfw.recording.observation import Examples
from flfw.rng import torch_generator

_SUMS = ("lira", "lira_update")
"""Statistics that are summed over the rounds: logarithms of likelihood ratios."""


@dataclass(frozen=True)
class MembershipSettings:
    """Settings of the attack.

    Attributes:
        width: numbers in a sketch of a gradient.
        public: the most public examples whose gradients are computed.
        others: the most other clients of a round that are compared.
        shadows: shadow trainings in each round, an even number; 0: none.
        references: for an outsider, the number of reference models, even and >= 4.
        gamma: for an outsider, RMIA's gamma > 0.
        epochs: passes over the public examples for a stand-in of a private part, >= 1.
    """

    width: int = 512
    public: int = 1500
    others: int = 30
    references: int = 4
    gamma: float = 2.0
    shadows: int = 8
    epochs: int = 8

    def __post_init__(self) -> None:
        require(self.shadows >= 0 and self.shadows % 2 == 0, "an even number of shadows >= 0", shadows=self.shadows)


@final
class Membership(MembershipAttack):
    """Statistics of one client's messages for each candidate."""

    numbers: ClassVar[bool] = True
    Settings = MembershipSettings

    def __init__(self, settings: Any = None, compute: ComputeLimits | None = None) -> None:
        super().__init__(settings, compute)
        self._whitenings: dict[tuple[int | None, ...], tuple[MembershipView, MembershipRound, Whitening]] = {}

    def unused_statistics(self, view: MembershipView) -> tuple[str, ...]:
        """Return why there is no `lira`, if the grants do not allow shadow trainings."""
        victim = view.model(view.rounds[0].received)
        why = self._without_shadows(view, victim) if self.settings.shadows else ""
        return (f"No lira of membership: {why}.",) if why else ()

    def scores(self, view: MembershipView, rng: torch.Generator) -> dict[str, Tensor]:
        """Score the candidates by every statistic; by those that adapt, if a mechanism is granted."""
        if view.adaptive:
            return informed_scores(view, self.settings, rng.initial_seed())
        rows = [self._of_round(view, one, rng.initial_seed()) for one in view.rounds]
        names = [name for name in rows[0] if all(name in row for row in rows)]
        scores = {name: torch.stack([row[name].double() for row in rows]) for name in names}
        z = scores["whitened"]
        z = (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True).clamp(min=1e-12)
        summed = {name: rounds.sum(0) if name in _SUMS else rounds.mean(0) for name, rounds in scores.items()}
        return summed | {"trajectory": trajectory(z)} | floors(view)

    def replaceable(self, model: nn.Module, private: Collection[str]) -> str:
        """Return the classifier or the extractor, where all of it is private and all of the other one is not."""
        return replaceable(model, private)

    def published_scores(
        self, view: MembershipView, published: PublishedModel, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """Score the candidates by the final model, and by reference models that are trained once for all clients."""
        kind = (published.lr, published.steps, published.batch)
        if kind not in self._references:
            victim, seed = view.model(published.tensors), rng.initial_seed()
            self._references[kind] = References.train(victim, published, view.public, self.settings.references, seed)
        labels = view.candidates.labels
        known = {"label_only": label_only(labels, labels, view.public.labels)}
        return published_scores(view, published, self._references[kind], self.settings.gamma) | known

    @cached_property
    def _references(self) -> dict[tuple[float, int, int], References]:
        return {}

    def _of_round(self, view: MembershipView, one: MembershipRound, seed: int) -> dict[str, Tensor]:
        victim, candidates = view.model(one.received), view.candidates
        sent = [one.sent[view.client], *(t for c, t in one.sent.items() if c != view.client)][
            : 1 + self.settings.others
        ]
        seen, constants = zip(*(victim.observed(mean_gradient_behind(one, tensors)) for tensors in sent), strict=True)
        # Where a message has coordinates of its own, those of other clients cannot be compared in them.
        updates = list(seen[:1] if constants[0] else seen)
        sketch = Sketch.draw(updates[0], self.settings.width, torch_generator(seed, "sketch", one.round))

        def gradient(x: Tensor, y: Tensor) -> Tensors:
            return victim.gradient(x, y, victim.unknown, constants[0])

        ours = compared_gradients(gradient, sketch, updates, candidates.samples, candidates.labels)
        before = losses_with(victim, {}, candidates)
        drops = [losses_with(victim, tensors, candidates) for tensors in sent]
        products = [ours.with_update(k, before) for k in range(len(updates))]
        whitening = self._whitening(view, one, gradient, sketch, None if constants[0] else seed)
        scores = {
            "cosine": cosine(products[0]),
            "gradient_difference": gradient_difference(products[0]),
            "whitened": whitening.scores(ours.sketches, sketch.of(updates[0])),
            "loss_drop": excess_loss_drop(before, drops[0], torch.stack(drops[1:])) if drops[1:] else before - drops[0],
        }
        if len(updates) > 2:
            scores["fedmia"] = fedmia(scores["cosine"], torch.stack([cosine(other) for other in products[1:]]))
        if self.settings.shadows and not self._without_shadows(view, victim):
            shadows = self._shadows(view, victim, torch_generator(seed, "shadows", one.round, view.client))
            inside = shadows.sets.inside
            logits = confidences(victim, sent[0], candidates), shadows.confidences(victim, candidates)
            projections = whitening.against(ours.sketches, shadows.sketches(sketch))
            scores["lira"] = excess_ratio(*logits, inside)
            scores["lira_update"] = excess_ratio(scores["whitened"], projections, inside)
        return scores

    def _whitening(
        self, view: MembershipView, one: MembershipRound, gradient: Gradient, sketch: Sketch, seed: int | None
    ) -> Whitening:
        """Fit the public gradients at the received tensors: once for all clients of a round that received the same.

        Without a seed of the sketch they are the client's own.
        """
        key = (one.round, id(one.received), id(view.public.samples), seed)
        if key not in self._whitenings:
            fitted = Whitening.fit(gradient_sketches(gradient, sketch, *public_examples(view, self.settings.public)))
            if seed is None:
                return fitted
            self._whitenings[key] = view, one, fitted
        return self._whitenings[key][-1]

    def _without_shadows(self, view: MembershipView, victim: VictimModel) -> str:
        """Return why shadow trainings are not possible; empty: they are."""
        candidates, public, examples = len(view.candidates.labels), len(view.public.labels), view.examples
        if view.local is None:
            return "what is seen is not one client's training in steps on one loss"
        if not isinstance(victim, PlainVictim) or victim.unknown:
            return "tensors of the clients' models are private"
        if not candidates <= examples * self.settings.shadows:
            return f"{examples or 'an unknown number of'} examples of a client are too few for {candidates} candidates"
        if examples > candidates // 2 + public:
            return f"shadow trainings need {examples - candidates // 2} public examples, and {public} are granted"
        return ""

    def _shadows(self, view: MembershipView, victim: VictimModel, rng: torch.Generator) -> ShadowClients:
        candidates, public = view.candidates, view.public
        assert view.local is not None, "it is granted"
        sets = ShadowSets.draw(len(candidates.labels), len(public.labels), view.examples, self.settings.shadows, rng)
        both = (torch.cat([getattr(each, part) for each in (candidates, public)]) for part in ("samples", "labels"))
        return ShadowClients.train(victim, view.local, sets, Examples(*both), rng)
