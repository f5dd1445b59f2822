"""Shares of the classes among the examples that a network was trained on, read off the change of its last bias.

Under cross entropy a step of plain gradient descent moves the last bias by lr times ``h - p``, for the shares h of the
classes in the batch and the mean softmax p over it. Over many steps on all of a client's data the mean rate of the bias
is ``h - p`` as well, with p the mean over the way of the weights. With M[c, k], the mean softmax of class k over
examples of class c, this is linear in h: ``(I - M^T) h``. M is estimated on public examples of each class, with the
weights before, after and between.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flfw.errors import require

_WHOLE = 1e3  # weight of the condition that shares have the sum 1
_PRIOR = 1e-2  # weight of the prior, which decides in directions that the bias does not show
_SLOWEST = 1e-3  # smallest rate on a part of the way, as a share of the mean one: it ends nowhere
_TURNS = 10  # of the alternation between shares and times


def effective_lr(lr: float, steps: int, momentum: float = 0.0) -> float:
    """Return the factor by which the steps multiply a gradient that stays the same, momentum included.

    >>> effective_lr(0.5, 3)
    1.5
    >>> effective_lr(1.0, 2, 0.5)  # 1 and 1.5
    2.5
    """
    require(steps >= 1, "steps >= 1", steps=steps)
    require(0 <= momentum < 1, "0 <= momentum < 1", momentum=momentum)
    return lr * sum((1 - momentum**step) / (1 - momentum) for step in range(1, steps + 1))


def class_shares(rate: Tensor, softmax: Tensor, prior: Tensor) -> Tensor:
    """Return the shares of the classes that explain the mean rate of the last bias.

    They are the least squares solution among shares >= 0 with the sum 1, drawn a little to the prior. On a part of the
    way where the bias moves slowly, the weights stay long: times follow from the shares, and these from the times, in
    turns.

    Args:
        rate: (K,) change of the bias over the effective learning rate.
        softmax: (T, K, K) for T >= 1 equal parts of the way and each class of the examples, their mean softmax.
        prior: (K,) shares without the observation.

    Returns:
        (K,) in double precision.

    >>> fresh = torch.full((1, 2, 2), 0.5)
    >>> class_shares(torch.tensor([0.3, -0.3]), fresh, torch.tensor([0.5, 0.5])).round(decimals=3)
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    parts, classes, _ = softmax.shape
    fits = rate.shape == prior.shape == (classes,) and softmax.shape[2] == classes
    require(fits, "a rate and a prior for each class", rate=tuple(rate.shape), prior=tuple(prior.shape))
    seen, means, before = (value.double().numpy() for value in (rate, softmax, prior))
    matrices = np.eye(classes) - means.transpose(0, 2, 1)
    times = np.full(parts, 1 / parts)
    shares = _solved(seen, np.tensordot(times, matrices, 1), before)
    for _ in range(_TURNS if parts > 1 else 0):
        times = _times(seen, matrices @ shares)
        shares = _solved(seen, np.tensordot(times, matrices, 1), before)
    return torch.from_numpy(shares)


def _times(rate: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the share of the time that each part of a way takes, in the direction of the whole change."""
    length = float(rate @ rate)
    if not length > 0:
        return np.full(len(rates), 1 / len(rates))
    slow = 1 / np.maximum(rates @ rate / length, _SLOWEST)
    return slow / slow.sum()


def _solved(rate: np.ndarray, matrix: np.ndarray, prior: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    whole, drawn = np.full((1, len(rate)), _WHOLE), _PRIOR * np.eye(len(rate))
    shares, _ = nnls(np.concatenate([matrix, whole, drawn]), np.concatenate([rate, [_WHOLE], _PRIOR * prior]))
    return shares / shares.sum()
