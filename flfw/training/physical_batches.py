"""Clipped sums of a logical batch, formed from physical batches that fit into memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from flfw.training.per_example import ClippedSum


def physical(x: Tensor, y: Tensor, most: int) -> list[tuple[Tensor, Tensor]]:
    """Divide a batch (B, ...) with labels (B,), B >= 0, into parts of at most ``most`` examples; 0: one part.

    >>> [len(labels) for _, labels in physical(torch.zeros(5, 1), torch.zeros(5), 2)]
    [2, 2, 1]
    """
    size = most or max(1, len(y))
    return list(zip(x.split(size), y.split(size), strict=True))


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
