"""Against prune: compare a guess with what was sent only where something was sent.

Paper       no paper's own. GGL (Li et al., CVPR 2022) makes its trial gradients sparse as well, to the share observed.
Knows       which entries were sent: those that are not 0.
Does        sets the same entries of a trial gradient to 0. Without it, all that was kept back counts against the guess.
Departures  1. an entry that was kept back is also known to be no larger than the smallest that was sent. That is left
               unused: added to the objective, it gained 0.2 dB at most on the sigmoid LeNet.
            2. an entry that happens to be exactly 0 counts as kept back, in the trial too: it tells nothing.
"""

from __future__ import annotations

from typing import final

from flfw.nets.net import Tensors
from flfw.victims.operator import Operator


@final
class PruneAdaptation(Operator):
    """The support of what was sent as a mask."""

    def read(self, sent: Tensors) -> Tensors:
        """``support.NAME``: 1 where an entry was sent, else 0."""
        return {f"support.{name}": (value != 0).to(value.dtype) for name, value in sent.items()}

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """The trial's entries that the client would have sent, at the same places."""
        return {name: trial[name] * constants[f"support.{name}"] for name in sent}
