"""Spans of the vectors that enter a transformer's attention, read off the gradient of its queries, keys and values.

Petrov et al., "DAGER: Exact Gradient Inversion for Large Language Models", NeurIPS 2024. The projection W is applied to
a vector e for each token of the batch, so that dL/dW is the sum of g e^T over the tokens: its rows lie in the span of
these vectors. With fewer tokens than the vectors have entries, hardly any other vector does: a guess can be tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Span:
    """Subspace of vectors (d,).

    Attributes:
        basis: (rank, d) float64, orthonormal.
    """

    basis: Tensor

    def residuals(self, vectors: Tensor) -> Tensor:
        """Compute the share of each vector's length (...,) that lies outside the subspace, in [0, 1].

        Args:
            vectors: (..., d).
        """
        v = vectors.double()
        outside = v - (v @ self.basis.mT) @ self.basis
        return outside.norm(dim=-1) / v.norm(dim=-1).clamp_min(torch.finfo(v.dtype).tiny)


def row_span(gradient: Tensor, maximum: int, tolerance: float, scaled: bool = True) -> Span:
    """Compute the span of the rows of a gradient (n, d).

    Rounding to float32 is relative to each entry, and the rows of queries, keys and values differ in size by orders of
    magnitude. Each row is therefore scaled to length 1 first, so that rounding in the longest ones does not hide the
    others. Added noise has one size in all rows; there they must not be scaled.

    Args:
        gradient: gradient of the stacked projections of queries, keys and values. Queries alone are not enough: in a
            causal network the first token attends to itself alone, so that its query has no gradient.
        maximum: largest rank, >= 1: the number of tokens.
        tolerance: directions with less than this share of the largest singular value are taken for rounding.
        scaled: whether rows are scaled.
    """
    g = gradient.double()
    tiny = torch.finfo(g.dtype).tiny
    rows = g / g.norm(dim=1, keepdim=True).clamp_min(tiny) if scaled else g
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    return Span(directions[: min(maximum, int((sizes > tolerance * sizes[0].clamp_min(tiny)).sum()))])
