"""Measures of an outsider on a published model: losses at it, and at reference models trained on public data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from flfw.adversary.membership_attack import MembershipView, PublishedModel
from flfw.adversary.observation import Examples
from flfw.membership.reference_models import ReferenceSets, chosen_a, mean_outside, ratios, rmia
from flfw.nets.net import Tensors, loss, losses
from flfw.rng import torch_generator
from flfw.victims.victim import VictimModel

_AT_ONCE = 500


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
    def train(cls, victim: VictimModel, shown: PublishedModel, public: Examples, count: int, seed: int) -> References:
        """Train them by stochastic gradient descent.

        Args:
            victim: the attacker's model; its values are the initialisation.
            shown: learning rate, steps and batch size of the clients.
            public: examples of no client.
            count: number of models, even and >= 4.
            seed: of the sets and of the order of the examples.
        """
        sets = ReferenceSets.draw(len(public.labels), count, torch_generator(seed, "reference sets"))
        places = (torch.nonzero(inside).flatten() for inside in sets.inside)
        each = (_trained(victim, shown, public, half, seed + turn) for turn, half in enumerate(places))
        return cls(tuple(each), sets)


def published_scores(
    view: MembershipView, shown: PublishedModel, references: References, gamma: float
) -> dict[str, Tensor]:
    """Score the candidates by ``rmia`` and by ``loss``, the negative loss (Yeom et al., CSF 2018).

    The loss is its own floor, ``loss_only``: an outsider has nothing else to start from.

    Args:
        view: the candidates and the public data.
        shown: the published model.
        references: the reference models.
        gamma: of RMIA.
    """
    victim = view.model(shown.tensors)
    published = {**victim.unknown, **victim.known}
    at = lambda tensors, examples: _losses(victim, tensors, examples)  # noqa: E731
    mine, others = at(published, view.candidates), torch.stack([at(m, view.candidates) for m in references.models])
    public, around = at(published, view.public), torch.stack([at(m, view.public) for m in references.models])
    a = chosen_a((-around).exp(), references.sets, gamma)
    population = ratios((-public).exp(), mean_outside((-around).exp(), references.sets.inside.to(around.device)), a)
    candidates = ratios((-mine).exp(), (-others).exp().mean(0), a)
    return {"loss": -mine, "rmia": rmia(candidates, population, gamma), "loss_only": -mine}


def _trained(victim: VictimModel, shown: PublishedModel, public: Examples, places: Tensor, seed: int) -> Tensors:
    trained = {name for name, _ in victim.model.named_parameters()}
    held = {name: value.detach().clone() for name, value in victim.model.state_dict().items()}
    moving = {name: value.requires_grad_() for name, value in held.items() if name in trained}
    rng, left = torch_generator(seed, "reference training"), places[:0]
    for _ in range(shown.steps):
        if not len(left):
            left = places[torch.randperm(len(places), generator=rng)]
        chosen, left = left[: shown.batch].to(public.labels.device), left[shown.batch :]
        x, y = victim.inputs.normalise(public.samples[chosen]), public.labels[chosen]
        value = loss(functional_call(victim.model, held, (x,)), y)
        gradients = torch.autograd.grad(value, list(moving.values()))
        with torch.no_grad():
            for value, gradient in zip(moving.values(), gradients, strict=True):
                value.sub_(shown.lr * gradient)
    return {name: value.detach() for name, value in held.items()}


@torch.no_grad()
def _losses(victim: VictimModel, tensors: Tensors, examples: Examples) -> Tensor:
    """Compute the loss (N,) of each example at some parameters, in float64."""
    parts = []
    for x, y in zip(examples.samples.split(_AT_ONCE), examples.labels.split(_AT_ONCE), strict=True):
        scores = functional_call(victim.model, tensors, (victim.inputs.normalise(x),))
        parts.append(losses(scores.double(), x, y))
    return torch.cat(parts)
