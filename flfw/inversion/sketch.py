"""Random sketch of named tensors: a linear map to few numbers that keeps inner products on average.

Every coordinate gets a random sign and one of ``width`` sums, all sums of as many coordinates but for one (a
CountSketch with balanced buckets; Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams", 2002).
It costs one pass over the coordinates and needs no matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from flfw.errors import InputError, require
from flfw.nets.net import Tensors


@final
@dataclass(frozen=True)
class Sketch:
    """Random sketch of tensors of given names and sizes; `draw` makes one.

    Attributes:
        names: names of the tensors, in the order of their coordinates.
        order: (d,) the coordinates in a random order.
        signs: (d,) of +1 and -1.
        width: numbers in a sketch.
    """

    names: tuple[str, ...]
    order: Tensor
    signs: Tensor
    width: int

    @classmethod
    def draw(cls, tensors: Tensors, width: int, rng: torch.Generator) -> Sketch:
        """Draw a sketch of such tensors.

        Args:
            tensors: for their names, sizes, device and type.
            width: numbers in a sketch, >= 1. With as many as coordinates, or more, nothing is lost.
            rng: generator on the CPU.

        Raises:
            InputError: no tensors, or a width below 1.
        """
        require(width >= 1, "width >= 1", width=width)
        require(bool(tensors), "some tensors to sketch", tensors="none")
        first = next(iter(tensors.values()))
        count = sum(value.numel() for value in tensors.values())
        order = torch.randperm(count, generator=rng).to(first.device)
        signs = (2 * torch.randint(0, 2, (count,), generator=rng) - 1).to(first)
        return cls(tuple(tensors), order, signs, min(width, count))

    @property
    def depth(self) -> int:
        """Coordinates in each number of a sketch: independent noise of variance v on each gives it a variance of v
        times as many.
        """
        return -(-self.order.numel() // self.width)

    def of(self, tensors: Tensors) -> Tensor:
        """Compute the sketch (width,) of tensors; linear, and fit for vmap.

        Raises:
            InputError: the tensors have other names or sizes.
        """
        # Under vmap this takes a third of the time of an index in brackets.
        return self._summed(self._flat(tensors).index_select(0, self.order) * self.signs)

    def variances(self, each: Tensors) -> Tensor:
        """Compute the variances (width,) of a sketch of independent numbers with some variances (of their shapes)."""
        return self._summed(self._flat(each)[self.order])

    def _flat(self, tensors: Tensors) -> Tensor:
        if set(tensors) != set(self.names):
            raise InputError(f"Expected tensors {', '.join(self.names)}, got {', '.join(tensors)}.")
        flat = torch.cat([tensors[name].reshape(-1) for name in self.names])
        require(flat.numel() == self.order.numel(), f"{self.order.numel()} numbers", numbers=flat.numel())
        return flat

    def _summed(self, numbers: Tensor) -> Tensor:
        padded = pad(numbers, (0, self.depth * self.width - numbers.numel()))
        return padded.view(self.depth, self.width).sum(0)
