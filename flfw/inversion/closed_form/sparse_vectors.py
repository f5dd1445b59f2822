"""Search by chance for the vectors of a space that vanish at many units.

The space is spanned by r orthonormal rows Q (r, n) over n units, and a vector q (r,) stands for q Q. The inverse of the
r columns of Q at random units has r vectors as its rows; each vanishes at r - 1 of these units. A vector that vanishes
at many more units is among them whenever r - 1 of its zeros, and no further one, were drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

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
        best, most = vector, -1
        for share in _NEARLY:
            columns = self.rows[:, self.zeros(vector[None], share)[0]]
            if columns.shape[1] >= len(vector):
                exact = torch.linalg.svd(columns)[0][:, -1]
                if (zeros := int(self.zeros(exact[None]).sum())) > most:
                    best, most = exact, zeros
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


def draw(basis: RoundedBasis, least: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `CHUNK` sets of r units; return their vectors with at least so many zeros, and the numbers of these.

    Args:
        basis: basis of the space.
        least: least number of zeros.
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
    expected = share * least
    likely = basis.zeros(vectors, _NEARLY[0], probed).sum(1) >= expected - 2 * ((1 - share) * expected) ** 0.5
    vectors = vectors[likely]
    zeros = basis.zeros(vectors, _NEARLY[0]).sum(1)
    order = zeros.argsort(descending=True, stable=True)[: int((zeros >= least).sum())]
    return vectors[order], zeros[order]
