"""Span of clients' embeddings from the summed gradient of a generated layer's head.

A head that maps an embedding v to parameters has the gradient d v^T for each client, with d the gradient of the
generated parameters. A sum over n clients has rank n at most; its rows span the embeddings. The embeddings themselves
are known only up to a mixing of n by n numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flfw.errors import require

_SMALLEST = 1e-5  # of the largest singular value, for gradients in float32


@final
@dataclass(frozen=True)
class EmbeddingSpan:
    """Space of the rows of a summed gradient.

    Attributes:
        basis: (rank, width) orthonormal rows.
        values: (min(P, width),) all singular values, descending.
    """

    basis: Tensor
    values: Tensor

    @property
    def rank(self) -> int:
        """Dimension of the space; the number of clients, if it is below both sizes of the gradient."""
        return len(self.basis)


def span_of(gradient: Tensor, smallest: float = _SMALLEST) -> EmbeddingSpan:
    """Compute the span of the rows of a summed gradient of a head's weight.

    Args:
        gradient: (P, width) of P generated parameters and embeddings of ``width`` numbers.
        smallest: singular values below so much of the largest count as 0, in (0, 1).

    Raises:
        InputError: no matrix, or a share out of range.
    """
    require(gradient.dim() == 2 and gradient.numel() > 0, "a matrix (P, width)", shape=tuple(gradient.shape))
    require(0 < smallest < 1, "0 < smallest < 1", smallest=smallest)
    # The rows' space is that of the small matrix R of a QR decomposition; P may be millions.
    tall = len(gradient) >= gradient.shape[1]
    small = torch.linalg.qr(gradient.double(), mode="r").R if tall else gradient.double()
    _, values, rows = torch.linalg.svd(small, full_matrices=False)
    kept = (values > smallest * values.max()) & (values > 0)
    return EmbeddingSpan(rows[kept], values)


def largest_angles(span: EmbeddingSpan, embeddings: Tensor) -> Tensor:
    """Compute the angle (n,) in radians, in [0, pi/2], between each embedding and the span; 0: it lies inside.

    Args:
        span: of a summed gradient.
        embeddings: (n, width), none of them 0.

    Raises:
        InputError: embeddings of another width, or one that is 0.
    """
    width = span.basis.shape[1]
    fitting = embeddings.dim() == 2 and embeddings.shape[1] == width
    require(fitting, f"embeddings (n, {width})", shape=tuple(embeddings.shape))
    lengths = torch.linalg.vector_norm(embeddings.double(), dim=1)
    require(bool((lengths > 0).all()), "embeddings other than 0", shortest=float(lengths.min()))
    units = embeddings.double() / lengths[:, None]
    inside = units @ span.basis.T
    outside = torch.linalg.vector_norm(units - inside @ span.basis, dim=1)
    return torch.atan2(outside, torch.linalg.vector_norm(inside, dim=1))
