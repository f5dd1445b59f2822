"""Check of a received tensor for values that are no numbers."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor


def is_finite(value: Tensor) -> bool:
    """Return whether a tensor has neither NaN nor infinite values; an empty one has none, nor has one of integers.

    The least and the greatest value are NaN if any value is, and infinite if any is: one pass that writes nothing, as
    against a mask of all values.

    >>> is_finite(torch.tensor([1.0, 2.0])), is_finite(torch.tensor([1.0, torch.nan])), is_finite(torch.tensor([]))
    (True, False, True)
    """
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if not value.is_floating_point() or not value.numel():
        return True
    return all(isfinite(end.item()) for end in torch.aminmax(value))
