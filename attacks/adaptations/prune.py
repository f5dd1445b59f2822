"""Against prune: compare a guess with the observation only at the sent entries.

Paper       none has this adaptation. GGL (Li et al., CVPR 2022) also makes its trial gradients sparse, to the observed
            share.
Knows       the sent entries: those that are not 0.
Does        sets the same entries of a trial gradient to 0. Otherwise all pruned entries count against the guess.
Departures  1. a pruned entry is also known to be no larger than the smallest sent entry. This is not used: added to
               the objective, it gained at most 0.2 dB on the sigmoid LeNet.
            2. an entry that is exactly 0 by chance counts as pruned, in the trial too: it gives no information.
"""

from typing import final

from flfw.inversion.client_models.operator import TRAITS, Operator, ResidualMechanism, Trait
from flfw.nets.net import Tensors


@final
class PruneAdaptation(Operator):
    """Support of the observation as a mask."""

    @property
    def requires(self) -> frozenset[Trait]:
        """The zeros."""
        return frozenset(("zeros",))

    @property
    def preserves(self) -> frozenset[Trait]:
        """Traits of every kind but the rank: an entry is sent as it is, or is 0 in the trial as well."""
        return TRAITS - {"rank"}

    def read(self, sent: Tensors) -> Tensors:
        """Read ``support.NAME``: 1 where an entry was sent, else 0."""
        return {f"support.{name}": (value != 0).to(value.dtype) for name, value in sent.items()}

    def residual(self, sent: Tensors) -> ResidualMechanism:
        """Return the rest of an example: its entries at the sent places, as they are."""
        return ResidualMechanism({name: (value != 0).to(value.dtype) for name, value in sent.items()})

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Keep the trial's entries at the sent places."""
        return {name: simulated[name] * constants[f"support.{name}"] for name in sent}
