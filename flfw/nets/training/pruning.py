"""Pruning of a tensor to its entries of largest magnitude, as in compressors."""

from __future__ import annotations

import torch
from torch import Tensor


def keep_largest(value: Tensor, ratio: float) -> Tensor:
    """Return the tensor with a share ``ratio`` in [0, 1) of its entries, those of smallest magnitude, set to 0.

    The share is rounded down to whole entries; ties are broken arbitrarily.

    >>> keep_largest(torch.tensor([3.0, -1.0, 2.0, 0.5]), 0.5)
    tensor([3., 0., 2., 0.])
    """
    keep = value.numel() - int(ratio * value.numel())
    kept = value.flatten().abs().topk(keep).indices
    return torch.zeros_like(value).flatten().index_copy(0, kept, value.flatten()[kept]).view_as(value)
