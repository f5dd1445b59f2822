"""Separation of a batch's features from those of concealed samples, whose gradients were mixed into one message.

The last layer has weights W (K, d) and biases b. A message of B examples, m of them each with a concealed sample, has
there, with R = m + B,

    dL/dW = A F,  dL/db = A 1,   F (R, d) the features, first of the concealed samples,   p = softmax(W f + b)
    a concealed sample's column of A    (p - l e_c - (1 - l) e_s) / (3 m)       c its label, s that of its example
    an example's                        (1 / 3 + v) (p - e) / B                 v >= 0 from a projection, else 0

and without concealed samples (p - e) / B. dL/dW = U V has rank R, so F = M V with an unknown M (R, R), and the A that
this F produces must satisfy A M = U and A 1 = dL/db: (R + 1)(K - 1) equations, as each column of A adds up to 0, for
R^2 + 1 unknowns. They are solved by Gauss-Newton steps, all candidates at once, from two kinds of starts. The solution
with the least error is taken:

    guessed     all features near their mean, which is about dL/db dL/dW / |dL/db|^2. So p and, for given labels c, A
                and v are known nearly; of the labels those are taken that explain dL/db best. M solves A M = U, and
                where A hardly tells, it is near a random place.
    random      M, v and soft labels are drawn, and descended by Adam before; for networks whose p differ much.

The error of a genuine solution is near rounding, below 1e-7 for v near 0 and about 1e-7 v for larger ones; that of a
wrong one may be as small as 1e-5. So some genuine messages with v above 10 are refused. A solution tells little of an
example that the network fits well: its column of A is nearly 0, and rounding hides it.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

SOLVED = 1e-6
"""Error above which no solution was found."""

_LR = 0.05
_SPREAD = 0.5  # of random starts, over the usual length of features
_APART = 0.1  # of guessed features from their mean, each coordinate, over the mean's length
_NEAR = 0.03  # expected error of a guessed A, over an example's weight
_DRAWN, _LISTED, _ROUNDS = 20_000, 32, 3  # labels looked at and kept, and repeats of the guess
_ROUNDING = 1e-3  # of v, where all singular values of the gradient are alike
_FIRST, _LAST, _KEPT = 30, 150, 128  # steps of Gauss-Newton for all candidates, for the best, and how many these are
_PARTS = 3.0  # the sum of the recipe's weights
_DAMPING = 1e-3  # first, over the diagonal of the normal equations


class Candidates(NamedTuple):
    """Candidates: M (n, R, R) in units of the usual length, factors v (n,), labels c (n, m, K) as probabilities."""

    m: Tensor
    v: Tensor
    labels: Tensor

    def at(self, indices: Tensor) -> Candidates:
        """Return some of them."""
        return Candidates(self.m[indices], self.v[indices], self.labels[indices])


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


def choices(labels: Tensor, concealed: int) -> list[Tensor]:
    """Return masks (B,) for each choice of sensitive examples; choices of the same labels are one.

    Args:
        labels: (B,) of the examples, of which those of one label come in any order.
        concealed: number of sensitive examples, in [0, B].

    >>> [mask.int().tolist() for mask in choices(torch.tensor([3, 7, 3]), 1)]
    [[1, 0, 0], [0, 1, 0]]
    """
    first: dict[tuple[int, ...], list[int]] = {}
    for indices in combinations(range(len(labels)), concealed):
        first.setdefault(tuple(sorted(labels[list(indices)].tolist())), list(indices))
    masks = torch.zeros(len(first), len(labels), dtype=torch.bool, device=labels.device)
    for mask, indices in zip(masks, first.values(), strict=True):
        mask[indices] = True
    return list(masks)


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
        starts: guessed starts, about, and random ones if none of these solves the equations, >= 1.
        steps: of Adam, >= 1.
    """
    g, classes = weight_gradient.double(), len(bias)
    target = one_hot(labels, classes).to(g)
    behind = target[sensitive]
    joint = len(target) + len(behind)
    u, s, right = torch.linalg.svd(g, full_matrices=False)
    rows, unit = right[:joint], float(weight.shape[1]) ** 0.5
    layer, left = weight.double() @ rows.T, u[:, :joint] * s[:joint]
    equations = Equations(layer, bias.double(), left, bias_gradient.double(), unit, mixture, target, behind)
    best, error = _best(equations, _guessed(equations, starts, rng))
    if error >= SOLVED:
        other, minimum = _best(equations, _descended(equations, starts, steps, rng))
        best, error = (other, minimum) if minimum < error else (best, error)
    features, hidden = (best.m[0] * unit @ rows).to(weight), len(behind)
    factor = float(best.v[0]) if hidden else 0.0
    return Separated(features[hidden:], features[:hidden], best.labels[0].argmax(-1), factor, error)


def _best(equations: Equations, start: Candidates) -> tuple[Candidates, float]:
    """Solve the equations from each start, and return the one candidate of least error with the error."""
    first = equations.solved(start, _FIRST)
    kept = equations.errors(first).topk(min(_KEPT, len(start.v)), largest=False).indices
    last = equations.solved(first.at(kept), _LAST)
    # No projection has a negative factor. Rounding moves v the more, the less a singular value tells of it.
    lengths = equations.left.norm(dim=0)
    rounding = _ROUNDING + 2 * torch.finfo(torch.float32).eps * lengths.max() / lengths.min()
    errors = torch.where(last.v < -rounding, torch.inf, equations.errors(last))
    index = errors.argmin()
    return last.at(index[None]), float(errors[index])


def _guessed(equations: Equations, starts: int, rng: torch.Generator) -> Candidates:
    """Return starts with the likeliest labels and features near their mean; the first of each labels without noise."""
    joint, device = equations.layer.shape[1], equations.layer.device
    mean = equations.slope @ equations.left / equations.slope.square().sum()
    p = (equations.layer @ mean + equations.bias).softmax(0).expand(1, joint, -1)
    labels, v = _likeliest(equations, p, min(_LISTED, starts), rng)
    times = max(1, starts // len(v))
    noise = torch.randn(times, joint, joint, generator=rng, dtype=torch.float64).to(device)
    noise[0] = 0
    near = ((mean + _APART * mean.norm() * noise) / equations.unit).repeat_interleave(len(v), 0)
    at = Candidates(near, v.repeat(times), labels.repeat(times, 1, 1))
    ridge = (_NEAR / (3 * len(equations.target))) ** 2 * torch.eye(joint, dtype=torch.float64, device=device)
    for _ in range(_ROUNDS):
        a = equations.mixed(at)
        missing = equations.left / equations.unit - a @ near
        at = at._replace(m=near + torch.linalg.solve(a.mT @ a + ridge, a.mT @ missing))
    return at


def _likeliest(equations: Equations, p: Tensor, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return up to ``count`` concealed labels (n, m, K) that explain dL/db best with probabilities p, and their v."""
    given, classes = equations.behind.argmax(1), len(equations.slope)
    hidden, others = len(given), classes - 1
    if others**hidden <= _DRAWN:
        steps = others ** torch.arange(hidden)
        moved = torch.arange(others**hidden)[:, None] // steps % others
    else:
        moved = torch.randint(0, others, (_DRAWN, hidden), generator=rng)
    labels = one_hot((given + 1 + moved.to(given.device)) % classes, classes).to(p)
    slopes = equations.slopes(p.expand(len(labels), -1, -1), labels)
    weights = equations.weights(p.new_zeros(1))
    missing = equations.slope - (weights[..., None] * slopes).sum(1)
    by_v = slopes[0, hidden:].mean(0)
    v = (missing @ by_v / by_v.square().sum()).clamp_min(0) if hidden else p.new_zeros(1)
    errors = (missing - v[:, None] * by_v).square().sum(1)
    best = errors.topk(min(count, len(errors)), largest=False).indices
    return labels[best], v[best]


def _descended(equations: Equations, starts: int, steps: int, rng: torch.Generator) -> Candidates:
    """Draw random starts, every second with a projection, and run Adam on them; the labels begin nearly alike."""
    joint, (hidden, classes) = equations.layer.shape[1], equations.behind.shape
    m = _SPREAD * torch.randn(starts, joint, joint, generator=rng, dtype=torch.float64)
    v = softplus(torch.randn(starts, generator=rng, dtype=torch.float64))
    v[::2] = 0
    logits = 0.1 * torch.randn(starts, hidden, classes, generator=rng, dtype=torch.float64)
    at = [value.to(equations.layer.device).requires_grad_() for value in (m, v, logits)]
    unprojected = at[1].detach() == 0
    adam = torch.optim.Adam(at, lr=_LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        loss = equations.residual(Candidates(at[0], at[1], at[2].softmax(2))).square().sum()
        for value, gradient in zip(at, torch.autograd.grad(loss, at, allow_unused=True), strict=True):
            value.grad = torch.zeros_like(value) if gradient is None else gradient
        at[1].grad = torch.where(unprojected, 0.0, at[1].grad)  # type: ignore[arg-type]
        adam.step()
        schedule.step()
    m, v, logits = (value.detach() for value in at)
    return Candidates(m, v, one_hot(logits.argmax(2), classes).to(m))
