"""Gaussian noise for named tensors: from a seed, for experiments that repeat, or secret, for claims that hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import final

import torch
from torch import Tensor

from flfw.errors import require
from flfw.training.secure_gaussian import MARGIN, add_secure_gaussian, shared_step


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
        InputError: the deviation is negative, infinite or NaN.
    """
    require(0 <= deviation < inf, "0 <= deviation < inf", deviation=deviation)
    sizes = [prod(shape) for shape in shapes.values()]
    total = sum(sizes)
    numbers = torch.empty(total).normal_(0.0, deviation, generator=rng) if deviation else torch.zeros(total)
    pieces = numbers.split_with_sizes(sizes)
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


class GaussianNoise(ABC):
    """Source of Gaussian noise for one purpose of one client, or of the server, in one round."""

    @abstractmethod
    def added(
        self, values: Mapping[str, Tensor], deviation: float, scales: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return floating tensors plus independent noise, on their devices.

        Args:
            values: by name; they may be changed in place.
            deviation: standard deviation of the noise, >= 0 and finite; 0: the values are returned as they are.
            scales: factor > 0 of the deviation for each tensor; None: 1.
        """

    @abstractmethod
    def moved(
        self, start: Mapping[str, Tensor], change: Mapping[str, Tensor], bound: float, deviation: float
    ) -> dict[str, Tensor]:
        """Return ``start`` plus a client's change plus independent noise, as they are sent to be summed.

        Args:
            start: what all clients of the round were sent, by name, floating and of one type.
            change: by the same names; it may be changed in place.
            bound: on the magnitude of each entry of the change.
            deviation: standard deviation of the noise, >= 0 and finite.
        """


@final
@dataclass(frozen=True)
class SeededNoise(GaussianNoise):
    """Noise that repeats with its generator, and that a lattice of float32 gives away: it protects nothing.

    Attributes:
        rng: generator of the CPU; it advances.
    """

    rng: torch.Generator

    def added(
        self, values: Mapping[str, Tensor], deviation: float, scales: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors plus numbers of `gaussian`; see the base."""
        noise = gaussian({name: value.shape for name, value in values.items()}, deviation, self.rng)
        return {n: v.add_(noise[n].to(v.device), alpha=scales[n] if scales else 1) for n, v in values.items()}

    def moved(
        self, start: Mapping[str, Tensor], change: Mapping[str, Tensor], bound: float, deviation: float
    ) -> dict[str, Tensor]:
        """Return the sums, each rounded to its own digits; see the base."""
        noisy = self.added(change, deviation)
        return {name: value + noisy[name] for name, value in start.items()}


@final
class SecureNoise(GaussianNoise):
    """Noise that nobody can repeat and whose digits tell nothing, larger by `MARGIN` than asked for."""

    def added(
        self, values: Mapping[str, Tensor], deviation: float, scales: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors plus noise, on a grid of their deviation; see `add_secure_gaussian` and the base."""
        require(0 <= deviation < inf, "0 <= deviation < inf", deviation=deviation)
        if not deviation:
            return dict(values)
        alike: dict[float, dict[str, Tensor]] = {}
        for name, value in values.items():
            alike.setdefault(scales[name] if scales else 1.0, {})[name] = value
        noisy: dict[str, Tensor] = {}
        for scale, members in alike.items():
            noisy |= add_secure_gaussian(members, (1 + MARGIN) * deviation * scale)
        return {name: noisy[name] for name in values}

    def moved(
        self, start: Mapping[str, Tensor], change: Mapping[str, Tensor], bound: float, deviation: float
    ) -> dict[str, Tensor]:
        """Return the sums on one grid for all clients, which depends on no client's change; see the base.

        Raises:
            InputError: the numbers of ``start`` are so large that their digits end above the noise.
        """
        require(0 <= deviation < inf, "0 <= deviation < inf", deviation=deviation)
        if not (deviation and start):
            return {name: value + change[name] for name, value in start.items()}
        dtype, larger = next(iter(start.values())).dtype, (1 + MARGIN) * deviation
        largest = max((float(value.abs().max()) for value in start.values() if value.numel()), default=0.0)
        step = shared_step(largest + (1 + MARGIN) * bound, larger, dtype)
        ends = {name: value.double() + change[name].double() for name, value in start.items()}
        return {n: v.to(dtype) for n, v in add_secure_gaussian(ends, larger, least_step=step).items()}
