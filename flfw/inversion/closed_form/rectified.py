"""Exact separation of a batch's examples in the gradient of a fully connected layer before a rectifier.

The layer's gradient is G = D^T A with a row for each of r examples: D (r, n) the loss's gradients at the layer's
outputs, A (r, d) its inputs. With r left singular vectors Q (n, r) of G, D = M Q^T and A = M^-T Q^T G. A rectifier that
does not leak makes D exactly 0 wherever an example's output is negative. So each row of M is a vector q with many zeros
in Q q. It is found by chance: r units of which r - 1 are zeros of one example determine it, and the inverse of the r
columns of Q^T at such units has it among its rows. Of all vectors that are drawn, the independent ones with the most
zeros are kept, scaled so that they add up to the bias's gradient.

Two proofs are possible. By the layer alone: the inputs must make each output positive where D is not 0, and at no other
unit. It cannot tell apart examples that switch on the same units: any mixture of the two passes. By the whole network
(`Responses`): the gradient that it computes at the layer's outputs for an input must lie in the span of Q. That refuses
mixtures, and replaces a vector by the exact one. It is also needed where the units of one example are all among those
of another one, whose vector is then no sparser than mixtures of both; and it spares the search for the last vector, as
the inputs that belong to r - 1 others and any further vector include the exact one of the last example.

Source: Dimitrov et al., "SPEAR: Exact Gradient Inversion of Batches in Federated Learning", NeurIPS 2024, arXiv
2403.03945, with proof by the layer. The choice among the vectors, the proof by the network and bounds that follow from
the gradient's rounding are additions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from flfw.inversion.closed_form.sparse_vectors import CHUNK, RoundedBasis, SparseVectors, draw

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
        least = torch.maximum(sizes[count], _RELATIVE * sizes[0])
        rank = int((sizes[:count] > _ABOVE_ROUNDING * least).sum())
        if rank == 0:
            return None
        rounding = torch.maximum(sizes[rank], least) / sum(side**0.5 for side in gradient.shape)
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
