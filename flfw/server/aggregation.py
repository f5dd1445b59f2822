"""The clients' updates of a round, and their weighted mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from flfw.nets.net import Tensors


@dataclass(frozen=True)
class Update:
    """The message of one client in one round.

    Attributes:
        partition: number of the client.
        examples: number of the client's training examples; its weight in a weighted mean.
        tensors: the uploaded tensors by name.
        metrics: the client's numbers by name, checked by `flfw.messages.replies.read_metrics`; None: not finite.
    """

    partition: int
    examples: int
    tensors: Tensors
    metrics: Mapping[str, Any] = field(default_factory=dict)


def weighted_mean(updates: Iterable[Update]) -> Tensors:
    """Take the mean of the clients' tensors, weighted by examples; sums in float64, results in the tensors' own type.

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
