"""Statistics of somebody who knows what hides the data: selection, clipping, scaling or noise of a message.

Many mechanisms are, to one example among N, a linear map of its gradient and noise. With g the gradient of an example
after the known clipping, w the factor of each entry (0: not sent), c the scale of the message, and noise of deviation s
in each entry, the message is

    u = c w * mean(g) + noise

With m and S the mean and the covariance of w * g over public examples, u - c m has the covariance c^2 (S + n I) / N,
where n = N s^2 / c^2. So the whitened projection takes S + n I in the place of S. What is along m tells of the scale
alone, and is taken out. Over rounds, with a_t = (w_t * g_t - m_t) in deviations,

    T(x) = sum_t <a_t, u_t / c_t> / sqrt(sum_t |a_t|^2)

is the same statistic for all messages as one: rounds with little noise, in which |a_t| is large, count more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flfw.adversary.membership.whitening import RIDGE, Whitening
from flfw.errors import require

_RIDGES = (RIDGE, 1e-2, 0.1, 0.3, 1.0)
_FEWEST = 4
_LEAST_SCALE = 1e-3  # of a fitted scale; a message that has nothing of the mean gradient is mostly noise
_TINY = torch.finfo(torch.float64).tiny


def scale_of(mean: Tensor, update: Tensor) -> float:
    """Fit the scale of a message by least squares: its part along the public mean gradient, at least 1e-3.

    Args:
        mean: (width,) sketch of the mean gradient of public examples.
        update: (width,) sketch of the message.

    >>> scale_of(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 5.0]))
    0.5
    """
    length = float(mean @ mean)
    return max(float(mean @ update) / length, _LEAST_SCALE) if length > 0 else 1.0


def fitted(public: Tensor, examples: int, noise: Tensor | float = 0.0, scale: float = 1.0) -> Whitening:
    """Fit the whitening for a message with noise, with the ridge that `chosen_ridge` takes.

    Args:
        public: (P, width) sketches of what is left of public examples' gradients.
        examples: N >= 1 behind the message.
        noise: variance of the noise in each number of the message's sketch; one, or (width,).
        scale: c > 0 of the message.

    Raises:
        InputError: a value out of range.
    """
    require(examples >= 1, "examples >= 1", examples=examples)
    require(scale > 0, "scale > 0", scale=scale)
    of_examples = examples * noise / scale**2
    return Whitening.fit(public, chosen_ridge(public, of_examples), of_examples)


def chosen_ridge(public: Tensor, noise: Tensor | float = 0.0) -> float:
    """Choose the ridge by public examples alone: with it, one half of them makes d_eff of the other half largest.

    Few public examples leave a covariance with directions that look quieter than they are; a larger ridge mends that.

    Args:
        public: (P, width) sketches of what is left of public examples' gradients; below 8 there is nothing to choose.
        noise: n, the variance of the noise times N over c^2; one, or (width,).
    """
    half, other = public[::2], public[1::2]
    if len(other) < _FEWEST:
        return RIDGE
    dimensions = {ridge: effective_dimension(Whitening.fit(half, ridge, noise), other, noise) for ridge in _RIDGES}
    return max(dimensions, key=lambda ridge: dimensions[ridge])


class Projections(NamedTuple):
    """Parts of the statistic of N candidates in one round.

    Attributes:
        products: (N,) <a, u / c>.
        squares: (N,) |a|^2 >= 0.
    """

    products: Tensor
    squares: Tensor


def projections(whitening: Whitening, sketches: Tensor, update: Tensor, scale: float = 1.0) -> Projections:
    """Compute inner products of whitened gradients with a whitened message, without the direction of the mean.

    Args:
        whitening: from `fitted`.
        sketches: (N, width) of what is left of the candidates' gradients.
        update: (width,) sketch of the message.
        scale: c > 0 of the message.
    """
    rows = whitening.whitened(sketches)
    zero = torch.zeros_like(whitening.mean)
    mean = -whitening.whitened(zero[None])[0]  # L^-1 m, as `whitened` subtracts m
    seen = whitening.whitened(update[None])[0] + mean
    length = mean @ mean
    if bool(length > 0):
        rows, seen = (rows - torch.outer(rows @ mean, mean) / length, seen - (seen @ mean) / length * mean)
    return Projections(rows @ seen / scale, (rows * rows).sum(1))


def joined(rounds: Sequence[Projections]) -> Tensor:
    """Compute T (N,) over rounds; 0 for a candidate without any gradient.

    Args:
        rounds: the parts of T >= 1 rounds, in deviations of one message of N examples each.

    Raises:
        InputError: no round.
    """
    require(bool(rounds), "one round or more", rounds=0)
    products, squares = (torch.stack(parts).sum(0) for parts in zip(*rounds, strict=True))
    return torch.where(squares > 0, products / squares.clamp(min=_TINY).sqrt(), 0.0)


def effective_dimension(whitening: Whitening, others: Tensor, noise: Tensor | float) -> float:
    """Estimate d_eff, the number of directions in which a test may tell an example, from public examples only.

    With whitened gradients a_i = L^-1 (g_i - m), L L^T = S + n I, of examples that the covariance S was not fitted on,
    a candidate's score moves by |a_i|/N if it is a member, and otherwise has the variance v/N, with v the mean of
    (a_i^T a_j / |a_i|)^2 over pairs, and of the noise's part a^T L^-1 n L^-T a / |a|^2. So d_eff is the mean of |a_i|^2
    over v. On the fitted examples themselves it would be too large.

    Args:
        whitening: fitted with the noise on one part of the public examples.
        others: (P, width) of the other part, P >= 2.
        noise: n, the variance of the noise times N over c^2; one, or (width,); 0: none.

    Raises:
        InputError: too few examples.
    """
    require(len(others) >= 2, "at least 2 public examples", public=len(others))
    rows = whitening.whitened(others)
    squares = (rows * rows).sum(1)
    shares = squares.clamp(min=_TINY)[:, None]
    products = (rows @ rows.T) ** 2 / shares
    count = len(rows) * (len(rows) - 1)
    of_examples = float(products.sum() - products.diagonal().sum()) / count
    back = torch.linalg.solve_triangular(whitening.factor.T, rows.T, upper=True).T
    of_noise = float((back**2 * noise / shares).sum(1).mean())
    variance = of_examples + of_noise
    return float(squares.mean()) / variance if variance > 0 else 0.0
