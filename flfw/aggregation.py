"""How a server combines what clients sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from flfw.nets.net import Tensors
from flfw.noise import gaussian


@dataclass(frozen=True)
class Update:
    """What one client sent in one round.

    Attributes:
        partition: the client.
        examples: how many training examples stand behind it; the weight in a weighted mean.
        tensors: the uploaded tensors by name.
    """

    partition: int
    examples: int
    tensors: Tensors


def weighted_mean(updates: Iterable[Update]) -> Tensors:
    """The mean of the clients' tensors, weighted by their examples; sums in float64, results in the tensors' own type.

    >>> one = Update(0, 1, {"w": torch.tensor([0.0])})
    >>> weighted_mean([one, Update(1, 3, {"w": torch.tensor([4.0])})])
    {'w': tensor([3.])}
    """
    sums: Tensors = {}
    kinds: dict[str, torch.dtype] = {}
    total = 0
    for update in updates:
        total += update.examples
        for name, value in update.tensors.items():
            kinds[name] = value.dtype
            sums.setdefault(name, torch.zeros(value.shape, dtype=torch.float64)).add_(value, alpha=update.examples)
    return {
        name: (value / total if kinds[name].is_floating_point else (value / total).round()).to(kinds[name])
        for name, value in sums.items()
    }


def noisy_mean(
    updates: Iterable[Update], sent: Tensors, cohort: int, deviation: float, rng: torch.Generator
) -> Tensors:
    """W + (sum_k (W_k - W) + N(0, deviation^2)) / cohort: what a trusted server makes of clipped updates.

    The divisor is not the number of updates, which would tell who took part. Sums are in float64.

    Args:
        updates: W_k by name; there may be none.
        sent: W, what the clients of the round were sent.
        cohort: how many clients a round has, or is expected to have.
        deviation: of the noise on the sum, >= 0.
        rng: of the noise.
    """
    names = [name for name, value in sent.items() if value.is_floating_point()]
    sums = {name: torch.zeros(sent[name].shape, dtype=torch.float64) for name in names}
    for update in updates:
        for name in names:
            sums[name] += update.tensors[name].double() - sent[name].double()
    noise = gaussian({name: sent[name].shape for name in names}, deviation, rng)
    moved = {n: (sent[n].double() + (sums[n] + noise[n]) / cohort).to(sent[n].dtype) for n in names}
    return {**sent, **moved}
