"""How a server combines what clients sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from flfw.nets.net import Tensors


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
