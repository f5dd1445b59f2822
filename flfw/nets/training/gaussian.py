"""Gaussian noise for named tensors: from a seed, for experiments that repeat, or secret, for claims that hold.

A number of a computer has few digits. The sum of a value and of noise that is drawn as such a number has digits that
depend on the value, and an adversary who knows two candidate values can read them: Mironov, "On Significance of the
Least Significant Bits for Differential Privacy", CCS 2012. So for secret noise a sum is not computed and then sent.
What is returned is

    step * round((value + std Z) / step)                  Z a real number from N(0, 1), with all its digits

The real sum is a Gaussian mechanism, and rounding is post-processing, which costs no privacy (Dwork and Roth, "The
Algorithmic Foundations of Differential Privacy", 2014, proposition 2.1). So every accountant for Gaussian noise holds
as it is, and the grid enlarges no sensitivity.

Z is drawn by Box and Muller's transformation from two uniform numbers of 53 secret binary digits each. They say which
interval holds Z. If all of the interval rounds to the same place, further digits are not needed. Else 128 more digits
of both are drawn, and the place is computed with as much precision: Haney, Desfontaines, Hartman, Shrestha and Hay,
"Precision-based Attacks and Interval Refining", TPDP 2022. What is left undecided has a probability below 2^-100 for
each entry.

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

Not covered: the time that a draw takes, in which a refinement can be seen (of one entry in some 350,000); and the
rounding errors of the value itself, see `MARGIN`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import frexp, inf, pi, prod
from typing import TypeAlias, final

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

Bits: TypeAlias = Callable[[int], bytes | bytearray]
_DIGITS, _MORE = 53, 128  # of a uniform number at first, and in addition where these do not decide
_STEPS = 12  # the step is the deviation's power of two below, over 2^12
_DOUBT = 2.0**-20  # of a step: above all errors of float64, which are below 2^-35 deviations for the numbers kept
_LEAST, _MOST = 2.0**-20, 1 - 2.0**-36  # outside, the first uniform number does not give the radius well enough
_LARGEST = 2.0**48  # steps; a value beyond is a billion deviations, which no noise of this size hides
_FARTHEST = 17.0  # deviations: no uniform number of 53 + 128 digits gives more than 15.9


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
        values: floating tensors by name, on any device; they are not changed.
        std: standard deviation of the noise, > 0 and finite.
        bits: source of n random bytes; another one than the system's is for tests.
        min_step: a power of two; where it is above `grid_step`, it is the grid's step.

    Returns:
        New tensors in the types and on the devices of ``values``.

    Raises:
        InputError: ``std`` is out of range, or a value is not finite or so large that the noise hides nothing.
    """
    step = max(grid_step(std), min_step)
    sizes = [prod(value.shape) for value in values.values()]
    scaled = torch.cat([v.detach().to("cpu", torch.float64).flatten() for v in values.values()]) if values else None
    if scaled is None or not len(scaled):
        return {name: value.clone() for name, value in values.items()}
    scaled.div_(step)  # exact: a power of two
    largest = float(scaled.abs().max())
    require(largest <= _LARGEST, f"finite values within {_LARGEST * step / std:.3g} deviations", largest=largest)
    sums = _rounded(scaled, std / step, bits, _DOUBT + largest * 2.0**-50).mul_(step)
    pieces = sums.split_with_sizes(sizes)
    return {
        name: piece.view(value.shape).to(value.device, value.dtype)
        for (name, value), piece in zip(values.items(), pieces, strict=True)
    }


def _rounded(values: Tensor, std: float, bits: Bits, doubt: float) -> Tensor:
    """Return ``round(values + std Z)`` for values (n,) in steps; ``doubt`` bounds the errors of the sum."""
    count, half = len(values), (len(values) + 1) // 2
    words = torch.frombuffer(bytearray(bits(16 * half)), dtype=torch.int64).bitwise_and_((1 << _DIGITS) - 1)
    uniform = words.double().add_(0.5).mul_(2.0**-_DIGITS)
    first, angle = uniform[:half], uniform[half:].mul(2 * pi)
    radius = first.log().mul_(-2).sqrt_().mul_(std)
    sums = torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].add_(values)
    places = sums.round()
    distance = (sums - places).abs_()
    unclear = distance > 0.5 - doubt
    if float(first.min()) < _LEAST or float(first.max()) > _MOST:
        outside = (first < _LEAST) | (first > _MOST)
        unclear |= torch.cat([outside, outside])[:count]
    if bool(unclear.any()):
        _refine(places, unclear.nonzero().flatten().tolist(), values, words, std, bits)
    return places


def _refine(indices: Tensor, which: list[int], values: Tensor, words: Tensor, std: float, bits: Bits) -> None:
    """Compute some places with 128 more digits of their two uniform numbers, which both entries of a pair share."""
    import mpmath

    half, more = len(words) // 2, dict[int, tuple[int, int]]()
    with mpmath.workprec(_DIGITS + _MORE + 80):
        for at in which:
            pair = at % half
            if pair not in more:
                more[pair] = (_integer(bits), _integer(bits))
            radial, angular = (
                (mpmath.mpf((int(words[index]) << _MORE) + extra) + 0.5) / mpmath.mpf(2) ** (_DIGITS + _MORE)
                for index, extra in zip((pair, half + pair), more[pair], strict=True)
            )
            wave = mpmath.cos if at < half else mpmath.sin
            noise = mpmath.sqrt(-2 * mpmath.log(radial)) * wave(2 * mpmath.pi * angular)
            indices[at] = float(mpmath.nint(mpmath.mpf(float(values[at])) + mpmath.mpf(std) * noise))


def _integer(bits: Bits) -> int:
    return int.from_bytes(bits(_MORE // 8))


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
            std: standard deviation of the noise, >= 0 and finite; 0: the values are returned as they are.
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
