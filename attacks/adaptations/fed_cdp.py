"""Against fed_cdp: clip a guess's gradients as the client does, and weight errors by the noise's known size.

Paper       none has this adaptation; the mechanism is that of Wei et al., ICDCS 2021. See `flfw.inversion.clipped`.
Knows       all settings, the round, the batch, and so C(t) and the noise's deviation; not the noise.
Does        clips each example's trial gradient, layer by layer, and gives the deviation in `noise`. With compress=after
            a trial is compared only at the sent entries. With compress=before the trial's smallest entries are zeroed
            if there is noise; without noise, the entries that were not sent. With bound=median C is read off each layer
            of one example: its squared norm is that of the clipped gradient plus d sigma^2 C^2, with d the layer's
            entries, so C^2 = |sent|^2 / (1 + d sigma^2) if it was clipped; if not, this C clips it no further.
Departures  1. several noisy steps: the effect of noise on the weights of later steps is left out: static.
            2. bound=median of several examples or steps, and compress over several steps, are not adapted to: static.
            3. bound=median: the noise of an unclipped layer is underestimated, by a factor down to |g| / C.
            4. compress=after: zeroed entries are known to be no larger than the smallest sent one; this is not used.
"""

from dataclasses import replace
from typing import final

import torch

from flfw.inversion.client_models.operator import TRAITS, ResidualMechanism, Trait
from flfw.inversion.clipped import Clipped
from flfw.nets.net import Tensors
from flfw.nets.training.clipping import grouped


@final
class FedCDPAdaptation(Clipped):
    """Noisy steps, with all options of the settings."""

    @property
    def clips_examples(self) -> bool:
        """True: each example's gradient is clipped."""
        return True

    @property
    def _reads_bound(self) -> bool:
        return self.settings["bound"] == "median"

    @property
    def _compresses(self) -> str:
        return self.settings["compress"] if self.settings["compress_ratio"] else "none"

    @property
    def lr(self) -> float:
        """The learning rate of the round; it decays from round to round."""
        return self.at.lr * self.settings["lr_decay"] ** max(0, self.at.round - 1)

    @property
    def bound(self) -> float:
        """The clipping bound C(t)."""
        first, last = self.settings["clip"], self.settings["last_clip"]
        done = max(0, min(self.at.round, self.at.rounds) - 1)
        if self.settings["bound"] == "decay":
            return first + (last - first) * done / max(1, self.at.rounds - 1)
        return first * self.settings["lr_decay"] ** done if self.settings["bound"] == "lr" else first

    @property
    def bound_words(self) -> str:
        """The bound, for `known`; a median is computed by the client."""
        read = "C the median of the client's own norms, read off what was seen"
        return read if self._reads_bound else super().bound_words

    @property
    def known(self) -> str:
        """The clipping, the noise and the compression."""
        zeroed = f"{self.settings['compress_ratio']:.0%} of the entries zeroed {self._compresses} that"
        return super().known + (f", {zeroed}" if self._compresses != "none" else "")

    @property
    def unsupported_reason(self) -> str:
        """An unknown bound, where clipped gradients are not seen one by one; compression in each step."""
        if self._reads_bound and self.at.batch * self.at.steps > 1:
            return "of several examples or steps the client's own bound cannot be read off"
        if self._compresses != "none" and self.at.steps > 1:
            return "what is zeroed in each of several steps is not followed"
        return super().unsupported_reason

    @property
    def noise(self) -> float | None:
        """1 where the bound is read off, because `apply` then counts in deviations; else that of the base class."""
        return 1.0 if self._reads_bound and self.is_noisy else super().noise

    @property
    def requires(self) -> frozenset[Trait]:
        """All traits where the bound or the zeroed entries are read off, else as in the base class."""
        return TRAITS if self._reads_bound or self._compresses != "none" else super().requires

    def bounds(self, observed: Tensors) -> Tensors:
        """Read C of each group off the observation, where it is the client's median."""
        result: Tensors = {}
        for group, members in grouped(observed, self.grouping).items() if self._reads_bound else ():
            squares = torch.stack([observed[name].square().sum() for name in members]).sum()
            entries = sum(observed[name].numel() for name in members)
            result[group] = (squares / (1 + entries * self.relative_deviation**2)).sqrt()
        return result

    def read(self, sent: Tensors) -> Tensors:
        """Read ``support.NAME``, 1 where sent, and ``precision.NAME``, one over the deviation for a read bound."""
        constants: Tensors = {}
        if self._compresses != "none":
            constants |= {f"support.{name}": (value != 0).to(value.dtype) for name, value in sent.items()}
        if self._reads_bound and self.is_noisy:
            bounds = self.bounds(sent)
            for group, members in grouped(sent, self.grouping).items():
                std = bounds[group] * self.relative_deviation
                constants |= {f"precision.{name}": torch.where(std > 0, 1 / std, 0.0) for name in members}
        return constants

    def residual(self, sent: Tensors) -> ResidualMechanism:
        """Return the rest of an example: as in the base class, at the sent entries."""
        left = super().residual(sent)
        if self._compresses == "none":
            return left
        return replace(left, weights={name: (value != 0).to(value.dtype) for name, value in sent.items()})

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Keep the trial at the sent entries, or its largest ones; in deviations, where the bound is read."""
        masked = super().apply(simulated, sent, constants)
        if self._compresses == "before" and self.is_noisy:
            masked = {name: _largest(value, self.settings["compress_ratio"]) for name, value in masked.items()}
        elif self._compresses != "none":
            masked = {name: value * constants[f"support.{name}"] for name, value in masked.items()}
        if self._reads_bound and self.is_noisy:
            return {n: v + (masked[n] - v) * constants[f"precision.{n}"] for n, v in sent.items()}
        return masked


def _largest(value: torch.Tensor, ratio: float) -> torch.Tensor:
    """Zero the smallest entries; unlike `flfw.nets.training.clipping.keep_largest`, fit for vmap and derivatives."""
    sizes = value.detach().abs()
    minimum = sizes.flatten().topk(value.numel() - int(ratio * value.numel())).values[-1]
    return value * (sizes >= minimum)
