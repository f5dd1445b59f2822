"""Gaussian noise for named tensors: from a seed, for experiments that repeat, or secret, for claims that hold.

A number of a computer has few digits. The sum of a value and of noise that is drawn as such a number has digits that
depend on the value, and an adversary who knows two candidate values can read them: Mironov, "On Significance of the
Least Significant Bits for Differential Privacy", CCS 2012. So for secret noise a sum is not computed and then sent.
What is returned is

    step * round((value + std Z) / step)                  Z a real number from N(0, 1), with all its digits

The real sum is a Gaussian mechanism, and rounding is post-processing, which costs no privacy (Dwork and Roth, "The
Algorithmic Foundations of Differential Privacy", 2014, proposition 2.1). So every accountant for Gaussian noise holds
as it is, and the grid enlarges no sensitivity.

Z is drawn by Box and Muller's transformation from two uniform numbers of 32 secret binary digits each, in float32. They
say which interval holds Z, with all rounding errors. If all of the interval rounds to the same place, further digits
are not needed. Else 32 more digits of both are drawn, for float64, and if these do not decide, 128 more, for as much
precision: Haney, Desfontaines, Hartman, Shrestha and Hay, "Precision-based Attacks and Interval Refining", TPDP 2022.
What is left undecided has a probability below 2^-100 for each entry.

The errors. In float32, in units of 2^-24 deviations at radius r: the angle's rounding, product and constant 5 r; cosine
and sine 1.5 r; logarithm, square root, products and sum 8 r; the first number's rounding 1 / r. The angle's and the
others stand at right angles: together below 10.5 r + 1 / r, and 24 r + 16 are allowed, where r is in [1/8, 4]. Beyond,
a pair is unclear. NumPy's functions are right to 4 units in the last place (its logarithm to 3.83), and may be wrong
by 6: `tests/nets/test_secure_gaussian.py` has all errors at less than a quarter of what is allowed.

Sums. Where each of n clients rounds a noisy value to the same grid, who sees nothing but their sum sees a rounded
Gaussian of deviation sqrt(n) s, s that of one client, up to probabilities that no number here can hold. In steps of the
grid, let X be N(m, n s^2), m the sum of the values, and let U_2 to U_n be uniform from -1/2 to 1/2, all independent.
Then round(X + U_2 + ... + U_n) is post-processing of a Gaussian mechanism, and the sum of the rounded values is at each
place as likely, up to

    1 / (s sqrt(2 pi n)) * sum over integers k_2 to k_n, not all 0, of exp(-2 pi^2 s^2 V),   V = sum k^2 - (sum k)^2 / n

by Poisson's summation formula: a rounded number's characteristic function is the sum of all shifts by 2 pi of that of
its density. In the product of n of them those terms make the post-processed Gaussian that are shifted alike, and the
bound is the integral of the others (for the discrete Gaussian see Kairouz, Liu and Steinke, "The Distributed Discrete
Gaussian Mechanism for Federated Learning with Secure Aggregation", ICML 2021). V is 1/2 or more: for s of `PER_STEP`
steps or more all of it is below n exp(-157). The grid must be the same for all clients, whatever their values, which
float32's is not: its digits end earlier in larger numbers, so that the last digit of a sum tells how small the smallest
of the numbers in it was. `shared_step` gives a grid that float32 holds.

Not covered: the time that a draw takes, in which refinements can be seen (in float64 of one pair in some 14, with more
digits of one in some ten million); and the rounding errors of the value itself, see `MARGIN`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import frexp, inf, pi, prod
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from flfw.errors import require
from flfw.rng import secret_bytes

MARGIN = 2.0**-10
"""Share by which the deviation is enlarged. The sums of clipped gradients are computed in float32, where a neighbour
changes them by up to the bound and the rounding errors: `tests/nets/test_rounding_errors.py` has them below 1e-5 of
the bound in batches of up to 4000."""

PER_STEP = 4
"""Least number of steps of a shared grid in a deviation."""

Bits: TypeAlias = Callable[[int], bytes | bytearray | memoryview]
_MORE = 128  # digits of a uniform number in addition to 64
_STEPS = 12  # the step is the deviation's power of two below, over 2^12
_LARGEST = 2.0**48  # steps; a value beyond is a billion deviations, which no noise of this size hides
_FARTHEST = 17.0  # deviations: no uniform number of 64 + 128 digits gives more than 16.4
_PAIRS = 2**16  # at once, so that the processor's cache holds them
# Of float32 and float64: the type, that of as many signed digits, errors by radius and by value, bounds of the first
# number. Outside, it does not give the radius well enough: 2^-11 and 1 - 2^-7, 2^-28 and 1 - 2^-24.
_SINGLE = np.float32, np.int32, 24 * 2.0**-24, 2.0**-23, np.uint32(1 << 21), np.uint32(127 << 25)
_DOUBLE = np.float64, np.int64, 24 * 2.0**-44, 2.0**-52, np.uint64(1 << 36), np.uint64((1 << 64) - (1 << 40))


def grid_step(std: float) -> float:
    """Return the grid's step, a power of two between 2^-13 and 2^-12 times ``std``.

    >>> grid_step(6.0) * 4096
    4.0
    """
    require(0 < std < inf, "0 < std < inf", std=std)
    require(1e-250 < std < 1e250, "a step in the range of float64", std=std)
    return 2.0 ** (frexp(std)[1] - 1 - _STEPS)


def shared_step(largest: float, std: float, dtype: torch.dtype) -> float:
    """Return the step of a grid on which a type holds every sum of a value and its noise exactly.

    Args:
        largest: bound on the magnitude of all values, >= 0. It must not depend on what the noise is to hide.
        std: standard deviation of the noise, > 0 and finite.
        dtype: floating type of what is sent.

    Raises:
        InputError: ``std`` is out of range, or the type's digits end above a quarter of it.

    >>> shared_step(1.0, 6.0, torch.float32) == grid_step(6.0), shared_step(2.0**20, 6.0, torch.float32)
    (True, 0.125)
    """
    require(0 <= largest < inf, "finite values to add noise to", largest=largest)
    digits = torch.finfo(dtype)
    end = 2.0 ** frexp(largest + _FARTHEST * std)[1]  # a power of two above all sums
    step = max(grid_step(std), end * digits.eps / 2)
    fits = f"values within {1 / (PER_STEP * digits.eps):.3g} deviations of the noise"
    require(digits.tiny <= step <= std / PER_STEP, fits, largest=largest, std=std)
    return step


def add_secure_gaussian(
    values: Mapping[str, Tensor], std: float, bits: Bits = secret_bytes, min_step: float = 0.0
) -> dict[str, Tensor]:
    """Add independent noise of N(0, std^2) to all entries, and round the sums to the grid.

    Args:
        values: floating tensors by name, all on one device; they are not changed.
        std: standard deviation of the noise, > 0 and finite.
        bits: source of n random bytes; another one than the system's is for tests.
        min_step: a power of two; where it is above `grid_step`, it is the grid's step.

    Returns:
        New tensors in the types and on the device of ``values``.

    Raises:
        InputError: ``std`` is out of range, or a value is not finite or so large that the noise hides nothing.
    """
    std = float(std)
    step = max(grid_step(std), min_step)
    parts = [value.detach().reshape(-1) for value in values.values()]
    sizes = [len(part) for part in parts]
    if not any(sizes):
        return {name: value.clone() for name, value in values.items()}
    odd = sum(sizes) % 2
    flat = torch.cat([*parts, parts[0].new_zeros(odd)])  # numbers are drawn in pairs
    narrow = flat.dtype != torch.float64 and 2.0**-64 <= step <= 2.0**64  # float32 holds all sums, and none overflows
    sums = flat.to("cpu", torch.float32 if narrow else torch.float64)
    largest = max(abs(float(end)) for end in torch.aminmax(sums)) / step
    require(largest <= _LARGEST, f"finite values within {_LARGEST * step / std:.3g} deviations", largest=largest)
    _round_noisy(sums.view(2, -1).numpy(), step, std / step, bits, largest)
    pieces = sums.to(flat.device).split_with_sizes([*sizes, odd])
    return {n: piece.view(v.shape).to(v.dtype) for (n, v), piece in zip(values.items(), pieces, strict=False)}


def _round_noisy(sums: np.ndarray, step: float, std: float, bits: Bits, largest: float) -> None:
    """Replace values (2, n) by ``step * round(values / step + std Z)``; ``std`` and ``largest`` are in steps."""
    unclear = []
    for start in range(0, sums.shape[1], _PAIRS):
        part = sums[:, start : start + _PAIRS]
        words = _words(bits, part.shape[1])
        places, found = _places(part, 1 / step, words, std, largest)
        unclear.append((found + start, words.take(found, axis=1), part.take(found, axis=1)))
        np.multiply(places, step, out=part, dtype=part.dtype)  # exact: a power of two
    columns, words, values = (np.concatenate(pieces, axis=-1) for pieces in zip(*unclear, strict=True))
    words, values = words.astype(np.uint64) << 32 | _words(bits, len(columns)), values.astype(np.float64) / step
    places, left = _places(values, 1.0, words, std, largest)
    if len(left):
        places[:, left] = _refined(values[:, left], words[:, left], std, bits)
    sums[0, columns], sums[1, columns] = places * step


def _words(bits: Bits, pairs: int) -> np.ndarray:
    return np.frombuffer(bits(8 * pairs), np.uint32).reshape(2, pairs)


def _places(
    values: np.ndarray, scale: float, words: np.ndarray, std: float, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``round(scale values + std Z)`` (2, n) in float32 or 64 by words (2, n), and which pairs are unclear."""
    digits = 8 * words.itemsize
    dtype, signed, error, rounding, low, high = _SINGLE if digits == 32 else _DOUBLE
    radius = words[0].astype(dtype)
    radius += 0.5
    radius *= 2.0**-digits
    np.log(radius, out=radius)
    radius *= -2 * std * std
    np.sqrt(radius, out=radius)
    sums = np.empty(words.shape, dtype)
    angle = words[1].view(signed).astype(dtype)
    angle *= 2 * pi * 2.0**-digits  # from -pi to pi, where float32 is finer than to 2 pi
    np.cos(angle, out=sums[0])
    np.sin(angle, out=sums[1])
    sums *= radius
    torch.from_numpy(sums).add_(torch.from_numpy(values), alpha=scale)  # in one pass
    places = np.rint(sums)
    places += 0.0  # no sign of a zero, which rounding errors decide
    sums -= places
    np.abs(sums, out=sums)
    radius *= error
    radius += np.maximum(sums[0], sums[1], out=angle)
    unclear = radius > 0.5 - error * std * 2 / 3 - largest * rounding
    unclear |= words[0] - low > high - low  # numbers below `low` wrap
    return places, unclear.nonzero()[0]


def _refined(values: np.ndarray, words: np.ndarray, std: float, bits: Bits) -> np.ndarray:
    """Return the places of pairs (2, n) with 128 more digits of their two uniform numbers."""
    import mpmath

    places, whole = np.empty_like(values), mpmath.mpf(2) ** (64 + _MORE)
    with mpmath.workprec(64 + _MORE + 80):
        for pair in range(values.shape[1]):
            further = (int(word) << _MORE | int.from_bytes(bits(_MORE // 8)) for word in words[:, pair])
            radial, angular = ((mpmath.mpf(number) + 0.5) / whole for number in further)
            radius = std * mpmath.sqrt(-2 * mpmath.log(radial))
            for row, wave in enumerate((mpmath.cos, mpmath.sin)):
                noise = radius * wave(2 * mpmath.pi * angular)
                places[row, pair] = float(mpmath.nint(float(values[row, pair]) + noise))
    return places


def gaussian(shapes: Mapping[str, torch.Size | tuple[int, ...]], std: float, rng: torch.Generator) -> dict[str, Tensor]:
    """Draw independent numbers from N(0, std^2), float32 on the CPU; the same for the same state of ``rng``.

    All are drawn at once, in the order of ``shapes``, as this is much faster than a draw for each small tensor.

    Args:
        shapes: shapes of the tensors, by name.
        std: standard deviation, >= 0 and finite; 0 gives zeros and does not advance ``rng``.
        rng: generator of the CPU; it advances.

    Returns:
        A tensor for each name. They are views of one storage and do not overlap.

    Raises:
        InputError: ``std`` is negative, infinite or NaN.
    """
    require(0 <= std < inf, "0 <= std < inf", std=std)
    sizes = [prod(shape) for shape in shapes.values()]
    total = sum(sizes)
    numbers = torch.empty(total).normal_(0.0, std, generator=rng) if std else torch.zeros(total)
    pieces = numbers.split_with_sizes(sizes)
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


class GaussianNoise(ABC):
    """Source of Gaussian noise for one purpose of one client, or of the server, in one round."""

    @abstractmethod
    def add(
        self, values: Mapping[str, Tensor], std: float, scales: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return floating tensors plus independent noise, on their devices.

        Args:
            values: by name; they may be changed in place.
            std: standard deviation of the noise, >= 0 and finite; 0: the values are returned as they are. With
                ``scales`` it is in their unit: a noise multiplier, where these are clipping bounds.
            scales: factor > 0 of ``std`` for each tensor; None: 1.
        """

    @abstractmethod
    def add_to_update(
        self, start: Mapping[str, Tensor], change: Mapping[str, Tensor], bound: float, std: float
    ) -> dict[str, Tensor]:
        """Return ``start`` plus a client's change plus independent noise, as they are sent to be summed.

        Args:
            start: what all clients of the round were sent, by name, floating and of one type.
            change: by the same names; it may be changed in place.
            bound: on the magnitude of each entry of the change.
            std: standard deviation of the noise, >= 0 and finite.
        """


@final
@dataclass(frozen=True)
class SeededNoise(GaussianNoise):
    """Noise that repeats with its generator, and that a lattice of float32 gives away: it protects nothing.

    Attributes:
        rng: generator of the CPU; it advances.
    """

    rng: torch.Generator

    def add(
        self, values: Mapping[str, Tensor], std: float, scales: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors plus numbers of `gaussian`; see the base."""
        noise = gaussian({name: value.shape for name, value in values.items()}, std, self.rng)
        return {n: v.add_(noise[n].to(v.device), alpha=scales[n] if scales else 1) for n, v in values.items()}

    def add_to_update(
        self, start: Mapping[str, Tensor], change: Mapping[str, Tensor], bound: float, std: float
    ) -> dict[str, Tensor]:
        """Return the sums, each rounded to its own digits; see the base."""
        noisy = self.add(change, std)
        return {name: value + noisy[name] for name, value in start.items()}


@final
class SecureNoise(GaussianNoise):
    """Noise that nobody can repeat and whose digits tell nothing, larger by `MARGIN` than asked for."""

    def add(
        self, values: Mapping[str, Tensor], std: float, scales: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors plus noise, on a grid by ``std``; see `add_secure_gaussian` and the base."""
        require(0 <= std < inf, "0 <= std < inf", std=std)
        if not std:
            return dict(values)
        alike: dict[float, dict[str, Tensor]] = {}
        for name, value in values.items():
            alike.setdefault(scales[name] if scales else 1.0, {})[name] = value
        noisy: dict[str, Tensor] = {}
        for scale, members in alike.items():
            noisy |= add_secure_gaussian(members, (1 + MARGIN) * std * scale)
        return {name: noisy[name] for name in values}

    def add_to_update(
        self, start: Mapping[str, Tensor], change: Mapping[str, Tensor], bound: float, std: float
    ) -> dict[str, Tensor]:
        """Return the sums on one grid for all clients, which depends on no client's change; see the base.

        Raises:
            InputError: the numbers of ``start`` are so large that their digits end above the noise.
        """
        require(0 <= std < inf, "0 <= std < inf", std=std)
        if not (std and start):
            return {name: value + change[name] for name, value in start.items()}
        dtype, larger = next(iter(start.values())).dtype, (1 + MARGIN) * std
        largest = max((float(value.abs().max()) for value in start.values() if value.numel()), default=0.0)
        step = shared_step(largest + (1 + MARGIN) * bound, larger, dtype)
        ends = {name: value.double() + change[name].double() for name, value in start.items()}
        return {n: v.to(dtype) for n, v in add_secure_gaussian(ends, larger, min_step=step).items()}
