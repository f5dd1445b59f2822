"""Against soteria: compare a guess with the observation only at the columns that were sent.

Paper       Balunovic et al., "Bayesian Framework for Gradient Leakage", ICLR 2022, arXiv 2111.04706, who leave out the
            whole defended tensor. Here only its hidden columns are left out; the others tell of the representation.
Knows       the defended layer, and the hidden columns: those in which all entries are 0.
Does        sets the same columns of a trial gradient to 0. Otherwise all hidden columns count against the guess.
Departures  1. A unit that is exactly 0 for all examples, as after a rectifier, has a column of zeros as well. It is
               taken for a hidden one, and that it was 0 is not used.
"""

from typing import final

from flfw.inversion.client_models.operator import TRAITS, Operator, Trait
from flfw.nets.bottleneck import BOTTLENECK
from flfw.nets.net import Tensors

_COLUMNS = "columns"


@final
class SoteriaAdaptation(Operator):
    """Sent columns of the defended layer as a mask."""

    @property
    def requires(self) -> frozenset[Trait]:
        """The zeros."""
        return frozenset(("zeros",))

    @property
    def preserves(self) -> frozenset[Trait]:
        """Traits of every kind but one: a hidden column may have held the largest entry.

        None in the layers of a bottleneck: its noise is read off them, and a hidden column looks like an input of 0.
        """
        return frozenset() if BOTTLENECK in str(self.settings.get("layer", "")) else TRAITS - {"largest"}

    def read(self, sent: Tensors) -> Tensors:
        """Read ``columns``: 1 where a column of the defended weight was sent, else 0."""
        weight = sent[self._name(sent)]
        return {_COLUMNS: (weight != 0).any(-2, keepdim=True).to(weight.dtype)}

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Keep the trial's columns at the sent places."""
        name = self._name(sent)
        return {**simulated, name: simulated[name] * constants[_COLUMNS]}

    def _name(self, sent: Tensors) -> str:
        """Name the defended weight: the chosen layer's, or the last one of a fully connected layer."""
        layer = str(self.settings.get("layer", ""))
        return f"{layer}.weight" if layer else [name for name, value in sent.items() if value.dim() == 2][-1]
