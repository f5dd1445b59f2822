"""Whitened projection: the inner product of an example's gradient with an update, where noise is as loud everywhere.

Gradients of other examples are the noise of this test, and they are loud in few directions. With their mean m and
covariance S, from public examples and in a random sketch,

    T(x) = (g(x) - m)^T S^-1 (u - m) / sqrt((g(x) - m)^T S^-1 (g(x) - m))

is the likelihood ratio of "x is one of the N examples whose mean gradient is u", for normal gradients, up to a monotone
function of each example. Under "out" it is about N(0, 1/N). The plain inner product and the cosine leave most of this
on the table: loud directions drown the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import final

import torch
from torch import Tensor

from flfw.errors import require

RIDGE = 1e-3
"""Share of the mean variance that is added to each, as few public examples leave directions without any."""


@final
@dataclass(frozen=True)
class Whitening:
    """Mean and covariance of sketched gradients of public examples; `fit` makes one.

    Attributes:
        mean: (width,) float64.
        factor: (width, width) float64, lower triangular: the covariance with its ridge is ``factor @ factor.T``.
    """

    mean: Tensor
    factor: Tensor

    @classmethod
    def fit(cls, public: Tensor, ridge: float = RIDGE, noise: Tensor | float = 0.0) -> Whitening:
        """Fit the mean and the covariance.

        Args:
            public: (P, width) sketched gradients of examples of no client, P >= 2.
            ridge: share of the mean variance that is added to each, > 0.
            noise: variance, >= 0, of known noise on each number of the update's sketch, times the N examples that the
                update is a mean over: its other noise, the other examples, has the covariance over N. One, or (width,).

        Raises:
            InputError: too few examples, or a value out of range.
        """
        require(len(public) >= 2, "at least 2 public examples", public=len(public))
        require(ridge > 0, "ridge > 0", ridge=ridge)
        minimum = float(torch.as_tensor(noise).min())
        require(minimum >= 0, "noise >= 0", noise=minimum)
        rows = public.double()
        covariance = torch.atleast_2d(torch.cov(rows.T))
        size = len(covariance)
        added = (ridge * covariance.trace() / size + noise).expand(size)
        # Examples that are all alike have no covariance; the least positive number keeps the factor defined.
        added = added.clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
        factor = torch.linalg.cholesky(covariance + torch.diag(added))
        return cls(rows.mean(0), factor)

    def whitened(self, sketches: Tensor) -> Tensor:
        """Compute ``factor^-1 (sketch - mean)`` of sketches (N, width), in float64."""
        centred = (sketches.double() - self.mean).T
        return torch.linalg.solve_triangular(self.factor, centred, upper=False).T

    def scores(self, sketches: Tensor, update: Tensor) -> Tensor:
        """Compute T for candidates.

        Args:
            sketches: (N, width) sketched gradients of the candidates.
            update: (width,) the sketch of a mean gradient.

        Returns:
            (N,) float64, higher for members; 0 for a candidate whose gradient is the public mean.
        """
        return self.against(sketches, update[None])[0]

    def against(self, sketches: Tensor, updates: Tensor) -> Tensor:
        """Compute T (K, N) for candidates against each of K updates (K, width); see `scores`."""
        rows = self.whitened(sketches)
        lengths = torch.linalg.vector_norm(rows, dim=1)
        products = self.whitened(updates) @ rows.T
        return torch.where(lengths > 0, products / lengths.clamp(min=torch.finfo(lengths.dtype).tiny), 0.0)


def predicted_auc(dimension: float, examples: int) -> float:
    """Return the AUC, in [0.5, 1], that normal gradients allow for a mean gradient of N examples at one point.

    It is Phi(sqrt(d_eff / (2 N))). Gradients of a trained network have heavy tails, for which it does not hold.

    Args:
        dimension: d_eff >= 0 of `flfw.adversary.membership.adapted.effective_dimension`.
        examples: N >= 1.

    >>> round(predicted_auc(260, 80), 2), round(predicted_auc(260, 320), 2)
    (0.9, 0.74)
    """
    require(dimension >= 0, "dimension >= 0", dimension=dimension)
    require(examples >= 1, "examples >= 1", examples=examples)
    return NormalDist().cdf(sqrt(dimension / (2 * examples)))
