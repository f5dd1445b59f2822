"""How far what a guess would have sent is from what was sent, and how much a guess looks like an image."""

from __future__ import annotations

import torch
from torch import Tensor

from flfw.nets.net import Tensors

_TINY = 1e-30  # keeps the gradient of a norm finite where the norm is 0, and leaves small gradients what they are


def _inner(a: Tensors, b: Tensors) -> Tensor:
    return torch.stack([(a[name] * b[name]).sum() for name in b]).sum()


def cosine_distance(trial: Tensors, observed: Tensors) -> Tensor:
    """1 - cos between two gradients, all tensors taken as one vector; in [0, 2] (Geiping et al., NeurIPS 2020, eq. 4).

    >>> a, b = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}
    >>> float(cosine_distance(a, b)), float(cosine_distance(a, a))
    (1.0, 0.0)
    """
    norms = (_inner(trial, trial) + _TINY).sqrt() * (_inner(observed, observed) + _TINY).sqrt()
    return 1 - _inner(trial, observed) / norms


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of vertical plus of horizontal neighbours of images (..., H, W); 0 for rows (..., d).

    >>> float(total_variation(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])))
    1.0
    """
    if x.dim() < 3:
        return x.new_zeros(())
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
