"""Clipped sums of a logical batch, formed from physical batches that fit into memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from flfw.training.per_example import ClippedSum


def physical(x: Tensor, y: Tensor, most: int) -> list[tuple[Tensor, Tensor]]:
    """Divide a batch (B, ...) with labels (B,), B >= 0, into parts of at most ``most`` examples; 0: one part.

    No example is alone in a part where others are not: between one and two examples at once, rounding differs most, and
    one example fewer in a batch would move another from a pair into a part of its own. So with 2 all are alone.

    >>> [[len(y) for _, y in physical(torch.zeros(7, 1), torch.zeros(7), most)] for most in (0, 2, 3, 4)]
    [[7], [1, 1, 1, 1, 1, 1, 1], [3, 2, 2], [4, 3]]
    """
    size = max(1, len(y)) if not most else 1 if most == 2 else most
    sizes = [size] * (len(y) // size) + [len(y) % size] * (len(y) % size > 0) or [0]
    if size > 1 and len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [size - 1, 2]
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def accumulated(parts: Iterable[ClippedSum]) -> ClippedSum:
    """Add up the sums of one or more physical batches, one at a time, in float64.

    In float32 the errors of thousands of small parts are more than the noise allows for.

    Returns:
        The sum over all examples, with their norms, scales and losses in order.
    """
    sums, types, rows = None, dict[str, torch.dtype](), []
    for part in parts:
        rows.append((part.norms, part.scales, part.losses))
        if sums is None:
            sums, types = part.sums, {name: value.dtype for name, value in part.sums.items()}
        else:
            for name, value in part.sums.items():
                sums[name] = sums[name].double().add_(value)
    assert sums is not None, "one part or more"
    sums = {name: value.to(types[name]) for name, value in sums.items()}
    norms, scales, losses = (torch.cat(column) if len(rows) > 1 else column[0] for column in zip(*rows, strict=True))
    return ClippedSum(sums, norms, scales, losses)
