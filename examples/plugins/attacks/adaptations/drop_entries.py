"""Against drop_entries: compare a guess with the observation only at the sent entries.

Paper       none has this adaptation.
Knows       the share; the sent entries: those that are not 0.
Does        sets the same entries of a trial gradient to 0, and scales the others as the client does.
Departures  1. an entry that is exactly 0 by chance counts as dropped.
"""

from typing import final

from flfw.inversion.client_models.operator import Operator
from flfw.nets.net import Tensors


@final
class DropEntriesAdaptation(Operator):
    """The mask, read off the observation."""

    def read(self, sent: Tensors) -> Tensors:
        """Read ``mask.NAME``: the factor of each entry."""
        return {f"mask.{name}": (value != 0) / (1 - self.settings["share"]) for name, value in sent.items()}

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Apply the client's mask to the trial."""
        return {name: trial[name] * constants[f"mask.{name}"] for name in sent}
