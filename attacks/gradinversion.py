"""GradInversion: match the gradient of a batch under the statistics of its BatchNorm layers, from several starts.

Paper       Yin et al., "See through Gradients: Image Batch Recovery via GradInversion", CVPR 2021, arXiv 2104.07586.
Minimises   sum_l ||gradient_l of guess - observed gradient_l|| + tv * TV(x) + l2 * mean(x^2)
            + bn * sum_l (||mean_l(x) - mu_l|| + ||var_l(x) - var_l||)
            + group * ||x - E||^2, with E the registered mean of all starts' guesses,
by          Adam, step size 0.1, 50 steps of warm-up, then half a cosine, clamped to the box, from N(0, 1).
Granted     nothing but the observation and the model. The labels are read off the last layer's gradient; ``labels``
            says how: ``unique`` is the paper's rule, for labels that all differ.
Statistics  of BatchNorm's inputs: those of the client's batch where an upload of one local step reveals them (inferred
            from the running ones before and after it), else the received running ones. As these may be of other data,
            half of the starts then do without the term (departure 7).
Adaptive    BatchNorm normalises a guess by its own batch, as the client's training does. A known mechanism stands
            inside the objective; known local steps are unrolled. Labels are read off as if there were no mechanism.
Departures  1. 1,000 iterations by default (the paper: 20,000), and no Langevin noise.
            2. Registration is a shift by whole pixels, at most 4, by phase correlation, from half of the iterations on
               (the paper: a homography by RANSAC-flow); images are assigned to each other by pixels within a label.
            3. The start with the lowest distance of gradients is kept, and its guess with the lowest objective. One
               without the term of BatchNorm counts only at less than half the distance of those with it.
            4. ``labels=recovered`` (iDLG for one example, else counts) by default, as labels of a batch repeat.
               ``unique`` refuses a batch in which they do.
            5. The first layer's statistics count ten times, as in public code; the paper has equal weights.
            6. With known noise: the likelihood in nats plus a Laplace prior on neighbours, as in attacks/ig.py.
            7. Where the statistics are the running ones, half of the starts (rounded down, so none of one) are a group
               of their own without them. The paper has them in all. With known noise so has this.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from flfw.adversary.gradient_matching import GradientMatching
from flfw.bounds import (
    BoundedSettings,
    NonNegativeFinite,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFinite,
    PositiveInt,
    Share,
)
from flfw.inversion import priors
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.matching import Guess, gaussian_likelihood, tensor_distances
from flfw.inversion.search import SearchConfig, SearchResult
from flfw.inversion.search_optimisers import AdamSearch, Evaluate
from flfw.nets.net import Tensors
from flfw.recording.observation import Knowledge, Observation

_NEIGHBOURS = 1.0  # difference of neighbours in deviations of the normalised input, in the prior for known noise
_NEARER = 0.5  # distance over that of searches with the statistics, below which a search without them counts
_EVERY = 10  # evaluations between two computations of the starts' mean, each of which waits for the device
_TINY = 1e-12


@dataclass(frozen=True)
class GradInversionSettings(BoundedSettings):
    """Settings of the search."""

    iterations: PositiveInt = 1000  # Adam steps
    lr: PositiveFinite = 0.1  # highest step size in deviations of the normalised input
    warmup_iterations: NonNegativeInt = 50  # steps to the highest step size, at most half of all
    restarts: PositiveInt = 4  # searches from different images, which are kept together
    bn: NonNegativeFinite = 0.1  # weight of the statistics of BatchNorm's inputs
    first: NonNegativeFinite = 10.0  # weight of those of the first layer over that of the others
    statistics: Literal["inferred", "running"] = "inferred"  # of the client's batch where revealed, or always running
    tv: NonNegativeFinite = 1e-4  # weight of the total variation
    l2: NonNegativeFinite = 1e-6  # weight of the mean square
    group: NonNegativeFinite = 0.01  # weight of the squared distance from the mean of all searches
    labels: Literal["recovered", "unique", "given"] = "recovered"  # read off, or granted


@final
class GradInversion(GradientMatching):
    """Search by the distance of each tensor's gradient, with BatchNorm's statistics and group consistency."""

    Settings = GradInversionSettings
    selection = "lowest distance of gradients"

    @property
    def labels(self) -> str:
        """Source of the labels, from the settings."""
        return self.settings.labels

    def prior_constants(self, observation: Observation, knowledge: Knowledge) -> Tensors:
        """Return the statistics of BatchNorm's inputs, of the client's batch where they are revealed."""
        model = knowledge.model.model
        received = priors.received_statistics(model, observation.received)
        return (
            {**received, **priors.sent_statistics(model, observation.received, observation.sent)}
            if self._revealed(knowledge)
            else received
        )

    def recipes(
        self, knowledge: Knowledge, operator: Operator | DifferentiableDefence | None
    ) -> Sequence[SearchConfig]:
        """Leave the statistics out of half of the starts where they may be those of other data."""
        model, held, all_of_them = knowledge.model.model, knowledge.model.known, self.recipe(operator)
        received, without = priors.received_statistics(model, held), self.settings.restarts // 2
        # A layer with a cumulative mean does not reveal its batch's.
        of_the_batch = self._revealed(knowledge) and priors.sent_statistics(model, held, held).keys() == received.keys()
        noisy = operator is not None and operator.noise is not None
        if of_the_batch or noisy or not (received and without and self.settings.bn):
            return [all_of_them]
        parts = ((self.settings.restarts - without, self.settings.bn), (without, 0.0))
        each = [replace(self.settings, restarts=restarts, bn=bn) for restarts, bn in parts]
        return [GradInversion(one, self.compute).recipe(operator) for one in each]

    def counting(self, results: Sequence[SearchResult]) -> SearchResult:
        """Return the result with the statistics, unless the one without them is much nearer.

        Where the gradient determines the data, the truth is, and wrong statistics lead away from it. Where it does not,
        a search without them fits remainders: it is somewhat nearer by losing what they know of the data.
        """
        led, *free = results
        return next((one for one in free if one.matching_loss < _NEARER * led.matching_loss), led)

    def _revealed(self, knowledge: Knowledge) -> bool:
        """Return whether a victim's upload reveals the statistics of its batch.

        After several steps, or behind a mechanism, the running statistics are no longer one batch's.
        """
        one_step = knowledge.weights and knowledge.steps == 1 and knowledge.operator is None
        return one_step and self.settings.statistics == "inferred"

    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use Adam with warm-up; known noise calls for a likelihood, and for a prior in the same units."""
        chosen, noise = self.settings, None if operator is None else operator.noise
        warmup = min(chosen.warmup_iterations, chosen.iterations // 2)
        descent = AdamSearch(chosen.iterations, chosen.lr, schedule="cosine", warmup=warmup)
        smooth = priors.weighted((chosen.tv, priors.total_variation), (chosen.l2, priors.energy))
        return SearchConfig(
            tensor_distances if noise is None else gaussian_likelihood(noise),
            descent,
            smooth if noise is None else priors.neighbour_differences(_NEIGHBOURS),
            restarts=chosen.restarts,
            model_prior=priors.LayerStatistics(chosen.bn, chosen.first) if chosen.bn else None,
            together=GroupConsistency(chosen.restarts, chosen.group),
        )


@final
@dataclass(frozen=True)
class GroupConsistency(BoundedSettings):
    """Influence of a target's starts on each other (section 3.3); it is a `flfw.inversion.search.Together`.

    Different starts find the same objects at different places. So each image is first shifted onto the mean of all
    starts, and the mean of the shifted ones is the one to which all are drawn.

    It adds the gradient of ``weight * mean over images of ||x - E||^2``, with E as a constant, to that of each start's
    guess. Objective and distance stay as they are, so that they compare guesses before and after it begins.

    Attributes:
        starts: number of starts of each target, >= 1.
        weight: weight of the squared distance, >= 0.
        after: share of the iterations without it, in [0, 1]; noise has no place to be registered by.
        reach: largest shift of an image, in pixels along each axis, >= 0.
    """

    starts: PositiveInt
    weight: NonNegativeFloat
    after: Share = 0.5
    reach: NonNegativeInt = 4

    def __call__(self, evaluate: Evaluate, labels: Tensor | None, iterations: int) -> Evaluate:
        """Return an evaluation that draws the starts of each target together, counted from its first call."""
        done, mean = 0, torch.empty(0)

        def drawn(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
            nonlocal done, mean
            gradients, objective, matched = evaluate(guess)
            past, done = done - int(self.after * iterations), done + 1
            if past < 0 or self.starts == 1 or not self.weight:
                return gradients, objective, matched
            if past % _EVERY == 0:
                mean = self.means(guess["x"], labels)
            pull = 2 * self.weight * (guess["x"] - mean) / guess["x"].shape[1]
            return {**gradients, "x": gradients["x"] + pull}, objective, matched

        return drawn

    def means(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """Compute each start's E: the registered mean of its target's starts, in its own order of the images.

        A start that left the finite numbers has no part in the mean of the others.

        Args:
            x: (P, B, ...) guesses; the starts of a target stand side by side.
            labels: (P, B); None: any image may stand for any other of its batch.
        """
        result = x.clone()
        for at in range(0, len(x), self.starts):
            sound = [i for i in range(at, at + self.starts) if bool(x[i].isfinite().all())]
            places = [_alike(x[sound[0]], x[i], None if labels is None else labels[at]) for i in sound]
            if not sound:
                continue
            ordered = torch.stack([x[i][order] for i, order in zip(sound, places, strict=True)])
            coarse = ordered.mean(0)
            mean = torch.stack([registered(one, coarse, self.reach) for one in ordered]).mean(0)
            for i, order in zip(sound, places, strict=True):
                result[i] = mean[order.argsort()]
        return result


def registered(x: Tensor, onto: Tensor, reach: int) -> Tensor:
    """Move images by whole pixels to where they agree most with others, by phase correlation (Kuglin and Hines, 1975).

    Rows and columns that leave an image return on its other side. Rows of numbers are not shifted.

    Args:
        x: (B, C, H, W), or (B, d).
        onto: the same shape.
        reach: largest shift along each axis, in pixels, >= 0.
    """
    if x.dim() < 4 or reach == 0:
        return x
    cross = torch.fft.fft2(onto) * torch.fft.fft2(x).conj()
    agreement = torch.fft.ifft2(cross / cross.abs().clamp_min(_TINY)).real.sum(1)  # (B, H, W)
    height, width = (min(reach, (side - 1) // 2) for side in x.shape[-2:])
    near = agreement.roll((height, width), (1, 2))[:, : 2 * height + 1, : 2 * width + 1]  # shifts from -reach on
    best = near.flatten(1).argmax(1).tolist()
    shifts = [(at // near.shape[2] - height, at % near.shape[2] - width) for at in best]
    return torch.stack([one.roll(shift, (1, 2)) for one, shift in zip(x, shifts, strict=True)])


def _alike(reference: Tensor, x: Tensor, labels: Tensor | None) -> Tensor:
    """Return the order of images (B, ...) in which they are nearest to others, each to one of its own label."""
    from scipy.optimize import linear_sum_assignment  # imported here, because it takes a second

    costs = torch.cdist(reference.flatten(1).double(), x.flatten(1).double()).square()
    if labels is not None:  # all starts have the labels of the target, in one order
        costs = costs + (labels[:, None] != labels[None, :]) * (costs.sum() + 1)
    return torch.from_numpy(linear_sum_assignment(costs.cpu().numpy())[1]).to(x.device)
