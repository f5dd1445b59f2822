"""Gradient descent on guesses of the data, many victims at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.functional import pad

from flfw.inversion.victim import VictimModel
from flfw.nets.net import Tensors


@dataclass(frozen=True)
class Schedule:
    """Adam's schedule.

    Attributes:
        iterations: steps.
        lr: first step size, in deviations of the normalised input.
        signed: follow the sign of the gradient with respect to the data (unknown tensors keep their gradient).
        drops: at these fractions of the iterations the step size becomes a tenth.
    """

    iterations: int
    lr: float
    signed: bool
    drops: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)


@dataclass(frozen=True)
class Problem:
    """One search.

    Attributes:
        sent: what was observed, by name.
        labels: (B,) as granted.
        start: (B, ...) the first guess, in normalised units.
        unknown: the first guess of the tensors the attacker does not hold.
    """

    sent: Tensors
    labels: Tensor
    start: Tensor
    unknown: Tensors


def search(
    victim: VictimModel,
    problems: Sequence[Problem],
    distance: Callable[[Tensors, Tensors], Tensor],
    prior: Callable[[Tensor], Tensor],
    schedule: Schedule,
    box: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Minimise ``distance(gradient of guess, observed) + prior(guess)`` for all problems of one victim model at once.

    The variable is the normalised input, clamped to the box after every step; unknown tensors are searched for with it.

    Args:
        victim: computes the gradient of a guess.
        problems: P of them, of equal batch size.
        distance: of two gradients.
        prior: of a guess (B, ...) in normalised units.
        schedule: of Adam.
        box: smallest and largest raw input.

    Returns:
        Raw inputs (P, B, ...) in the box, and the distance (P,) at them, without the prior.
    """
    observed, constants = _stacked([victim.observed(problem.sent) for problem in problems])
    labels = torch.stack([problem.labels for problem in problems])
    inputs, device = victim.inputs, victim.inputs.mean.device
    low, high = (inputs.normalise(torch.full(inputs.shape, end, device=device)) for end in box)
    guess = torch.stack([problem.start for problem in problems]).to(device).clamp(low, high)
    unknown = {name: torch.stack([problem.unknown[name] for problem in problems]) for name in victim.unknown}

    def loss(z: Tensor, free: Tensors, y: Tensor, seen: Tensors, fixed: Tensors) -> tuple[Tensor, Tensor]:
        matched = distance(victim.gradient(z * inputs.std + inputs.mean, y, free, fixed), seen)
        return matched + prior(z), matched

    step = vmap(grad_and_value(loss, argnums=(0, 1), has_aux=True))
    optimiser = torch.optim.Adam([guess, *unknown.values()], lr=schedule.lr)
    milestones = sorted({max(1, int(fraction * schedule.iterations)) for fraction in schedule.drops})
    decay = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    for _ in range(schedule.iterations):
        (gradient, gradients), _ = step(guess, unknown, labels, observed, constants)
        guess.grad = gradient.sign_() if schedule.signed else gradient
        for name, value in unknown.items():
            value.grad = gradients[name]
        optimiser.step()
        decay.step()
        with torch.no_grad():
            guess.clamp_(low, high)
    _, (_, matched) = step(guess.detach(), {n: v.detach() for n, v in unknown.items()}, labels, observed, constants)
    return (guess.detach() * inputs.std + inputs.mean).clamp(*box), matched.detach()


def _stacked(pairs: Sequence[tuple[Tensors, Tensors]]) -> tuple[Tensors, Tensors]:
    """Stack observations and their constants; the last dimension is padded with zeros where victims differ in it."""
    return _stack([observed for observed, _ in pairs]), _stack([constants for _, constants in pairs])


def _stack(several: Sequence[Tensors]) -> Tensors:
    stacked = {}
    for name in several[0]:
        values = [tensors[name] for tensors in several]
        width = max(value.shape[-1] for value in values) if values[0].dim() else 0
        stacked[name] = torch.stack([pad(v, (0, width - v.shape[-1])) if v.dim() else v for v in values])
    return stacked
