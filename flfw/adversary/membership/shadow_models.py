"""Shadow models, trained with an example in and with it out, and likelihood ratios from few of them.

LiRA (Carlini et al., S&P 2022) fits a normal distribution for each example and side; with the 4 to 16 shadows that one
has for a federation, a variance of each example's own is the weak point. With a normal-inverse-gamma prior from the
pooled data the predictive distribution is Student's t, which stays stable for any number of shadows (Brannvall,
"BaVarIA", arXiv 2603.11799). With no shadow of a side it is the prior alone.

A shadow trains on a part of the candidates, and on public examples up to the number that a client has, by the local
training that is granted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from flfw.errors import require
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.sketch import Sketch
from flfw.nets.net import Tensors, are_numbers, loss
from flfw.nets.training.local_steps import LocalSteps, Places
from flfw.recording.observation import Examples

MOST_COUNTS = 1e6
"""Most shadows that a prior mean is worth: in all practical cases it stands for every candidate."""


@final
@dataclass(frozen=True)
class ShadowSets:
    """Training sets of S shadow models; `draw` makes them.

    Attributes:
        inside: (S, N) whether a candidate is in a set.
        places: (S, n) places of the examples in each: among the N candidates, and from N on among public ones.
    """

    inside: Tensor
    places: Tensor

    @classmethod
    def draw(cls, candidates: int, public: int, examples: int, shadows: int, rng: torch.Generator) -> ShadowSets:
        """Draw sets in turns: those of a turn divide the candidates among them.

        There are two in a turn, each with half of the candidates, as long as a client has room for so many: then each
        candidate is in as many sets as it is out of. Of more candidates a set has as many as a client has examples.

        Args:
            candidates: number of candidates, N >= 2.
            public: number of public examples.
            examples: number of examples that the client trains on.
            shadows: number of sets, an even number >= 2.
            rng: generator on the CPU.

        Raises:
            InputError: numbers out of range, or too few public examples to fill a set.
        """
        require(candidates >= 2, "at least 2 candidates", candidates=candidates)
        require(shadows >= 2 and shadows % 2 == 0, "an even number of shadows >= 2", shadows=shadows)
        minimum, maximum = -(-candidates // shadows), candidates // 2 + public
        required = f"{minimum} to {maximum} examples of the client, for shadow trainings"
        require(minimum <= examples <= maximum, required, examples=examples)
        parts = max(2, -(-candidates // examples))
        inside, indices = torch.zeros(shadows, candidates, dtype=torch.bool), list[Tensor]()
        while len(indices) < shadows:
            for part in torch.randperm(candidates, generator=rng).tensor_split(parts)[: shadows - len(indices)]:
                inside[len(indices), part] = True
                more = torch.randperm(public, generator=rng)[: examples - len(part)] + candidates
                indices.append(torch.cat([part, more]))
        return cls(inside, torch.stack(indices))


@dataclass(frozen=True)
class Prior:
    """Prior of the mean and variance of one side, in or out.

    Attributes:
        mean: (N,) expected value of each candidate.
        variance: pooled variance within candidates, > 0.
        counts: shadows that the mean is worth, kappa_0 > 0.
        freedom: degrees of freedom that the variance is worth, nu_0 > 0.
    """

    mean: np.ndarray
    variance: float
    counts: float = 1.0
    freedom: float = 4.0


_LEAST_ERROR = 1e-12  # squared errors below it are alike


def confidence(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute log p_y - log(1 - p_y) (N,) of class scores (N, classes): LiRA's logit, without loss of digits.

    Of labels that are numbers, which have no such logit, it is less the logarithm of the squared error.
    """
    if are_numbers(labels):
        return -loss(scores.double(), labels.double(), "none").clamp(min=_LEAST_ERROR).log()
    logs = torch.log_softmax(scores.double(), 1)
    logarithm = logs.gather(1, labels[:, None])[:, 0]
    return logarithm - torch.logsumexp(logs.scatter(1, labels[:, None], -torch.inf), 1)


def excess_ratio(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Compute log t_in - log t_out (N,) of values less the candidate's mean over its shadows; higher for members.

    How high a candidate's values are by themselves differs more than membership moves them. And with few shadows the
    difference of a candidate's two sides is mostly noise, of either sign. So the priors are fitted, see `fitted`.

    Args:
        target: (N,) a value of each candidate at the attacked client.
        shadows: (S, N) the same at shadow clients.
        inside: (S, N) whether a candidate was in a shadow's training set; each must have been in and out once.

    Returns:
        (N,) float64, higher for members; NaN if a shadow training ended in values that are not finite.

    Raises:
        InputError: shapes that do not belong together, or a candidate that was always in, or always out.
    """
    fitting = shadows.dim() == 2 and shadows.shape == inside.shape and shadows.shape[1:] == target.shape
    shapes = f"{tuple(target.shape)}, {tuple(shadows.shape)}, {tuple(inside.shape)}"
    require(fitting, "values (N,), (S, N) and (S, N)", shapes=shapes)
    both = bool((inside.any(0) & ~inside.all(0)).all())
    require(both, "each candidate in some shadow's training set and out of another's", shadows=len(shadows))
    if not bool(shadows.isfinite().all()):
        return torch.full_like(target, torch.nan, dtype=torch.float64)
    centre = shadows.double().mean(0)
    above, values = (target.double() - centre).numpy(force=True), (shadows.double() - centre).T.numpy(force=True)
    within = inside.T.numpy(force=True)
    sides = np.where(within, values, np.nan), np.where(within, np.nan, values)
    into, out = (predictive(side, fitted(side, prior_of(side))) for side in sides)
    return torch.from_numpy(log_density(above, into) - log_density(above, out))


def fitted(values: np.ndarray, prior: Prior) -> Prior:
    """Return a prior whose mean is worth as many shadows as the data say: the variance within candidates over the one
    between their means.

    The variance between means is what is left of theirs when that of their few values is taken away (moments). If
    nothing is left, candidates do not differ, and the prior's mean stands for all.

    Args:
        values: (N, S) of one side, NaN where a candidate is of the other one.
        prior: of this side.
    """
    counts = np.isfinite(values).sum(1)
    there = counts > 0
    distance = np.nanmean(values[there], 1) - prior.mean[there]
    between = float((distance**2).mean()) - prior.variance * float((1 / counts[there]).mean())
    return replace(prior, counts=min(prior.variance / between, MOST_COUNTS) if between > 0 else MOST_COUNTS)


def prior_of(values: np.ndarray) -> Prior:
    """Return the prior of one side: the mean of all, the variance of all pooled.

    Args:
        values: (N, S), NaN where a candidate is of the other side.
    """
    mean = np.full(len(values), np.nanmean(values))
    counts = np.isfinite(values).sum(1)
    repeated = counts >= 2
    freedom = int((counts[repeated] - 1).sum())
    centred = values[repeated] - np.nanmean(values[repeated], 1, keepdims=True) if freedom else values - mean[:, None]
    variance = float(np.nansum(centred**2)) / max(freedom or int(counts.sum()), 1)
    return Prior(mean, max(variance, np.finfo(float).tiny))


def predictive(values: np.ndarray, prior: Prior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the predictive Student-t of each candidate: degrees of freedom, centre and scale, (N,) each.

    kappa = kappa_0 + n, nu = nu_0 + n, centre = (kappa_0 mu_0 + n mean) / kappa, and

        nu s^2 = nu_0 s_0^2 + sum (value - mean)^2 + kappa_0 n / kappa (mean - mu_0)^2,    scale = s sqrt(1 + 1/kappa)

    Args:
        values: (N, S), NaN for values that are not there.
        prior: of this side.
    """
    there = np.isfinite(values)
    n = there.sum(1)
    filled = np.where(there, values, 0.0)
    mean = np.where(n > 0, filled.sum(1) / np.maximum(n, 1), prior.mean)
    squares = (np.where(there, values - mean[:, None], 0.0) ** 2).sum(1)
    counts, freedom = prior.counts + n, prior.freedom + n
    centre = (prior.counts * prior.mean + n * mean) / counts
    distance = prior.counts * n / counts * (mean - prior.mean) ** 2
    variance = (prior.freedom * prior.variance + squares + distance) / freedom
    return freedom, centre, np.sqrt(variance * (1 + 1 / counts))


def log_density(x: np.ndarray, at: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Compute the log density of Student's t, also where the square of its argument is beyond all floats."""
    from scipy.special import gammaln

    freedom, centre, scale = at
    with np.errstate(divide="ignore"):  # at the centre
        squares = 2 * np.log(np.abs(x - centre) / scale) - np.log(freedom)
    constant = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - np.log(np.pi * freedom) / 2 - np.log(scale)
    with np.errstate(invalid="ignore"):  # a loss that is not a number has no density, and counts as a failure
        return constant - (freedom + 1) / 2 * np.logaddexp(0, squares)


MOST_HELD = 2**26
"""Numbers in the inputs and weights of the trainings that run side by side."""


@final
@dataclass(frozen=True)
class ShadowClients:
    """Uploads of S clients that were trained on known sets; `train` makes them.

    Attributes:
        sets: their training sets.
        updates: by name (S, ...) the mean change of a step over the learning rate, about a mean gradient.
        travelled: learning rate times steps.
    """

    sets: ShadowSets
    updates: Tensors
    travelled: float

    @classmethod
    @torch.no_grad()
    def train(
        cls, victim: VictimModel, local: LocalSteps, sets: ShadowSets, pool: Examples, rng: torch.Generator
    ) -> ShadowClients:
        """Train on all sets side by side, from the tensors that the client received.

        Buffers stay as they were received, and layers of BatchNorm use them.

        Args:
            victim: the attacker's model of the client, of which all tensors are known.
            local: the client's training; with a batch size each epoch goes through a set in a new order.
            sets: the training sets.
            pool: candidates, then public examples: the places in the sets are theirs.
            rng: generator on the CPU, of the orders.
        """
        examples = sets.places.shape[1]
        order = in_turn(examples, local.batch_size or examples, local.steps)
        turns = torch.stack([_shuffled(examples, order[-1][-1] + 1, rng) for _ in sets.places])
        used = sets.places.gather(1, turns).to(pool.labels.device)
        stepped = SteppedVictim(victim, victim.known, replace(local, order=order))

        def update(x: Tensor, y: Tensor) -> Tensors:
            return stepped.gradient(x, y, victim.unknown, {})

        weights = sum(value.numel() for value in victim.known.values())
        together = max(1, MOST_HELD // (used.shape[1] * pool.samples[0].numel() + weights))
        parts = [vmap(update)(pool.samples[some], pool.labels[some]) for some in used.split(together)]
        updates = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return cls(sets, updates, local.lr * local.steps)

    def confidences(self, victim: VictimModel, examples: Examples) -> Tensor:
        """Compute LiRA's logits (S, N) of examples in the shadow models."""
        rows = []
        for index in range(len(self.sets.inside)):
            moved = {name: victim.known[name] - self.travelled * way[index] for name, way in self.updates.items()}
            rows.append(confidences(victim, moved, examples))
        return torch.stack(rows)

    def sketches(self, sketch: Sketch) -> Tensor:
        """Compute the sketches (S, width) of the updates."""
        return vmap(sketch.of)(self.updates)


def in_turn(examples: int, size: int, steps: int) -> tuple[Places, ...]:
    """Return each step's places among the examples as they are used; an epoch ends with a smaller batch.

    >>> in_turn(5, 2, 4)
    ((0, 1), (2, 3), (4,), (5, 6))
    """
    cuts = [at for epoch in range(0, steps * examples, examples) for at in range(epoch, epoch + examples, size)][
        : steps + 1
    ]
    ends = [*cuts[1:], steps * examples]
    return tuple(tuple(range(at, end)) for at, end in zip(cuts, ends, strict=True))[:steps]


def _shuffled(examples: int, maximum: int, rng: torch.Generator) -> Tensor:
    """Return ``maximum`` indices of a set's examples as they are used, each epoch in a new order."""
    return torch.cat([torch.randperm(examples, generator=rng) for _ in range(-(-maximum // examples))])[:maximum]


@torch.no_grad()
def confidences(victim: VictimModel, moved: Tensors, examples: Examples) -> Tensor:
    """Compute LiRA's logits (N,) of examples, with moved tensors in the place of the victim's."""
    tensors = {**victim.known, **victim.unknown}
    tensors |= {name: value for name, value in moved.items() if name in tensors}
    scores = functional_call(victim.model, tensors, (victim.inputs.normalise(examples.samples),))
    return confidence(scores, examples.labels)
