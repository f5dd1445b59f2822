"""Against low_precision: round a guess's gradient if the rounding is coarse, else model the rounding as noise.

Paper       none has this adaptation. Straight-through rounding: Bengio et al., arXiv 1308.3432. Rounding errors as
            noise of step^2 / 12: Bennett, "Spectra of Quantized Signals", Bell System Technical Journal, 1948.
Knows       bits and rounding; each tensor's largest magnitude, which rounding does not change, and so the step.
Does        with 1 or 2 bits and nearest rounding most entries keep only their sign or become 0: the trial is rounded
            to its own grid, with the derivative of the trial itself. In all other cases the error is almost independent
            of the entry: the trial's residual is counted in deviations of its tensor's error, so `noise` is 1. An
            attack then minimises half the sum of their squares plus a prior, both in nats.
            Behind noise of a known size, rounding errors add to its variance, as they hardly depend on it.
Departures  1. with coarse rounding an entry is known to lie in a cell around the sent value. An objective that is flat
               within the cells leads to their edges: worse than no adaptation at 4 bits, and than rounding at 2.
            2. stochastic rounding has no single deviation. The estimate is step * mean|sent|, which holds for entries
               much smaller than a step, but at most step^2 / 6, the mean over a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from flfw.inversion.client_models.operator import Operator, ResidualMechanism, Trait
from flfw.nets.net import Tensors

_COARSE = 2  # up to this number of bits the error of nearest rounding is no noise
_TINY = 1e-30  # a tensor of zeros is rounded to zeros


@final
class LowPrecisionAdaptation(Operator):
    """Client's rounding, or the size of its errors.

    Args:
        settings: the defence's hyper-parameters by name.
        before: deviation of the noise in each entry before the rounding; 0: there is none.
    """

    def __init__(self, settings: Mapping[str, Any], before: float = 0.0) -> None:
        super().__init__(settings)
        self._before = before

    @property
    def holds_noise(self) -> bool:
        """True behind noise: deviations are then those of noise and rounding errors together."""
        return self._before > 0

    def after_noise(self, deviation: float) -> LowPrecisionAdaptation | None:
        """Return the rounding of entries with noise; None where it is coarse: signs of noise are no noise."""
        return None if self._coarse else LowPrecisionAdaptation(self.settings, deviation)

    @property
    def _coarse(self) -> bool:
        return self.settings["rounding"] == "nearest" and self.settings["bits"] <= _COARSE

    @property
    def requires(self) -> frozenset[Trait]:
        """The largest magnitudes and the rounding errors; nothing where the trial is rounded."""
        return frozenset() if self._coarse else frozenset(("largest", "noise"))

    @property
    def preserves(self) -> frozenset[Trait]:
        """The scale, noise that it holds, and zeros unless one stochastic bit turns them into other levels."""
        drawn = self.settings["rounding"] == "stochastic" and self.settings["bits"] == 1
        left: frozenset[Trait] = frozenset(("scale",)) if drawn else frozenset(("scale", "zeros"))
        return left | {"noise"} if self.holds_noise else left

    @property
    def noise(self) -> float | None:
        """1, because `apply` counts in deviations of the rounding error; None where the trial is rounded."""
        return None if self._coarse else 1.0

    def read(self, sent: Tensors) -> Tensors:
        """Read ``precision.NAME``: one over the deviation of a tensor's rounding error; 0 for a tensor of zeros."""
        if self._coarse:
            return {}
        # The root mean square of a tensor's rounding errors and of the noise before them.
        stds = {name: (self._error(value).square() + self._before**2).sqrt() for name, value in sent.items()}
        return {f"precision.{name}": torch.where(d > 0, 1 / d, 0.0) for name, d in stds.items()}

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Round the trial; or return the observation plus the trial's residual, in deviations of the error."""
        if self._coarse:
            return {name: _straight_through(simulated[name], self.settings["bits"]) for name in sent}
        return {
            name: value + (simulated[name] - value) * constants[f"precision.{name}"] for name, value in sent.items()
        }

    def residual(self, sent: Tensors) -> ResidualMechanism | None:
        """Return the rest of an example: its entries, in deviations of the rounding error; coarse: not modelled."""
        if self._coarse:
            return None
        weights = {name: self.read({name: value})[f"precision.{name}"].expand_as(value) for name, value in sent.items()}
        return ResidualMechanism(weights, deviation=1.0)

    @property
    def passes(self) -> bool:
        """False where hardly more than signs is left."""
        return not self._coarse

    def _error(self, sent: Tensor) -> Tensor:
        largest, bits = sent.abs().amax(), self.settings["bits"]
        if bits == 1:
            return largest  # the deviation of stochastic rounding, for entries much smaller than the largest
        step = largest / (2 ** (bits - 1) - 1)
        if self.settings["rounding"] == "nearest":
            return step / 12**0.5
        return torch.minimum(step * sent.abs().mean(), step**2 / 6).sqrt()


def _straight_through(value: Tensor, bits: int) -> Tensor:
    """Round to the nearest level of the tensor's own grid, with the derivative of ``value``."""
    if bits == 1:
        rounded = value.sign() * value.abs().mean()
    else:
        step = (value.abs().amax() / (2 ** (bits - 1) - 1)).clamp(min=_TINY)
        rounded = (value / step).round() * step
    return value + (rounded - value).detach()
