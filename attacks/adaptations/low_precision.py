"""Against low_precision: round a guess's gradient as the client does where that is coarse, else take it for noise.

Paper       no paper's own. Passing rounding straight through: Bengio et al., arXiv 1308.3432. Rounding errors as noise
            of step^2 / 12: Bennett, "Spectra of Quantized Signals", Bell System Technical Journal, 1948.
Knows       bits and rounding; of each tensor its largest magnitude, which rounding leaves as it is, and so the step.
Does        with 1 or 2 bits and nearest rounding, when most entries lose all but their sign or become 0, rounds the
            trial to its own grid; the derivative is that of the trial itself. In all other cases the error is as good
            as independent of the entry. Then what is left of the trial is measured in deviations of its tensor's error,
            so `noise` is 1: an attack minimises half the sum of their squares plus a prior, both in nats.
Departures  1. entries of coarse rounding are known to lie in a cell around what was sent. An objective that is flat
               within the cells leads to their edges: worse than no adaptation at 4 bits, and than rounding at 2.
            2. stochastic rounding has no one deviation. Taken is the mean's estimate step * mean|sent|, which holds for
               entries much smaller than a step, but at most step^2 / 6, the mean over a step.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from flfw.nets.net import Tensors
from flfw.victims.operator import Operator

_COARSE = 2  # bits up to which the error of nearest rounding is no noise
_TINY = 1e-30  # a tensor of zeros is rounded to zeros


@final
class LowPrecisionAdaptation(Operator):
    """The client's rounding, or the size of its errors."""

    @property
    def _coarse(self) -> bool:
        return self.settings["rounding"] == "nearest" and self.settings["bits"] <= _COARSE

    @property
    def noise(self) -> float | None:
        """1, for `apply` gives what is left in deviations of the rounding error; None where the trial is rounded."""
        return None if self._coarse else 1.0

    def read(self, sent: Tensors) -> Tensors:
        """``precision.NAME``: one over the deviation of a tensor's rounding error; 0 where only zeros were sent."""
        if self._coarse:
            return {}
        deviations = {name: self._deviation(value) for name, value in sent.items()}
        return {f"precision.{name}": torch.where(d > 0, 1 / d, 0.0) for name, d in deviations.items()}

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """The trial, rounded; or what was sent plus what is left of the trial, in deviations of the error."""
        if self._coarse:
            return {name: _straight_through(trial[name], self.settings["bits"]) for name in sent}
        return {name: value + (trial[name] - value) * constants[f"precision.{name}"] for name, value in sent.items()}

    def _deviation(self, sent: Tensor) -> Tensor:
        """Root mean square of a tensor's rounding errors."""
        largest, bits = sent.abs().amax(), self.settings["bits"]
        if bits == 1:
            return largest  # of stochastic rounding, for entries much smaller than that
        step = largest / (2 ** (bits - 1) - 1)
        if self.settings["rounding"] == "nearest":
            return step / 12**0.5
        return torch.minimum(step * sent.abs().mean(), step**2 / 6).sqrt()


def _straight_through(value: Tensor, bits: int) -> Tensor:
    """Rounded to the nearest level of its own grid, with the derivative of ``value``."""
    if bits == 1:
        rounded = value.sign() * value.abs().mean()
    else:
        step = (value.abs().amax() / (2 ** (bits - 1) - 1)).clamp(min=_TINY)
        rounded = (value / step).round() * step
    return value + (rounded - value).detach()
