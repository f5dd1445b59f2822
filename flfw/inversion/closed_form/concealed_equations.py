"""Equations of a last layer's gradient with concealed samples in it, and their solution by Gauss-Newton steps.

`flfw.inversion.closed_form.concealed` derives them: A(M) M = U and A(M) 1 = dL/db, with M (R, R) and the projection's
factor v unknown. All candidates are solved at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_PARTS = 3.0  # the sum of the recipe's weights
_DAMPING = 1e-3  # first, over the diagonal of the normal equations


class Candidates(NamedTuple):
    """Candidates: M (n, R, R) in units of the usual length, factors v (n,), labels c (n, m, K) as probabilities."""

    m: Tensor
    v: Tensor
    labels: Tensor

    def at(self, places: Tensor) -> Candidates:
        """Return some of them."""
        return Candidates(self.m[places], self.v[places], self.labels[places])


class Equations(NamedTuple):
    """Equations in units in which V has orthonormal rows.

    Attributes:
        layer: (K, R) scores of the features M V are ``layer`` M^T, plus ``bias``.
        bias: (K,).
        left: U (K, R).
        slope: dL/db (K,).
        unit: usual length of features.
        mixture: l.
        target: (B, K) the examples' labels, one-hot.
        behind: (m, K) those of the sensitive examples.
    """

    layer: Tensor
    bias: Tensor
    left: Tensor
    slope: Tensor
    unit: float
    mixture: float
    target: Tensor
    behind: Tensor

    @property
    def size(self) -> Tensor:
        """Length of the message."""
        return (self.left.square().sum() + self.slope.square().sum()).sqrt()

    def weights(self, v: Tensor) -> Tensor:
        """Return the weights (n, R) of the samples, first of the concealed ones, for factors v (n,)."""
        hidden, shown = len(self.behind), len(self.target)
        share = 1 / _PARTS + v if hidden else torch.ones_like(v)
        concealed = v.new_full((len(v), hidden), 1 / (_PARTS * max(1, hidden)))
        return torch.cat([concealed, (share / shown)[:, None].expand(-1, shown)], 1)

    def slopes(self, p: Tensor, labels: Tensor) -> Tensor:
        """Return the columns of A without their weights, as rows (n, R, K), for probabilities p (n, R, K)."""
        hidden = len(self.behind)
        concealed = p[:, :hidden] - self.mixture * labels - (1 - self.mixture) * self.behind
        return torch.cat([concealed, p[:, hidden:] - self.target], 1)

    def probabilities(self, m: Tensor) -> Tensor:
        """Return the probabilities (n, R, K) that the last layer gives the features."""
        return (torch.einsum("kr,nfr->nfk", self.layer, m * self.unit) + self.bias).softmax(2)

    def mixed(self, at: Candidates) -> Tensor:
        """Return A (n, K, R)."""
        return (self.weights(at.v)[..., None] * self.slopes(self.probabilities(at.m), at.labels)).mT

    def residual(self, at: Candidates) -> Tensor:
        """Return the errors (n, (R + 1) K) of the candidates over the message's length."""
        a = self.mixed(at)
        errors = (a @ (at.m * self.unit) - self.left).flatten(1)
        return torch.cat([errors, a.sum(2) - self.slope], 1) / self.size

    def errors(self, at: Candidates) -> Tensor:
        """Return the root of each candidate's summed squared errors (n,); infinite where they are not finite."""
        return self.residual(at).square().sum(1).sqrt().nan_to_num(nan=torch.inf)

    def jacobian(self, at: Candidates) -> Tensor:
        """Return the derivatives (n, (R + 1) K, R R + 1) of the errors by M, row by row, and by v.

        A's column f depends on row f of M alone: d A[k, f] / d M[f, q] = w p_k (layer[k, q] - sum_j p_j layer[j, q]).
        """
        scaled, weights, p = at.m * self.unit, self.weights(at.v), self.probabilities(at.m)
        inner = self.layer - (p @ self.layer)[:, :, None]
        column = (self.unit * weights[..., None] * p)[..., None] * inner  # (n, f, k, q)
        slopes = self.slopes(p, at.labels)
        by_m = torch.einsum("nfkq,nfr->nkrfq", column, scaled)
        by_m.diagonal(dim1=2, dim2=4).add_((self.unit * weights[..., None] * slopes).mT[..., None])
        examples = slopes[:, len(self.behind) :] / len(self.target)
        by_v = torch.einsum("nfk,nfr->nkr", examples, scaled[:, len(self.behind) :]).flatten(1)
        upper = torch.cat([by_m.flatten(3).flatten(1, 2), by_v[..., None]], 2)
        lower = torch.cat([column.permute(0, 2, 1, 3).flatten(2), examples.sum(1)[..., None]], 2)
        derivatives = torch.cat([upper, lower], 1) / self.size
        if not len(self.behind):
            derivatives[..., -1] = 0  # no projection without a concealed sample
        return derivatives

    def solved(self, at: Candidates, steps: int) -> Candidates:
        """Run damped Gauss-Newton steps on each candidate; a step that does not lower the error is not made."""
        shape, labels = at.m.shape[1:], at.labels
        damping = torch.full_like(at.v, _DAMPING)
        errors = self.residual(at)
        for _ in range(steps):
            jacobian = self.jacobian(at)
            normal = jacobian.mT @ jacobian
            normal.diagonal(dim1=1, dim2=2).mul_(1 + damping[:, None]).add_(1e-300)
            move, _ = torch.linalg.solve_ex(normal, jacobian.mT @ errors[..., None])
            moved = torch.cat([at.m.flatten(1), at.v[:, None]], 1) - move[..., 0]
            tried = Candidates(moved[:, :-1].unflatten(1, shape), moved[:, -1], labels)
            after = self.residual(tried)
            better = after.square().sum(1) < errors.square().sum(1)
            m, v = torch.where(better[:, None, None], tried.m, at.m), torch.where(better, tried.v, at.v)
            at, errors = Candidates(m, v, labels), torch.where(better[:, None], after, errors)
            damping = torch.where(better, damping / 5, damping * 5).clamp(1e-15, 1e6)
        return at
