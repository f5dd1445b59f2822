"""Low precision: each sent tensor is rounded, by itself, to numbers of few bits.

Paper       a compressor in the place of a defence, as float16 and int8 in Zhu et al., "Deep Leakage from Gradients",
            NeurIPS 2019. Stochastic rounding: QSGD (Alistarh et al., NeurIPS 2017). One bit: signs with the scale of
            Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
Acts on     the change of the shared tensors (in a probe: their gradient), each tensor g by itself.
Sends       whole multiples of max|g| / (2^(bits-1) - 1), so that 0 and both ends are levels. With one bit: nearest
            sign(g) mean|g|; stochastic +max|g| with probability (1 + g / max|g|) / 2, else -max|g|.
Departures  1. QSGD's levels divide the L2 norm, these the largest magnitude.
            2. No error is carried over to later rounds; Karimireddy et al. add each round's error to the next one.
            3. sign(0) = 0 in nearest: an entry of exactly 0 stays 0 with one bit too, strictly a third symbol.
            4. The rounded numbers are sent as floats: the messages are no smaller. A round's change is added to the
               received weights, where floating point blurs its levels.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, final

import torch
from torch import Tensor

from flfw.bounds import BoundedSettings, ValueRange
from flfw.nets import Tensors
from flfw.rng import uniform
from flfw.task.defence import Defence


@dataclass(frozen=True)
class LowPrecisionSettings(BoundedSettings):
    """Number of bits, and way of rounding."""

    # In 1..16. With 4 bits the largest error is 1/14 of the tensor's largest entry, enough to disturb an attack; 8 bits
    # (1/254) change little, and 1 or 2 keep hardly more than signs.
    bits: Annotated[int, ValueRange(ge=1, le=16)] = 4
    rounding: Literal["nearest", "stochastic"] = "nearest"  # stochastic: unbiased, up or down by chance


@final
class LowPrecision(Defence):
    """Defence that rounds each tensor to its own levels."""

    Settings = LowPrecisionSettings

    @classmethod
    def weakest_settings(cls, settings: LowPrecisionSettings) -> LowPrecisionSettings:
        """Return settings with at least 8 bits: an error of 1/254 of the largest entry."""
        return replace(settings, bits=max(settings.bits, 8))

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Round the floating tensors; others are sent unchanged."""
        return {
            name: self._rounded(value, rng) if value.is_floating_point() else value for name, value in update.items()
        }

    def _rounded(self, value: Tensor, rng: torch.Generator) -> Tensor:
        if self.settings.rounding == "nearest":
            return nearest(value, self.settings.bits)
        return stochastic(value, self.settings.bits, rng)


def nearest(value: Tensor, bits: int) -> Tensor:
    """Round each entry to the nearest level, halves to the even multiple. One bit: its sign times the mean magnitude.

    Args:
        value: floating, of any shape; all zero, it stays so.
        bits: in 1..16.

    >>> nearest(torch.tensor([6.0, 0.9, 1.1, -6.0]), 3)
    tensor([ 6.,  0.,  2., -6.])
    """
    if bits == 1:
        return value.sign() * value.abs().mean()
    share, largest = _shares(value)
    # Without + 0.0 small negative entries would become -0.0, and its sign bit would tell more than the level.
    return ((share * _steps(bits)).round() + 0.0) / _steps(bits) * largest


def stochastic(value: Tensor, bits: int, rng: torch.Generator) -> Tensor:
    """Round each entry to one of the two levels around it, at random, so that its expectation is the entry itself.

    Args:
        value: floating, of any shape; all zero, it stays so.
        bits: in 1..16; with one bit the two levels are plus and minus the largest magnitude.
        rng: generator of the random choice, one number an entry.
    """
    share, largest = _shares(value)
    chance = uniform(value.shape, rng, value.dtype)
    if bits == 1:
        return torch.where(chance < (1 + share) / 2, largest, -largest)
    multiple = share * _steps(bits)
    below = multiple.floor()
    return (below + (chance < multiple - below)) / _steps(bits) * largest


def _steps(bits: int) -> int:
    """Count the steps between 0 and the largest magnitude."""
    return 2 ** (bits - 1) - 1


def _shares(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return each entry as a share of the largest magnitude, with ends of exactly -1 and 1, and that magnitude."""
    largest = value.abs().max() if value.numel() else value.sum()
    return value / largest if largest else value, largest
