"""Exact separation of a batch's examples in the gradient of a fully connected layer before a rectifier.

The layer's gradient is G = D^T A with a row for each of r examples: D (r, n) the loss's gradients at the layer's
outputs, A (r, d) its inputs. With r left singular vectors Q (n, r) of G, D = M Q^T and A = M^-T Q^T G, and the bias's
gradient, the sum of D's rows, fixes the lengths. A row of D is 0, or small if the rectifier leaks, wherever that
example's output is negative. So each row of M is a vector q with many zeros in Q q. Reweighted least squares finds such
vectors first, also with a leaky rectifier. Where it fails, and for larger batches, they are found by chance, without a
leak: r units of which r - 1 are zeros of one example determine the vector, and the inverse of the r columns of Q^T at
such units has it among its rows. Of all vectors that are drawn, the independent ones with the most zeros are kept.

Two proofs are possible. By the layer alone: the inputs must make each output positive where D is not 0, and at no other
unit. It cannot tell apart examples that switch on the same units: any mixture of the two passes. By the whole network
(`Responses`): the gradient that it computes at the layer's outputs for an input must lie in the span of Q. That refuses
mixtures, and replaces a vector by the exact one. It is also needed where the units of one example are all among those
of another one, whose vector is then no sparser than mixtures of both; and it spares the search for the last vector, as
the inputs that belong to r - 1 others and any further vector include the exact one of the last example.

Source: Dimitrov et al., "SPEAR: Exact Gradient Inversion of Batches in Federated Learning", NeurIPS 2024, arXiv
2403.03945, which samples the zeros and proves by the layer. Reweighted least squares, the choice among the vectors, the
proof by the network and bounds that follow from the gradient's rounding are additions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import pad

SETS = 200_000
"""Default of the largest number of random sets of units."""

Responses: TypeAlias = Callable[[Tensor], Tensor]
"""Function of inputs (K, d) of the layer for the gradients at its outputs, one for each possible label, (K, labels, n);
their lengths do not count."""

_ABOVE_ROUNDING = 20.0  # least ratio of an example's singular value and the largest one of rounding
_RELATIVE = 1e-13  # least rounding, as a share of the largest singular value
_OUTSIDE = 1e-9  # largest squared distance of a true unit gradient from the span
_REPEATED = 1e-6  # largest squared sine of the network's vector and the gradient's own
_UNSURE, _CLEAR = 1e-3, 1e-2  # outputs, and gradients, too small for their sign to count; over their mean, largest size
_PATIENCE = 3000  # sets without any vector after which it ends if nobody knows whether the rectifier leaks
CHUNK = 250
"""Sets of units that `draw` inverts at once."""

_PROBED = 64  # units at which zeros are counted first
_LEAST_SHARE = 0.15  # least share of zeros of a kept vector
_MORE = 3  # least number of its zeros beyond the r - 1 that every drawn vector has
_NEARLY = (1e-3, 1e-4, 1e-5)  # shares of a drawn vector's largest entry below which an entry may be 0
_TIGHT = 1e-9  # the same for a polished vector
_WIDE = 6.0  # standard deviations of rounding that still count as 0
_DEPENDENT = 1e-6  # largest squared distance of a unit vector from a span that holds it
_BLURRED = 16.0  # squared, this much rounding of a vector does not make it another one
_ALIKE = 1e-5  # largest squared sine of a drawn vector and a kept one that it repeats
_TAKEN = 20  # vectors of a chunk that are looked at


@dataclass(frozen=True)
class RoundedBasis:
    """Basis of a space, known up to rounding.

    Attributes:
        rows: (r, n) float64, orthonormal.
        rounding: (r,) standard deviation of the rounding of each row's entries.
    """

    rows: Tensor
    rounding: Tensor

    def rounded(self, vectors: Tensor) -> Tensor:
        """Compute the largest entries (K,) that rounding alone gives for vectors (K, r)."""
        return _WIDE * (vectors * self.rounding).norm(dim=1)

    def blurred(self, vectors: Tensor) -> Tensor:
        """Compute the squared length (K,) that rounding alone gives for vectors (K, r)."""
        return self.rows.shape[1] * self.rounded(vectors) ** 2

    def zeros(self, vectors: Tensor, share: float = _TIGHT, units: slice | Tensor = slice(None)) -> Tensor:
        """Return where vectors (K, r) vanish: up to rounding, or to a share of their largest entry; (K, n)."""
        values = (vectors @ self.rows[:, units]).abs()
        return values < torch.maximum(self.rounded(vectors), share * values.amax(1))[:, None]

    def polished(self, vector: Tensor) -> Tensor:
        """Compute the unit vector (r,) that is smallest over all units at which a vector (r,) nearly vanishes.

        An entry that is small by chance would spoil it. So several bounds are tried; the most zeros decide.
        """
        best, maximum = vector, -1
        for share in _NEARLY:
            columns = self.rows[:, self.zeros(vector[None], share)[0]]
            if columns.shape[1] >= len(vector):
                exact = torch.linalg.svd(columns)[0][:, -1]
                if (zeros := int(self.zeros(exact[None]).sum())) > maximum:
                    best, maximum = exact, zeros
        return best


@final
class SparseVectors:
    """The independent vectors with the most zeros, in falling order of their number; at most r.

    To take them greedily gives the largest sum of zeros among all independent choices, as in any matroid.

    Args:
        basis: basis of the space.

    Attributes:
        vectors: (K, r) unit vectors.
        least: least number of zeros of a vector from outside.
    """

    def __init__(self, basis: RoundedBasis) -> None:
        self._basis = basis
        rank, units = basis.rows.shape
        self.least = max(rank - 1 + _MORE, int(_LEAST_SHARE * units)) if rank > 1 else 0
        self.vectors = self._span = basis.rows.new_zeros(0, rank)
        self._zeros = torch.zeros(0, dtype=torch.int64)

    @property
    def missing(self) -> int:
        """Number of vectors that are still missing."""
        return self.vectors.shape[1] - len(self.vectors)

    @property
    def completed(self) -> Tensor:
        """The vectors, and after them orthonormal ones of the complement, (r, r)."""
        rest = torch.linalg.svd(self._span)[2][len(self._span) :] if self.missing else self.vectors[:0]
        return torch.cat([self.vectors, rest])

    def take(self, vectors: Tensor, zeros: Tensor) -> bool:
        """Take in the best of vectors (K, r), sorted by falling numbers of zeros (K,); return whether one was kept."""
        changed = False
        alike = ((vectors @ self.vectors.T) ** 2 > 1 - _ALIKE).any(1)  # they may seem to have a few zeros more
        for vector in vectors[self._independent(vectors, zeros) & ~alike][:_TAKEN]:
            exact = self._basis.polished(vector)[None]
            zero = self._basis.zeros(exact).sum(1)
            if int(zero) >= self.least and bool(self._independent(exact, zero)):
                self._insert(exact, zero)
                changed = True
        return changed

    def pin(self, vectors: Tensor) -> None:
        """Put vectors (K, r) first for good, after those pinned earlier."""
        for vector in vectors:
            self._insert(vector[None], torch.tensor([self._basis.rows.shape[1] + 1]))

    def _independent(self, vectors: Tensor, zeros: Tensor) -> Tensor:
        """Return which of vectors (K, r) lie outside the span of those that have as many zeros or more, (K,)."""
        inside = pad(((vectors @ self._span.T) ** 2).cumsum(1), (1, 0))
        before = (self._zeros >= zeros[:, None]).sum(1, keepdim=True)
        return 1 - inside.gather(1, before)[:, 0] > _DEPENDENT + _BLURRED * self._basis.blurred(vectors)

    def _insert(self, vector: Tensor, zero: Tensor) -> None:
        """Put a vector at its place, and drop those after it that now depend on the ones before them."""
        vectors, zeros = torch.cat([self.vectors, vector]), torch.cat([self._zeros, zero])
        self.vectors = self._span = vectors[:0]
        self._zeros = zeros[:0]
        for k in zeros.argsort(descending=True, stable=True).tolist():
            one, many = vectors[k : k + 1], zeros[k : k + 1]
            if self.missing and bool(self._independent(one, many)):
                rest = one - one @ self._span.T @ self._span
                self._span = torch.cat([self._span, rest / rest.norm()])
                self.vectors, self._zeros = torch.cat([self.vectors, one]), torch.cat([self._zeros, many])


def draw(basis: RoundedBasis, minimum: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `CHUNK` sets of r units; return their vectors with at least so many zeros, and the numbers of these.

    Args:
        basis: basis of the space.
        minimum: least number of zeros.
        rng: generator of the sets, on the CPU.

    Returns:
        Unit vectors (K, r) and numbers of zeros (K,), falling.
    """
    rank, units = basis.rows.shape
    if rank == 1:
        return basis.rows.new_ones(1, 1), torch.zeros(1, dtype=torch.int64)
    drawn = torch.rand((CHUNK, units), generator=rng).topk(rank, dim=1, sorted=False).indices
    vectors = torch.linalg.inv_ex(basis.rows[:, drawn].transpose(0, 1))[0].reshape(-1, rank)
    vectors = vectors / vectors.norm(dim=1, keepdim=True)  # not a number if the units are dependent: without zeros
    probed, share = torch.randperm(units, generator=rng)[:_PROBED], min(1.0, _PROBED / units)
    expected = share * minimum
    likely = basis.zeros(vectors, _NEARLY[0], probed).sum(1) >= expected - 2 * ((1 - share) * expected) ** 0.5
    vectors = vectors[likely]
    zeros = basis.zeros(vectors, _NEARLY[0]).sum(1)
    order = zeros.argsort(descending=True, stable=True)[: int((zeros >= minimum).sum())]
    return vectors[order], zeros[order]


@dataclass(frozen=True)
class RectifiedExamples:
    """Separated examples at a fully connected layer before a rectifier.

    Attributes:
        outputs: (K, n) float64, the loss's gradient at each example's outputs; known up to its length where K is less
            than ``present``.
        inputs: (K, d) float64, each example's inputs.
        present: number of examples whose gradient is above rounding.
        sets: random sets of units that were drawn.
    """

    outputs: Tensor
    inputs: Tensor
    present: int
    sets: int


def separate_rectified(
    gradient: tuple[Tensor, Tensor],
    layer: tuple[Tensor, Tensor],
    count: int,
    rng: torch.Generator,
    responses: Responses | None = None,
    sets: int = SETS,
) -> RectifiedExamples | None:
    """Separate the examples whose gradient is not 0; None where none can be separated and proven.

    Equal examples count as one. Without ``responses`` the result is all examples or None.

    Args:
        gradient: of the weight (n, d) and of the bias (n,).
        layer: weight (n, d) and bias (n,).
        count: largest number of examples, >= 1.
        rng: generator of the sets, on the CPU.
        responses: the network's; None: the layer alone is the proof.
        sets: largest number of random sets, >= 1.
    """
    live = (gradient[0].abs().amax(1) > 0).cpu()
    (of_weight, of_bias), (weight, bias) = gradient, layer
    live_parts = (part.detach().double().cpu()[live] for part in (of_weight, of_bias, weight, bias))
    units = _LiveUnits.of(*live_parts, count=count)
    if units is None:
        return None
    sparse, inputs, drawn = SparseVectors(units.basis), units.spanned[:0], 0
    while drawn < sets and (responses is not None or len(sparse.vectors) or drawn < _PATIENCE):
        drawn += CHUNK
        if not sparse.take(*draw(units.basis, sparse.least, rng)):
            continue
        if responses is not None and sparse.missing <= 1:
            inputs = _proven(units, sparse, inputs, lambda x: responses(x)[..., live])
        elif responses is None and not sparse.missing and units.agree(sparse.vectors):
            inputs = units.examples(sparse.vectors)[0]
        if len(inputs) == len(units.total):
            break
    if not len(inputs):
        return None
    outputs = inputs.new_zeros(len(inputs), len(live))
    outputs[:, live] = units.examples(sparse.completed)[1][: len(inputs)]
    return RectifiedExamples(outputs, inputs, len(units.total), drawn)


def _proven(units: _LiveUnits, sparse: SparseVectors, inputs: Tensor, responses: Responses) -> Tensor:
    """Pin vectors that the network proves, until it proves no more; return the inputs of all pinned ones, (K, d).

    A pinned vector is exact. So the inputs of the other ones no longer depend on their parts along it.

    Args:
        units: the layer.
        sparse: the sparse vectors.
        inputs: (k, d) of the vectors that are pinned.
        responses: the network's, at the live units.
    """
    while len(inputs) < len(units.total):
        trial = units.examples(sparse.completed)[0][len(inputs) :]
        exact, outside = units.nearest(responses(trial))
        proven = outside < _OUTSIDE + units.basis.blurred(exact)
        if not bool(proven.any()):
            break
        sparse.pin(torch.stack([_measured(units, vector) for vector in exact[proven]]))
        inputs = torch.cat([inputs, trial[proven]])
    return inputs if sparse.missing or len(inputs) < len(units.total) else units.examples(sparse.vectors)[0]


def _measured(units: _LiveUnits, vector: Tensor) -> Tensor:
    """Return the gradient's own vector (r,) near the network's, as rounding differs; else the network's."""
    measured = units.basis.polished(vector)
    return measured if float(measured @ vector) ** 2 > 1 - _REPEATED else vector


@dataclass(frozen=True)
class _LiveUnits:
    """Gradient and weights at the units that are not silent.

    Attributes:
        basis: basis of the gradients at the outputs.
        spanned: (r, d) the weight's gradient in the basis.
        total: (r,) the bias's gradient in the basis.
        weight: (n, d).
        bias: (n,).
    """

    basis: RoundedBasis
    spanned: Tensor
    total: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, gradient: Tensor, total: Tensor, weight: Tensor, bias: Tensor, count: int) -> _LiveUnits | None:
        """Describe the layer; None where nothing, noise or more than ``count`` examples are in the gradient.

        The singular value after the last example's is rounding. The largest one of (n, d) independent errors is their
        standard deviation times sqrt(n) + sqrt(d).
        """
        if min(gradient.shape) <= count:
            return None
        left, sizes, _ = torch.linalg.svd(gradient, full_matrices=False)
        minimum = torch.maximum(sizes[count], _RELATIVE * sizes[0])
        rank = int((sizes[:count] > _ABOVE_ROUNDING * minimum).sum())
        if rank == 0:
            return None
        rounding = torch.maximum(sizes[rank], minimum) / sum(side**0.5 for side in gradient.shape)
        rows = left[:, :rank].T.contiguous()
        inside = rows @ total
        if float((total - inside @ rows).norm()) > _ABOVE_ROUNDING * rounding * len(total) ** 0.5 + 1e-5 * total.norm():
            return None
        return cls(RoundedBasis(rows, rounding / sizes[:rank]), rows @ gradient, inside, weight, bias)

    def examples(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Compute inputs (r, d) and gradients at the outputs (r, n) that belong to vectors (r, r)."""
        scaled = vectors * torch.linalg.solve_ex(vectors.T, self.total)[0][:, None]
        return torch.linalg.solve_ex(scaled.T, self.spanned)[0], scaled @ self.basis.rows

    def agree(self, vectors: Tensor) -> bool:
        """Return whether inputs make outputs positive where the gradient is not 0, and nowhere else."""
        inputs, outputs = self.examples(vectors)
        linear = inputs @ self.weight.T + self.bias
        unsure = _UNSURE * linear.abs().mean(1, keepdim=True)
        zeros, clear = self.basis.zeros(vectors), outputs.abs() > _CLEAR * outputs.abs().amax(1, keepdim=True)
        return not bool(((zeros & ~(linear < unsure)) | (~zeros & clear & ~(linear > -unsure))).any())

    def nearest(self, responses: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each example the response nearest to the span, as a unit vector (K, r), and its squared distance.

        Args:
            responses: (K, labels, n).
        """
        directions = responses.double() / responses.double().norm(dim=-1, keepdim=True)
        vectors = directions @ self.basis.rows.T
        outside = (directions - vectors @ self.basis.rows).square().sum(-1).nan_to_num(nan=1.0)
        distance, label = outside.min(1)
        exact = vectors[torch.arange(len(vectors)), label]
        return exact / exact.norm(dim=1, keepdim=True), distance


MOST = 12
"""Largest batch for reweighted least squares; in larger ones, with 128 units, few examples were found."""

_PROVEN = 0.9
"""Least agreement of an accepted separation; chance gives 0.5."""

_SETS = 50_000  # largest number of random sets of units; fewer where none gives a sparse direction
_STARTS, _STEPS = 1000, 100
_WIDTH, _NARROWER, _NARROWEST = 0.3, 0.9, 5e-4  # entries below it count as 0; over the root mean square entry
_SAME = 0.995  # least cosine of two directions that count as one
_INDEPENDENT = 0.05  # least singular value of the first choice of directions
_CANDIDATES, _SWAPS = 200, 30
_ABSENT = 1e-6  # a direction below this share of the largest singular value is rounding


@dataclass(frozen=True)
class Separation:
    """Separated examples of a batch at a fully connected layer.

    Attributes:
        outputs: (B, n) the loss's gradient at each example's outputs.
        inputs: (B, d) each example's inputs.
        agreement: in [0, 1], mean over examples: the gradient's mean size at positive outputs over the sum of its mean
            sizes at positive and at other outputs.
    """

    outputs: Tensor
    inputs: Tensor
    agreement: float


def directions(weight_gradient: Tensor, count: int) -> Tensor:
    """Compute an orthonormal basis (r, n) of the gradients at the outputs; r is ``count`` or less.

    Args:
        weight_gradient: (n, d).
        count: number of examples.
    """
    left, sizes, _ = torch.linalg.svd(weight_gradient.double(), full_matrices=False)
    present = int((sizes > _ABSENT * sizes[0]).sum())
    return left[:, : min(count, present)].T


def separate(
    weight_gradient: Tensor, bias_gradient: Tensor, weight: Tensor, bias: Tensor, count: int, rng: torch.Generator
) -> Separation | None:
    """Separate the examples; None where that is impossible or the agreement is too low.

    Args:
        weight_gradient: (n, d).
        bias_gradient: (n,).
        weight: (n, d) of the layer.
        bias: (n,) of the layer.
        count: number of examples.
        rng: generator of the start directions.
    """
    basis = directions(weight_gradient, count)
    if len(basis) < count:
        return None
    if count <= MOST and (separation := _reweighted(basis, weight_gradient, bias_gradient, weight, bias, rng)):
        return separation
    exact = separate_rectified((weight_gradient, bias_gradient), (weight, bias), count, rng, sets=_SETS)
    if exact is None or len(exact.inputs) < count:
        return None
    outputs, inputs = (part.float().to(weight.device) for part in (exact.outputs, exact.inputs))
    return Separation(outputs, inputs, 1.0)


def _reweighted(
    basis: Tensor, of_weight: Tensor, of_bias: Tensor, weight: Tensor, bias: Tensor, rng: torch.Generator
) -> Separation | None:
    """Separate by reweighted least squares; None: the agreement is too low."""
    spanned, total = basis @ of_weight.double(), basis @ of_bias.double()
    layer = _SeparatedLayer(basis, spanned @ weight.double().T, bias.double(), total)
    chosen = _chosen(_sparse(basis, rng), layer)
    if chosen is None:
        return None
    mixing, agreement = layer.scaled(chosen[None])[0], float(layer.agreement(chosen[None]))
    if not agreement >= _PROVEN:
        return None
    return Separation((mixing @ basis).float(), torch.linalg.solve(mixing.T, spanned).float(), agreement)


@dataclass(frozen=True)
class _SeparatedLayer:
    """Criterion for a choice of directions, (K, B, B) with one in each row.

    Attributes:
        basis: (B, n) basis of the gradients at the outputs.
        spanned: (B, n) the layer's outputs, without its bias, for inputs Q^T G.
        bias: (n,) of the layer.
        total: (B,) the bias's gradient in the basis.
    """

    basis: Tensor
    spanned: Tensor
    bias: Tensor
    total: Tensor

    def scaled(self, chosen: Tensor) -> Tensor:
        """Scale the directions so that they add up to the bias's gradient: M."""
        total = self.total.expand(len(chosen), -1)[..., None]
        return chosen * torch.linalg.solve_ex(chosen.transpose(1, 2), total)[0]

    def agreement(self, chosen: Tensor) -> Tensor:
        """Compute the agreement (K,) of `Separation`; 0 without a solution, or for outputs of one sign only."""
        mixing = self.scaled(chosen)
        spanned = self.spanned.expand(len(chosen), -1, -1)
        on = torch.linalg.solve_ex(mixing.transpose(1, 2), spanned)[0] + self.bias > 0
        size = (mixing @ self.basis).abs()
        there, elsewhere = (torch.where(where, size, 0.0).sum(-1) / where.sum(-1) for where in (on, ~on))
        return (there / (there + elsewhere)).nan_to_num(nan=0.0).mean(-1)


def _sparse(basis: Tensor, rng: torch.Generator) -> Tensor:
    """Search for unit vectors q (K, B) with a sparse Q q, the sparsest first, no two alike.

    It runs iteratively reweighted least squares on the sphere, from random starts. A larger entry has a smaller weight,
    and each step is one of inverse iteration.
    """
    count, n = basis.shape
    vectors = torch.randn(_STARTS, count, generator=rng, dtype=torch.float64).to(basis.device)
    narrowest, width = _NARROWEST * n**-0.5, _WIDTH * n**-0.5
    for _ in range(_STEPS):
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
        nearness = 1 / ((vectors @ basis) ** 2 + width**2)
        vectors = torch.linalg.solve(torch.einsum("kn,in,jn->kij", nearness, basis, basis), vectors)
        width = max(narrowest, _NARROWER * width)
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    order = torch.log((vectors @ basis) ** 2 + (0.01**2) / n).sum(1).argsort()
    vectors = vectors[order]
    alike = (vectors @ vectors.T).abs() > _SAME
    kept: list[int] = []
    for k in range(len(vectors)):
        if not bool(alike[k, kept].any()):
            kept.append(k)
    return vectors[kept[:_CANDIDATES]]


def _chosen(candidates: Tensor, layer: _SeparatedLayer) -> Tensor | None:
    """Choose B candidates (B, B) whose agreement with the layer no swap of one candidate improves."""
    chosen = _independent(candidates)
    if chosen is None:
        return None
    best = float(layer.agreement(candidates[chosen][None]))
    for _ in range(_SWAPS):
        others = [k for k in range(len(candidates)) if k not in chosen]
        swaps = [[*chosen[:b], k, *chosen[b + 1 :]] for b in range(len(chosen)) for k in others]
        if not swaps:
            break
        agreement = layer.agreement(candidates[torch.tensor(swaps, device=candidates.device)])
        at = int(agreement.argmax())
        if not float(agreement[at]) > best:
            break
        best, chosen = float(agreement[at]), swaps[at]
    return candidates[chosen]


def _independent(candidates: Tensor) -> list[int] | None:
    """Return the first linearly independent candidates, one for each entry; None: there are too few."""
    chosen: list[int] = []
    for k in range(len(candidates)):
        if float(torch.linalg.svdvals(candidates[[*chosen, k]])[-1]) > _INDEPENDENT:
            chosen.append(k)
        if len(chosen) == candidates.shape[1]:
            return chosen
    return None
