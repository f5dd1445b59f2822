"""The clients' updates of a round, and their weighted mean.

The order of the additions is fixed, and the same on every engine: the updates of a block of 8 clients with consecutive
numbers are added up by number, then the sums of the blocks. So a process that has all clients of a block may send their
sum in place of their updates, and no bit of the mean changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from flfw.errors import require
from flfw.nets.net import Tensors

CLIENTS_IN_BLOCK = 8
_BLOCK = 2**17  # numbers that are added at once: their copy in float64 stays in the cache


@dataclass(frozen=True)
class Update:
    """The message of one client in one round.

    Attributes:
        partition: number of the client.
        examples: number of the client's training examples; its weight in a weighted mean.
        tensors: the uploaded tensors by name.
        metrics: the client's numbers by name, checked by `flfw.messages.replies.read_metrics`; None: not finite.
        summed: types of the uploaded tensors where ``tensors`` are their `WeightedSum` over the clients of a block, and
            ``examples`` is the sum of theirs; None: the update of one client. Only a method that `reduces` gets sums.
    """

    partition: int
    examples: int
    tensors: Tensors
    metrics: Mapping[str, Any] = field(default_factory=dict)
    summed: Mapping[str, torch.dtype] | None = None


def block_of(partition: int) -> int:
    """Return the number of the block to which a client belongs."""
    return partition // CLIENTS_IN_BLOCK


@final
class WeightedSum:
    """Sum of tensors times their numbers of examples, in float64.

    Attributes:
        tensors: the sums, by name.
        kinds: types of the tensors that were added.
        examples: sum of the numbers of examples.
    """

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.kinds: dict[str, torch.dtype] = {}
        self.examples = 0

    def add(self, tensors: Tensors, examples: int) -> None:
        """Add the tensors of a client; they are left as they are."""
        self._add(tensors, examples)
        self.kinds |= {name: value.dtype for name, value in tensors.items()}
        self.examples += examples

    def join(self, tensors: Tensors, kinds: Mapping[str, torch.dtype], examples: int) -> None:
        """Add the sum of a block."""
        self._add(tensors, 1)
        self.kinds |= kinds
        self.examples += examples

    def clear(self) -> None:
        """Set the sums to zero; their memory is used again."""
        for value in self.tensors.values():
            value.zero_()
        self.kinds, self.examples = {}, 0

    def _add(self, tensors: Tensors, weight: int) -> None:
        for name, value in tensors.items():
            if name not in self.tensors:
                self.tensors[name] = torch.zeros(value.shape, dtype=torch.float64)
            _add(self.tensors[name], value, weight)


def update_of(partition: int, tensors: Tensors | WeightedSum, metrics: Mapping[str, Any]) -> Update:
    """Return the update of a client, or that of a block's clients, of which this one was the last."""
    if isinstance(tensors, WeightedSum):
        return Update(partition, tensors.examples, tensors.tensors, {}, tensors.kinds)
    return Update(partition, metrics.get("num-examples", 1), tensors, metrics)


def weighted_mean(updates: Iterable[Update]) -> Tensors:
    """Take the mean of the clients' tensors, weighted by examples; sums in float64, results in the tensors' own type.

    Raises:
        BadInput: there are tensors, and no examples.

    >>> one = Update(0, 1, {"w": torch.tensor([0.0])})
    >>> weighted_mean([one, Update(1, 3, {"w": torch.tensor([4.0])})])
    {'w': tensor([3.])}
    """
    whole, block, number = WeightedSum(), WeightedSum(), -1
    for update in updates:
        if block.kinds and (update.summed is not None or block_of(update.partition) != number):
            whole, block = _with(whole, block)
        if update.summed is not None:
            whole.join(update.tensors, update.summed, update.examples)
        else:
            number = block_of(update.partition)
            block.add(update.tensors, update.examples)
    whole, _ = _with(whole, block)
    # Without examples the mean would be a model of NaN.
    require(whole.examples > 0 or not whole.kinds, "at least one example behind a mean", examples=whole.examples)
    return {name: _divided(whole.tensors[name], whole.examples, kind) for name, kind in whole.kinds.items()}


def _with(whole: WeightedSum, block: WeightedSum) -> tuple[WeightedSum, WeightedSum]:
    """Return a sum with that of a block, and an empty one for the next block; they take the memory of the two."""
    if not whole.kinds:
        return block, whole
    whole.join({name: block.tensors[name] for name in block.kinds}, block.kinds, block.examples)
    block.clear()
    return whole, block


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
