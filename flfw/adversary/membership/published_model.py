"""Measures of an outsider on a published model: losses at it, and RMIA by reference models trained on public data.

RMIA is that of Zarifzadeh et al., "Low-Cost High-Power Membership Inference Attacks", ICML 2024, arXiv 2312.03262,
offline: no reference model was trained on the candidates. With p the probability of an example's label,

    p(x) = ((1 + a) p_out(x) + (1 - a)) / 2        p_out: mean over reference models without x
    r(x) = p_target(x) / p(x)

and the score of x is the share of examples z of no client with r(x) >= gamma r(z). The number a is chosen on reference
models, never on the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from flfw.adversary.membership_attack import MembershipView, PublishedModel
from flfw.errors import require
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.net import Tensors, loss, losses
from flfw.recording.observation import Examples
from flfw.rng import torch_generator

_AT_ONCE = 500
_GRID = tuple(step / 10 for step in range(11))
"""Values of a that are tried."""


@final
@dataclass(frozen=True)
class ReferenceSets:
    """Training sets of R reference models: halves of the public examples, two by two without a common one.

    Attributes:
        inside: (R, P) whether a public example is in a set.
    """

    inside: Tensor

    @classmethod
    def draw(cls, public: int, references: int, rng: torch.Generator) -> ReferenceSets:
        """Draw the sets.

        Args:
            public: number of public examples, >= 4.
            references: an even number of models, >= 4: with two none would be left to choose a on.
            rng: generator on the CPU.

        Raises:
            InputError: numbers out of range.
        """
        require(public >= 4, "at least 4 public examples for reference models", public=public)
        even = references >= 4 and references % 2 == 0
        require(even, "an even number of reference models >= 4", references=references)
        inside = torch.zeros(references, public, dtype=torch.bool)
        for first in range(0, references, 2):
            half = torch.randperm(public, generator=rng)[: public // 2]
            inside[first, half] = True
            inside[first + 1] = ~inside[first]
        return cls(inside)


def ratios(target: Tensor, out: Tensor, a: float) -> Tensor:
    """Compute r = p_target / p of examples, in float64.

    Args:
        target: (N,) probability of each example's label at the target.
        out: (N,) its mean over reference models that were not trained on the example.
        a: in [0, 1]; 1: models with and without an example are taken to be alike.
    """
    require(0 <= a <= 1, "0 <= a <= 1", a=a)
    floor = torch.finfo(torch.float64).tiny
    return target.double() / (((1 + a) * out.double() + (1 - a)) / 2).clamp(min=floor)


def rmia(candidates: Tensor, population: Tensor, gamma: float) -> Tensor:
    """Compute RMIA's score (N,), in [0, 1]: the share of the population whose ratio is ``gamma`` times smaller.

    Args:
        candidates: (N,) ratios of the candidates.
        population: (P,) ratios of examples that the target was not trained on, P >= 1.
        gamma: > 0.

    >>> rmia(torch.tensor([1.0, 4.0]), torch.tensor([0.5, 1.0, 2.0, 3.0]), 2.0).tolist()
    [0.25, 0.75]
    """
    require(gamma > 0, "gamma > 0", gamma=gamma)
    require(len(population) >= 1, "a population of 1 or more", population=len(population))
    ordered = (gamma * population).sort().values
    return torch.searchsorted(ordered, candidates.to(ordered), right=True).double() / len(ordered)


def chosen_a(probabilities: Tensor, sets: ReferenceSets, gamma: float) -> float:
    """Choose a: of `_GRID` the first with the highest area under the curve, with the first reference as the target.

    Its members are the examples of its set. The references are the others but the second one, whose set is exactly
    what the first has not.

    Args:
        probabilities: (R, P) of the public examples' labels at the reference models.
        sets: their training sets.
        gamma: as for `rmia`.
    """
    target, member = probabilities[0], sets.inside[0].to(probabilities.device)
    out = mean_outside(probabilities[2:], sets.inside[2:])
    areas = []
    for a in _GRID:
        scored = ratios(target, out, a)
        areas.append(_area(rmia(scored[member], scored[~member], gamma), rmia(scored[~member], scored[~member], gamma)))
    return _GRID[int(np.argmax(areas))]


def mean_outside(values: Tensor, inside: Tensor) -> Tensor:
    """Compute for each public example the mean (P,) over the reference models that were not trained on it.

    Args:
        values: (R, P), of the references.
        inside: (R, P) whether an example is in a set; each is outside of one or more.
    """
    outside = (~inside).to(values)
    return (values * outside).sum(0) / outside.sum(0)


def _area(members: Tensor, others: Tensor) -> float:
    """Compute the area under the curve; ties count half."""
    ordered = others.sort().values
    below, upto = (torch.searchsorted(ordered, members, right=right).double() for right in (False, True))
    return float(((below + upto) / 2).mean()) / len(others)


@final
@dataclass(frozen=True)
class References:
    """Reference models of an attacker, trained on halves of the public data.

    They start from one initialisation of the attacker's own, and take as many steps of as many examples as a client.

    Attributes:
        models: parameters of each, by name.
        sets: their training sets.
    """

    models: tuple[Tensors, ...]
    sets: ReferenceSets

    @classmethod
    def train(cls, victim: VictimModel, model: PublishedModel, public: Examples, count: int, seed: int) -> References:
        """Train them by stochastic gradient descent.

        Args:
            victim: the attacker's model; its values are the initialisation.
            model: learning rate, steps and batch size of the clients.
            public: examples of no client.
            count: number of models, even and >= 4.
            seed: of the sets and of the order of the examples.
        """
        sets = ReferenceSets.draw(len(public.labels), count, torch_generator(seed, "reference sets"))
        places = (torch.nonzero(inside).flatten() for inside in sets.inside)
        each = (_trained(victim, model, public, half, seed + turn) for turn, half in enumerate(places))
        return cls(tuple(each), sets)


def published_scores(
    view: MembershipView, model: PublishedModel, references: References, gamma: float
) -> dict[str, Tensor]:
    """Score the candidates by ``rmia`` and by ``loss``, the negative loss (Yeom et al., CSF 2018).

    The loss is its own floor, ``loss_only``: an outsider has nothing else to start from.

    Args:
        view: the candidates and the public data.
        model: the published model.
        references: the reference models.
        gamma: of RMIA.
    """
    victim = view.model(model.tensors)
    published = {**victim.unknown, **victim.known}
    at = lambda tensors, examples: _losses(victim, tensors, examples)  # noqa: E731
    mine, others = at(published, view.candidates), torch.stack([at(m, view.candidates) for m in references.models])
    public, around = at(published, view.public), torch.stack([at(m, view.public) for m in references.models])
    a = chosen_a((-around).exp(), references.sets, gamma)
    population = ratios((-public).exp(), mean_outside((-around).exp(), references.sets.inside.to(around.device)), a)
    candidates = ratios((-mine).exp(), (-others).exp().mean(0), a)
    return {"loss": -mine, "rmia": rmia(candidates, population, gamma), "loss_only": -mine}


def _trained(victim: VictimModel, model: PublishedModel, public: Examples, indices: Tensor, seed: int) -> Tensors:
    trained = {name for name, _ in victim.model.named_parameters()}
    tensors = {name: value.detach().clone() for name, value in victim.model.state_dict().items()}
    moving = {name: value.requires_grad_() for name, value in tensors.items() if name in trained}
    rng, left = torch_generator(seed, "reference training"), indices[:0]
    for _ in range(model.steps):
        if not len(left):
            left = indices[torch.randperm(len(indices), generator=rng)]
        chosen, left = left[: model.batch].to(public.labels.device), left[model.batch :]
        x, y = victim.inputs.normalise(public.samples[chosen]), public.labels[chosen]
        value = loss(functional_call(victim.model, tensors, (x,)), y)
        gradients = torch.autograd.grad(value, list(moving.values()))
        with torch.no_grad():
            for value, gradient in zip(moving.values(), gradients, strict=True):
                value.sub_(model.lr * gradient)
    return {name: value.detach() for name, value in tensors.items()}


@torch.no_grad()
def _losses(victim: VictimModel, tensors: Tensors, examples: Examples) -> Tensor:
    """Compute the loss (N,) of each example at some parameters, in float64."""
    parts = []
    for x, y in zip(examples.samples.split(_AT_ONCE), examples.labels.split(_AT_ONCE), strict=True):
        scores = functional_call(victim.model, tensors, (victim.inputs.normalise(x),))
        parts.append(losses(scores.double(), x, y))
    return torch.cat(parts)
