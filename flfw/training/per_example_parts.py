"""Gradients of one parameter for each of B examples: their norms, and their weighted sum.

A norm must be that of what the sum adds, or one example changes the sum by more than the bound. So norms are computed
from the stored numbers, and never from sums that cancel. In float32 two things go wrong. Squares of numbers below 1e-19
or above 1e19 are lost, and so a product of norms such as 0 x 1e30 may hide a gradient of any size: where a norm is
large (`trusted`), all is done in float64 (`Part.careful`). And a sum of a million squares is some 0.1 % too small:
blocks are added up first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import inf
from typing import final

import torch
from torch import Tensor

_MOST = 1e9  # norms up to this have products whose squares float32 holds
_MOST_BOUNDS = 5e13  # the lost squares of 1e9 numbers, norm 1e-18, times so many bounds C are far below 0.001 C
_BLOCK = 4096  # numbers whose squares are added up in float32 before the blocks' norms are


class Part(ABC):
    """Gradients of one parameter, one for each of B examples.

    Attributes:
        norms: their L2 norms (B,).
        measured: norms (B,) of stored numbers, from which ``norms`` are the product.
    """

    norms: Tensor
    measured: tuple[Tensor, ...]

    @abstractmethod
    def weighted(self, weights: Tensor) -> Tensor:
        """Return the sum of the gradients with weights (B,), in the parameter's shape."""

    @abstractmethod
    def formed(self) -> Tensor:
        """Return all gradients (B, ...)."""

    @abstractmethod
    def careful(self) -> Part:
        """Return the same gradients in float64; one that is not finite is zero and has the norm ``inf``."""


@final
class Formed(Part):
    """Gradients in memory: (B, ...), each of size ``size``; ``order`` and ``shape`` give them the parameter's shape."""

    def __init__(
        self, values: Tensor, size: tuple[int, ...] = (), order: tuple[int, ...] = (), shape: tuple[int, ...] = ()
    ) -> None:
        self._values = values if values.dim() == 2 else values.flatten(1)
        self._size, self._order, self._shape = size or values.shape[1:], order, shape
        self.norms = row_norms(self._values)  # now, while the values are in the cache
        self.measured = (self.norms,)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, as one product."""
        total = torch.mv(self._values.t(), weights).view(self._size)
        return total.permute(self._order).reshape(self._shape) if self._order else total

    def formed(self) -> Tensor:
        """Return all gradients (B, ...)."""
        values = self._values.view(-1, *self._size)
        return values.permute(0, *(1 + i for i in self._order)).reshape(-1, *self._shape) if self._order else values

    def careful(self) -> Formed:
        """Return the same in float64."""
        values, lost = _finite(self._values)
        same = Formed(values, self._size, self._order, self._shape)
        same.norms = same.norms.masked_fill(lost, inf)
        return same


@final
class Outer(Part):
    """Gradients of a linear layer's weight: outer products of d (B, O), the bias's gradients, and a (B, I)."""

    def __init__(self, bias: Formed, a: Tensor) -> None:
        self._bias, self._a = bias, a
        sizes = row_norms(a)
        self.norms = bias.norms * sizes
        self.measured = (bias.norms, sizes)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, as one matrix product."""
        return torch.mm(self._bias.formed().t() * weights, self._a)

    def formed(self) -> Tensor:
        """Return all gradients (B, O, I)."""
        return self._bias.formed()[:, :, None] * self._a[:, None, :]

    def careful(self) -> Outer:
        """Return the same in float64; an example with infinite d or a is zero."""
        a, lost = _finite(self._a)
        same = Outer(self._bias.careful(), a)
        same.norms = same.norms.masked_fill(lost | same._bias.norms.isinf(), inf)
        return same


def added(one: Part, other: Part) -> Part:
    """Add the gradients of two uses of the same parameter."""
    return Formed((one.formed() + other.formed()).contiguous())


def trusted(parts: Iterable[Part], bound: float = inf) -> bool:
    """Return whether float32 has the norms: all are finite, and none is so large that lost squares matter to a bound.

    A norm of 0 may be that of numbers below 1e-19. This matters only if they are multiplied by large ones.

    Args:
        parts: gradients of the same examples.
        bound: the smallest bound that the norms are compared with, > 0.
    """
    measured = [norms for part in parts for norms in part.measured]
    return not measured or float(torch.stack(measured).max()) <= min(_MOST, _MOST_BOUNDS * bound)  # False for NaN


def row_norms(values: Tensor) -> Tensor:
    """Compute the L2 norms of rows (B, n); block by block where n is large."""
    blocks = values.shape[1] // _BLOCK
    if blocks < 16 or values.dtype != torch.float32:
        return torch.linalg.vector_norm(values, dim=1)
    whole = values[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK))
    norms = torch.linalg.vector_norm(whole, dim=2)
    rest = values[:, blocks * _BLOCK :]
    return torch.linalg.vector_norm(torch.cat([norms, rest], dim=1), dim=1)


def _finite(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (B, n) in float64, with zeros for rows that are not finite, and which ones these are (B,)."""
    lost = ~values.isfinite().all(1)
    return values.double().masked_fill(lost[:, None], 0.0), lost
