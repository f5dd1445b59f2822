"""The clients' updates of a round, and their weighted mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flfw.errors import require
from flfw.nets.net import Tensors

_BLOCK = 2**17  # numbers that are added at once: their copy in float64 stays in the cache


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

    Raises:
        BadInput: there are tensors, and no examples.

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
            if name not in sums:
                sums[name] = torch.zeros(value.shape, dtype=torch.float64)
            _add(sums[name], value, update.examples)
    require(total > 0 or not sums, "at least one example behind a mean", examples=total)  # else a model of NaN
    return {name: _divided(value, total, kinds[name]) for name, value in sums.items()}


def _add(total: Tensor, value: Tensor, weight: int) -> None:
    """Add a weighted tensor to a sum in float64; each entry is rounded as if all were added at once."""
    if total.numel() <= _BLOCK:
        total.add_(value, alpha=weight)
        return
    parts = value.expand_as(total).reshape(-1).split(_BLOCK)
    for part, more in zip(total.view(-1).split(_BLOCK), parts, strict=True):
        part.add_(more, alpha=weight)


def _divided(total: Tensor, by: int, kind: torch.dtype) -> Tensor:
    """Divide a sum in float64, in place, and return the quotient in another type, to whole numbers rounded."""
    result = torch.empty(total.shape, dtype=kind)
    for part, quotient in zip(total.view(-1).split(_BLOCK), result.view(-1).split(_BLOCK), strict=True):
        part.div_(by)
        quotient.copy_(part if kind.is_floating_point else part.round_())
    return result
