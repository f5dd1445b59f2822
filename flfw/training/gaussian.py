"""Gaussian noise for named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

import torch
from torch import Tensor

from flfw.errors import require


def gaussian(
    shapes: Mapping[str, torch.Size | tuple[int, ...]], deviation: float, rng: torch.Generator
) -> dict[str, Tensor]:
    """Draw independent numbers from N(0, deviation^2), float32 on the CPU; the same for the same state of ``rng``.

    All are drawn at once, in the order of ``shapes``, as this is much faster than a draw for each small tensor.

    Args:
        shapes: shapes of the tensors, by name.
        deviation: standard deviation, >= 0 and finite; 0 gives zeros and does not advance ``rng``.
        rng: generator of the CPU; it advances.

    Returns:
        A tensor for each name. They are views of one storage and do not overlap.

    Raises:
        BadInput: the deviation is negative, infinite or NaN.
    """
    require(0 <= deviation < inf, "0 <= deviation < inf", deviation=deviation)
    sizes = [prod(shape) for shape in shapes.values()]
    total = sum(sizes)
    numbers = torch.empty(total).normal_(0.0, deviation, generator=rng) if deviation else torch.zeros(total)
    pieces = numbers.split_with_sizes(sizes)
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
