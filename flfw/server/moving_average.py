"""Exponential moving average of the models that a server sends; it is evaluated, and sent to nobody for training.

After round t the average becomes d average + (1 - d) model, with d = min(decay, (1 + t) / (10 + t)), from the first
broadcast on. So early models, which differ most, are soon forgotten (De et al., "Unlocking High-Accuracy
Differentially Private Image Classification through Scale", arXiv 2204.13650). Whatever noise the models have, the
average is computed from them alone and costs no privacy; it has less noise than the last one.
"""

from __future__ import annotations

from typing import final

from flwr.app import ArrayRecord

from flfw.messages.wire import pack, unpack
from flfw.nets.net import Tensors


@final
class MovingAverage:
    """Average of the broadcast tensors over the rounds.

    Args:
        decay: largest weight of the average so far, in (0, 1); 0: there is no average.

    Attributes:
        tensors: the average, in the tensors' own types; whole numbers are the latest. Empty: none yet.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.tensors: Tensors = {}

    def follow(self, server_round: int, arrays: ArrayRecord) -> None:
        """Take in the broadcast after a round; 0: the first broadcast."""
        if not self.decay:
            return
        model = unpack(arrays)
        if not self.tensors:
            self.tensors = model
            return
        kept = min(self.decay, (1 + server_round) / (10 + server_round))
        for name, value in model.items():
            if value.is_floating_point():
                mean = kept * self.tensors[name].double() + (1 - kept) * value.double()
                model[name] = mean.to(value.dtype)
        self.tensors = model

    def evaluated(self, last: ArrayRecord) -> ArrayRecord:
        """Return the tensors to evaluate: the average, or without one the last broadcast."""
        return pack(self.tensors) if self.tensors else last
