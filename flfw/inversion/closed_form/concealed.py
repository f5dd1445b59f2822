"""Separation of a sensitive sample's features from those of a concealed one, which were mixed into one gradient.

The last layer has weights W (K, d) and biases b. A message of one sensitive and one concealed example has there

    dL/dW = A F,  dL/db = A 1,   F = [f_c; f_s] (2, d),   A = [p_c - l e_c - (1 - l) e_s, (1 + 3 v) (p_s - e_s)] / 3
    p = softmax(W f + b)

with the mixture l, the labels c and s, and v >= 0 from a projection, 0 where there was none. dL/dW = U R has rank 2, so
F = M R with an unknown M (2, 2), and the A that this F produces must satisfy A M = U and A 1 = dL/db: 3K equations for
four unknowns and v. They are solved from many random starts for every label c, by Adam and then by Gauss-Newton steps;
the solution with the least error is taken. An error near rounding proves it: random gradients leave one of order 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

_LR, _DIVISOR = 0.05, 3.0
_POLISH = 60  # steps of Gauss-Newton for the best candidates
_CANDIDATES = 64


class Separated(NamedTuple):
    """Features of the two examples.

    Attributes:
        concealed: (d,).
        sensitive: (d,).
        label: the concealed example's target label.
        factor: v >= 0, from the projection.
        error: root of the summed squared errors of the equations, over the length of what they explain; 0: exact.
    """

    concealed: Tensor
    sensitive: Tensor
    label: int
    factor: float
    error: float


class _Equations(NamedTuple):
    """Equations in units in which R has orthonormal rows: scores of F are ``layer`` (K, 2) times M^T, plus ``bias``."""

    layer: Tensor
    bias: Tensor
    left: Tensor
    slope: Tensor
    target: Tensor
    mixture: float

    def residual(self, unknown: Tensor, label: Tensor) -> Tensor:
        """Return the errors (n, 3K) of n candidates.

        Args:
            unknown: (n, 5): M row by row, and v before softplus; a large negative number stands for 0.
            label: label c of each, one-hot (n, K).
        """
        m = unknown[:, :4].unflatten(1, (2, 2))
        scores = torch.einsum("kr,nfr->nfk", self.layer, m) + self.bias
        p = scores.softmax(2)
        concealed = p[:, 0] - self.mixture * label - (1 - self.mixture) * self.target
        sensitive = (1 + _DIVISOR * softplus(unknown[:, 4:])) * (p[:, 1] - self.target)
        a = torch.stack([concealed, sensitive], 2) / _DIVISOR
        return torch.cat([(a @ m - self.left).flatten(1), a.sum(2) - self.slope], 1)


def separate(
    weight_gradient: Tensor,
    bias_gradient: Tensor,
    weight: Tensor,
    bias: Tensor,
    label: int,
    rng: torch.Generator,
    *,
    mixture: float = 0.7,
    starts: int = 200,
    steps: int = 1500,
) -> Separated:
    """Separate the features of one sensitive and one concealed example.

    Args:
        weight_gradient: (K, d), of the last layer.
        bias_gradient: (K,).
        weight: (K, d), the layer's.
        bias: (K,).
        label: of the sensitive example.
        rng: generator of the starts, on the CPU.
        mixture: l, in [0, 1].
        starts: random starts for each label c, >= 1; every second one begins with a projection.
        steps: of Adam, >= 1.
    """
    g, slope = weight_gradient.double(), bias_gradient.double()
    u, s, right = torch.linalg.svd(g, full_matrices=False)
    left, rows, scale = u[:, :2] * s[:2], right[:2], float(weight.shape[1]) ** 0.5
    classes = len(bias)
    target = one_hot(torch.tensor(label), classes).to(g)
    size = float((left**2).sum() + (slope**2).sum()) ** 0.5
    # Divided by its size, so that one step size fits all messages.
    equations = _Equations(weight.double() @ rows.T, bias.double(), left, slope, target, mixture)
    others = torch.tensor([c for c in range(classes) if c != label]).repeat_interleave(starts)
    labels = one_hot(others, classes).to(g)
    unknown = torch.randn(len(others), 5, generator=rng, dtype=torch.float64).to(g.device)
    unknown[:, :4] *= 0.5 * scale
    unknown[:, 4] = torch.where(torch.arange(len(others)) % 2 == 0, -40.0, unknown[:, 4].cpu()).to(g.device)
    unknown = _descended(equations, unknown, labels, steps, scale, size)
    best = (
        equations.residual(unknown, labels).square().sum(1).topk(min(_CANDIDATES, len(others)), largest=False).indices
    )
    polished = _polished(equations, unknown[best], labels[best])
    errors = equations.residual(polished, labels[best]).square().sum(1).nan_to_num(nan=torch.inf)
    place = int(errors.argmin())
    features = polished[place, :4].view(2, 2) @ rows
    error = float(errors[place]) ** 0.5 / size
    factor = float(softplus(polished[place, 4]))
    return Separated(features[0].to(weight), features[1].to(weight), int(others[best[place].cpu()]), factor, error)


def _descended(equations: _Equations, unknown: Tensor, labels: Tensor, steps: int, scale: float, size: float) -> Tensor:
    """Run Adam on all candidates at once; M in units of the features' usual length, v with a tenth of its step."""
    units = torch.tensor([scale] * 4 + [1.0], dtype=torch.float64, device=unknown.device)
    at = (unknown / units).requires_grad_()
    fixed = unknown[:, 4] <= -40
    adam = torch.optim.Adam([at], lr=_LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        loss = (equations.residual(at * units, labels) / size).square().sum()
        (gradient,) = torch.autograd.grad(loss, [at])
        gradient[fixed, 4] = 0.0
        at.grad = gradient
        adam.step()
        schedule.step()
    return (at * units).detach()


def _polished(equations: _Equations, unknown: Tensor, labels: Tensor) -> Tensor:
    """Run damped Gauss-Newton steps on each candidate; a step that raises the error is not made."""
    damping = torch.full((len(unknown),), 1e-3, dtype=torch.float64, device=unknown.device)

    def one(at: Tensor, label: Tensor) -> Tensor:
        return equations.residual(at[None], label[None])[0]

    for _ in range(_POLISH):
        jacobian = torch.func.vmap(torch.func.jacrev(one))(unknown, labels)
        residual = equations.residual(unknown, labels)
        normal = jacobian.mT @ jacobian
        diagonal = torch.diag_embed(normal.diagonal(dim1=1, dim2=2) * damping[:, None] + 1e-300)
        move = torch.linalg.lstsq(normal + diagonal, (jacobian.mT @ residual[..., None])).solution[..., 0]
        tried = unknown - move
        better = equations.residual(tried, labels).square().sum(1) < residual.square().sum(1)
        unknown = torch.where(better[:, None], tried, unknown)
        damping = torch.where(better, damping / 5, damping * 5).clamp(1e-15, 1e6)
    return unknown
