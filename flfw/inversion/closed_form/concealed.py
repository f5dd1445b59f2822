"""Separation of a batch's features from those of concealed samples, whose gradients were mixed into one message.

The last layer has weights W (K, d) and biases b. A message of B examples, m of them each with a concealed sample, has
there, with R = m + B,

    dL/dW = A F,  dL/db = A 1,   F (R, d) the features, first of the concealed samples,   p = softmax(W f + b)
    a concealed sample's column of A    (p - l e_c - (1 - l) e_s) / (3 m)       c its label, s that of its example
    an example's                        (1 / 3 + v) (p - e) / B                 v >= 0 from a projection, else 0

and without concealed samples (p - e) / B. dL/dW = U V has rank R, so F = M V with an unknown M (R, R), and the A that
this F produces must satisfy A M = U and A 1 = dL/db: (R + 1)(K - 1) equations, as each column of A adds up to 0, for
R^2 + 1 unknowns. They are solved from many random starts by Adam, with soft labels c that are searched for as well,
then with the likeliest labels by Gauss-Newton; the solution with the least error is taken. The error of a genuine one
is near rounding; that of a wrong one may be as small as 1e-5.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

_LR, _PARTS = 0.05, 3.0  # parts: the sum of the recipe's weights
_SPREAD = 0.5  # of the starts, over the usual length of features
_POLISH, _CANDIDATES = 80, 64  # steps of Gauss-Newton, for the best candidates
_UNPROJECTED = -40.0  # before softplus: v is 0


class Separated(NamedTuple):
    """Features of the examples and of the concealed samples.

    Attributes:
        examples: (B, d), in the order of their labels; examples of one label in any order.
        concealed: (m, d).
        labels: (m,) the concealed samples' target labels.
        factor: v.
        error: root of the summed squared errors of the equations, over the length of what they explain; 0: exact.
    """

    examples: Tensor
    concealed: Tensor
    labels: Tensor
    factor: float
    error: float


class _Unknown(NamedTuple):
    """Candidates: M (n, R, R) in units of the usual length, v before softplus (n,), labels c as logits (n, m, K)."""

    m: Tensor
    v: Tensor
    labels: Tensor


class _Equations(NamedTuple):
    """Equations in units in which V has orthonormal rows: scores of F are ``layer`` (K, R) times M^T, plus ``bias``."""

    layer: Tensor
    bias: Tensor
    left: Tensor
    slope: Tensor
    unit: float
    mixture: float
    target: Tensor
    behind: Tensor

    def residual(self, m: Tensor, v: Tensor, labels: Tensor) -> Tensor:
        """Return the errors (n, (R + 1) K) of n candidates, with labels as probabilities, over the message's length."""
        scaled, hidden = m * self.unit, len(self.behind)
        p = (torch.einsum("kr,nfr->nfk", self.layer, scaled) + self.bias).softmax(2)
        share = 1 / _PARTS + softplus(v)[:, None, None] if hidden else 1.0
        plain = share * (p[:, hidden:] - self.target) / len(self.target)
        concealed = p[:, :hidden] - self.mixture * labels - (1 - self.mixture) * self.behind
        a = torch.cat([concealed / (_PARTS * max(1, hidden)), plain], 1).mT
        size = (self.left.square().sum() + self.slope.square().sum()).sqrt()
        return torch.cat([(a @ scaled - self.left).flatten(1), a.sum(2) - self.slope], 1) / size


def rank(weight_gradient: Tensor, tolerance: float = 1e-6) -> int:
    """Count the singular values of a gradient (K, d) above a share of the largest; rounding leaves 1e-7 of it."""
    values = torch.linalg.svdvals(weight_gradient.double())
    return int((values > tolerance * values[0]).sum())


def solvable(examples: int, concealed: int, classes: int) -> bool:
    """Return whether there are more equations than unknowns: the rank of a gradient is below the number of classes.

    >>> [solvable(m, m, 10) for m in (1, 4, 5)], solvable(9, 0, 10), solvable(10, 0, 10), solvable(1, 1, 2)
    ([True, True, False], True, False, False)
    """
    return examples + concealed < classes


def separate(
    weight_gradient: Tensor,
    bias_gradient: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    sensitive: Tensor,
    rng: torch.Generator,
    *,
    mixture: float = 0.7,
    starts: int = 300,
    steps: int = 800,
) -> Separated:
    """Separate the features of a batch and of its concealed samples.

    Args:
        weight_gradient: (K, d), of the last layer.
        bias_gradient: (K,).
        weight: (K, d), the layer's.
        bias: (K,).
        labels: (B,) of the examples.
        sensitive: mask (B,) of the examples that have a concealed sample.
        rng: generator of the starts, on the CPU.
        mixture: l, in [0, 1].
        starts: random starts, >= 1; every second one begins with a projection.
        steps: of Adam, >= 1.
    """
    g, classes = weight_gradient.double(), len(bias)
    target = one_hot(labels, classes).to(g)
    behind = target[sensitive]
    joint = len(target) + len(behind)
    u, s, right = torch.linalg.svd(g, full_matrices=False)
    rows, unit = right[:joint], float(weight.shape[1]) ** 0.5
    layer, left = weight.double() @ rows.T, u[:, :joint] * s[:joint]
    equations = _Equations(layer, bias.double(), left, bias_gradient.double(), unit, mixture, target, behind)
    unknown = _descended(equations, _started(equations, starts, rng), steps)
    hard = one_hot(unknown.labels.argmax(2), classes).to(g)
    soft = equations.residual(unknown.m, unknown.v, unknown.labels.softmax(2)).square().sum(1)
    best = soft.topk(min(_CANDIDATES, starts), largest=False).indices
    m, v = _polished(equations, unknown.m[best], unknown.v[best], hard[best])
    errors = equations.residual(m, v, hard[best]).square().sum(1).nan_to_num(nan=torch.inf)
    place, hidden = int(errors.argmin()), len(behind)
    features = (m[place] * unit @ rows).to(weight)
    factor = float(softplus(v[place])) if hidden else 0.0
    error = float(errors[place]) ** 0.5
    return Separated(features[hidden:], features[:hidden], hard[best[place]].argmax(-1), factor, error)


def _started(equations: _Equations, starts: int, rng: torch.Generator) -> _Unknown:
    """Draw random starts; the labels begin nearly alike."""
    joint, (hidden, classes) = equations.layer.shape[1], equations.behind.shape
    device = equations.layer.device
    m = _SPREAD * torch.randn(starts, joint, joint, generator=rng, dtype=torch.float64)
    v = torch.randn(starts, generator=rng, dtype=torch.float64)
    v[::2] = _UNPROJECTED
    labels = 0.1 * torch.randn(starts, hidden, classes, generator=rng, dtype=torch.float64)
    return _Unknown(*(value.to(device) for value in (m, v, labels)))


def _descended(equations: _Equations, start: _Unknown, steps: int) -> _Unknown:
    """Run Adam on all candidates at once."""
    at = _Unknown(*(value.clone().requires_grad_() for value in start))
    unprojected = start.v <= _UNPROJECTED
    adam = torch.optim.Adam([*at], lr=_LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        loss = equations.residual(at.m, at.v, at.labels.softmax(2)).square().sum()
        gradients = torch.autograd.grad(loss, [*at], allow_unused=True)
        for value, gradient in zip(at, gradients, strict=True):
            value.grad = torch.zeros_like(value) if gradient is None else gradient
        at.v.grad = torch.where(unprojected, 0.0, at.v.grad)  # type: ignore[arg-type]
        adam.step()
        schedule.step()
    return _Unknown(*(value.detach() for value in at))


def _polished(equations: _Equations, m: Tensor, v: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Run damped Gauss-Newton steps on each candidate; a step that raises the error is not made."""
    shape = m.shape[1:]
    at = torch.cat([m.flatten(1), v[:, None]], 1)
    damping = torch.full((len(at),), 1e-3, dtype=torch.float64, device=at.device)

    def residuals(unknown: Tensor, chosen: Tensor) -> Tensor:
        return equations.residual(unknown[:, :-1].unflatten(1, shape), unknown[:, -1], chosen)

    def one(unknown: Tensor, label: Tensor) -> Tensor:
        return residuals(unknown[None], label[None])[0]

    for _ in range(_POLISH):
        jacobian = torch.func.vmap(torch.func.jacrev(one))(at, labels)
        before = residuals(at, labels)
        normal = jacobian.mT @ jacobian
        diagonal = torch.diag_embed(normal.diagonal(dim1=1, dim2=2) * damping[:, None] + 1e-300)
        move = torch.linalg.lstsq(normal + diagonal, jacobian.mT @ before[..., None]).solution[..., 0]
        tried = at - move
        better = residuals(tried, labels).square().sum(1) < before.square().sum(1)
        at = torch.where(better[:, None], tried, at)
        damping = torch.where(better, damping / 5, damping * 5).clamp(1e-15, 1e6)
    return at[:, :-1].unflatten(1, shape), at[:, -1]
