"""Generator: search for images among those of a generator learnt from public data, then beside them.

Paper       GGL: Li et al., "Auditing Privacy Defenses in Federated Learning via Generative Gradient Leakage", CVPR
            2022, arXiv 2203.15696 (``space=latent search=cma``). GIAS: Jeon et al., "Gradient Inversion with Generative
            Image Prior", NeurIPS 2021 (``space=weights``). GIFD: Fang et al., "GIFD: A Generative Gradient Inversion
            Method with Feature Domain Optimization", ICCV 2023 (``space=features``).
Minimises   distance(gradient of G(z, y), observed gradient) + kl * KL(moments of z || N(0, 1)) + tv * TV(G(z, y))
            over z ~ N(0, 1) in a box, by Adam or CMA-ES, from several starts; then, from the best start's end,
latent      nothing more.
weights     z and the weights of the generator, for each image its own.
features    the input of the generator's layers 1, 2, ... in turn, each in an L1 ball around its value at the end of the
            search before. The layer of lowest distance is kept.
Uses        the public data: the generator is learnt from them alone, before anything of a client is looked at.
Granted     the labels, or read off the last layer's gradient (``labels=recovered``, as GGL does).
Adaptive    a known mechanism stands inside the objective: a bound, a share of zeros, Soteria's columns, as in GGL, and
            all others; known local steps are unrolled. With CMA-ES private tensors stay at random values.
Departures  1. The generator is the decoder of a conditional variational autoencoder of 28 to 32 pixels
               (`flfw.inversion.image_generator`), in place of a large GAN: a minute on one core.
            2. One box for z in place of GGL's tanh, as its prior is N(0, 1); no TuRBO.
            3. GGL's budget is 500 generations of 50, one start; GIAS 4 starts of 1,000 steps, then 8,000; GIFD 1,000
               steps a layer. The defaults are shorter, and the distance is the cosine's (``distance=l2``: GGL's).
            4. Radii are multiples of the L1 norm of the maps; steps are in deviations of the maps of drawn z.
            5. For ``weights`` z moves on beside them.
            6. With known noise: the likelihood in nats, with z's own density in place of the moments. A later space
               then counts only if noise alone does not explain the distance before it: else it fits the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf, sqrt
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from flfw.adversary.attack import AttackCost, NotApplicableError, Private, Uses
from flfw.adversary.gradient_matching import GradientMatching, GrantedOperator
from flfw.bounds import NonNegativeFinite, PositiveFinite, PositiveInt, ValueRange
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.evolution import CMAES
from flfw.inversion.image_generator import (
    LABELS,
    GeneratedImages,
    ImageGenerator,
    Latent,
    LatentAndWeights,
    Learning,
    Lesson,
    Maps,
    OfImages,
    Space,
    learnt,
    normal_energy,
    unlike_normal,
)
from flfw.inversion.matching import cosine_distance, gaussian_likelihood, mean_squared_distance
from flfw.inversion.priors import none, total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch, SearchOptimiser
from flfw.recording.observation import Knowledge, Reconstruction
from flfw.rng import torch_generator

_DRAWN = 256  # z whose maps give a layer's deviation
_UNGUIDED, _UNGUIDED_PIXELS = 1000, 1_000_000  # most images, and about most values, that are drawn for the floor


@dataclass(frozen=True)
class GenerativeInversionSettings(Learning):
    """Settings of the generator and of the searches."""

    space: Literal["latent", "weights", "features"] = "features"  # the last one that is searched
    search: Literal["adam", "cma"] = "adam"  # for z
    distance: Literal["cosine", "l2"] = "cosine"  # l2: the squared distance, a mean over the tensors
    iterations: PositiveInt = 500  # Adam steps or generations for z
    restarts: PositiveInt = 4  # searches for z from different starts
    lr: PositiveFinite = 0.1  # first step size for z
    candidates: Annotated[int, ValueRange(ge=2)] = 50  # of a generation, >= 2
    deviation: PositiveFinite = 0.5  # first standard deviation of the candidates
    limit: PositiveFinite = 3.0  # greatest magnitude of an entry of z
    further_iterations: PositiveInt = 600  # Adam steps for the weights, or for all later layers together
    further_lr: PositiveFinite = 0.1  # first step size in deviations of a layer's maps
    weights_lr: PositiveFinite = 1e-3  # first step size of the weights
    ball: NonNegativeFinite = 1.0  # radius around a layer's maps, over their L1 norm
    kl: NonNegativeFinite = 1e-4  # weight of the moments of z
    tv: NonNegativeFinite = 1e-4  # weight of the total variation
    labels: Literal["given", "recovered"] = "given"  # granted, or read off the gradient


@final
class GenerativeInversion(GradientMatching):
    """Search in the spaces of a generator."""

    Settings = GenerativeInversionSettings
    tuned_on = "digits 0-299 of scikit-learn (the step size of the generator's training)"

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings: of the search for z, and of the later ones."""
        further = 0 if self.settings.space == "latent" else self.settings.further_iterations
        return AttackCost(self.settings.iterations + further, self.settings.restarts, "lowest distance of gradients")

    @property
    def labels(self) -> str:
        """Source of the labels, from the settings."""
        return self.settings.labels

    @property
    def uses(self) -> Uses:
        """Public data, for the generator."""
        return frozenset({"public"})

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``guessed`` with CMA-ES, which searches for z alone."""
        return "guessed" if self.settings.search == "cma" else "searched for"

    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use the chosen distance and the total variation of the images; for known noise the likelihood."""
        noise = None if operator is None else operator.noise
        distance = cosine_distance if self.settings.distance == "cosine" else mean_squared_distance
        return SearchConfig(
            distance if noise is None else gaussian_likelihood(noise),
            AdamSearch(self.settings.iterations, self.settings.lr),
            weighted((self.settings.tv, total_variation)),
        )

    def reconstruct(
        self, knowledge: Knowledge, targets: Sequence[SearchTarget], operator: GrantedOperator
    ) -> list[Reconstruction]:
        """Search for z of each victim, then go on from there; the truth is not used."""
        if len(knowledge.model.inputs.shape) != 3:
            raise NotApplicableError("it needs images")
        if knowledge.public is None:
            raise NotApplicableError("it needs public data, from which it learns a generator: grant them")
        learning = Learning(**{part.name: getattr(self.settings, part.name) for part in fields(Learning)})
        generator = learnt(Lesson(knowledge.public.samples, knowledge.public.labels, knowledge.model.classes, learning))
        first, *later = self._spaces(generator)
        latent, further = self._recipes(operator, len(later))
        box = (-self.settings.limit, self.settings.limit)
        ends = self._searched(knowledge, targets, first, latent, operator, box)
        best = ends
        for space in later:
            starts = [space.begun(end.place, _labels(target)) for target, end in zip(targets, ends, strict=True)]
            begun = [replace(one, start=start / space.unit) for one, start in zip(targets, starts, strict=True)]
            ends = self._searched(knowledge, begun, space, further, operator, (-inf, inf))
            best = [
                before
                if before.matched <= _of_noise(knowledge, target, operator) or before.matched <= after.matched
                else after
                for target, before, after in zip(targets, best, ends, strict=True)
            ]
        return [
            Reconstruction(
                end.images.clamp(*knowledge.box),
                end.matched,
                labels=target.labels,
                unguided=_drawn(generator, _labels(target)).clamp(*knowledge.box),
            )
            for target, end in zip(targets, best, strict=True)
        ]

    def _searched(
        self,
        knowledge: Knowledge,
        targets: Sequence[SearchTarget],
        space: Space,
        config: SearchConfig,
        operator: GrantedOperator,
        box: tuple[float, float],
    ) -> list[_End]:
        """Search in one space; where that fails, the next search goes on from the same start."""
        placed = [
            replace(target, prior_constants={**target.prior_constants, LABELS: _labels(target)}) for target in targets
        ]
        victim = GeneratedImages(knowledge.model, space)
        results = invert(victim, placed, config, operator=operator, box=box, compute=self.compute)
        ends = []
        for target, result in zip(targets, results, strict=True):
            failed, start = result.matching_loss == inf, torch.zeros_like(result.samples)
            if target.start is not None:
                start = target.start * space.unit
            place = start if failed else result.samples
            images = space.images(place, _labels(target))
            ends.append(_End(place, torch.full_like(images, torch.nan) if failed else images, result.matching_loss))
        return ends

    def _spaces(self, generator: ImageGenerator) -> list[Space]:
        """Return the spaces in their order."""
        chosen, first = self.settings, Latent(generator)
        if chosen.space == "latent":
            return [first]
        if chosen.space == "weights":
            return [first, LatentAndWeights(generator, chosen.weights_lr / chosen.further_lr)]
        rng, device = torch_generator(0, "maps"), next(generator.parameters()).device
        drawn = torch.randn(_DRAWN, generator.latent, generator=rng).to(device)
        labels = torch.arange(_DRAWN, device=device) % generator.classes
        last = min(len(generator.layers) - 1, chosen.further_iterations)
        return [first, *(Maps(generator, layer, drawn, labels) for layer in range(1, last + 1))]

    def _recipes(self, operator: GrantedOperator, later: int) -> tuple[SearchConfig, SearchConfig]:
        """Return the recipe of the search for z, and of each later one."""
        chosen, images = self.settings, self.recipe(operator)
        moments = weighted((chosen.kl, unlike_normal)) if operator is None or operator.noise is None else normal_energy
        descent: SearchOptimiser = AdamSearch(chosen.iterations, chosen.lr, schedule="cosine")
        if chosen.search == "cma":
            descent = CMAES(chosen.iterations, chosen.candidates, chosen.deviation)
        smooth = replace(images, prior=none, model_prior=OfImages(images.prior))
        latent = replace(smooth, descent=descent, prior=moments, restarts=chosen.restarts)
        iterations = max(1, chosen.further_iterations // max(1, later))
        ball = chosen.ball if chosen.space == "features" else inf
        return latent, replace(smooth, descent=AdamSearch(iterations, chosen.further_lr, schedule="cosine", ball=ball))


@dataclass(frozen=True)
class _End:
    """End of a search for one victim: coordinates, their images, and the distance, infinite where it failed."""

    place: Tensor
    images: Tensor
    matched: float


def _of_noise(knowledge: Knowledge, target: SearchTarget, operator: GrantedOperator) -> float:
    """Return the nats that known noise alone explains, by three deviations: a nearer guess fits noise. Else -inf."""
    if operator is None or operator.noise is None:
        return -inf
    entries = sum(value.numel() for value in knowledge.model.observed(target.sent)[0].values())
    return entries / 2 + 3 * sqrt(entries / 2)


def _drawn(generator: ImageGenerator, labels: Tensor) -> Tensor:
    """Draw images (N, ...) of the classes in turn: the guesses of the generator without any gradient."""
    count = max(len(labels), min(_UNGUIDED, _UNGUIDED_PIXELS // torch.Size(generator.shape).numel()))
    z = torch.randn(count, generator.latent, generator=torch_generator(0, "unguided")).to(labels.device)
    return generator(z, labels.repeat(-(-count // len(labels)))[:count])


def _labels(target: SearchTarget) -> Tensor:
    assert target.labels is not None, "given or recovered"
    return target.labels
