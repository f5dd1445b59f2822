"""Client half of pFedHN and pFedHN-PC: clipped steps on the generated tensors, plain ones on a private classifier."""

from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.files.tensor_names import matches
from flfw.nets import Tensors
from flfw.nets.training.optimisers import Optimiser, StatefulOptimiser


@final
class PartedOptimiser(Optimiser):
    """Optimiser of two parts of the parameters, each with an optimiser of its own.

    Args:
        rest: optimiser of all other parameters.
        part: optimiser of the named ones.
        names: those names.
    """

    def __init__(self, rest: Optimiser, part: Optimiser, names: Sequence[str]) -> None:
        self._rest, self._part, self._names = rest, part, frozenset(names)

    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Change the parameters in place; gradients may be overwritten."""
        self._part.step({n: p for n, p in parameters.items() if n in self._names}, gradients)
        self._rest.step({n: p for n, p in parameters.items() if n not in self._names}, gradients)


@final
class PFedHNClient(FederatedClient):
    """Client with E epochs of SGD on the loss of the whole network.

    The optimiser of the generated tensors is new in each round, because they are. That of a private classifier lasts.
    """

    def __init__(self, ctx: ClientContext) -> None:
        super().__init__(ctx)
        self._head: StatefulOptimiser = ctx.settings.optimiser_at(ctx.local.lr)

    def train(self) -> dict[str, float]:
        """Train both parts in the same steps; return the mean loss of the last epoch."""
        epochs = self.ctx.local.local_epochs
        return {"loss": self.train_epochs(self.trainable_parameters(), epochs, self.optimiser(), clips=self.clips())}

    def head(self) -> dict[str, Tensor]:
        """Return the parameters that stay here: none of pFedHN, the classifier's of pFedHN-PC."""
        return {n: p for n, p in self.trainable_parameters().items() if not matches(n, self.sharing.downloads)}

    def optimiser(self) -> Optimiser:
        """Return a fresh optimiser of the generated tensors beside the lasting one of the head."""
        fresh = super().optimiser()
        return PartedOptimiser(fresh, self._head, list(head)) if (head := self.head()) else fresh

    def lasting(self) -> Mapping[str, tuple[StatefulOptimiser, Mapping[str, Tensor]]]:
        """Return the head's optimiser."""
        head = self.head()
        return {"head": (self._head, head)} if head else {}

    def clips(self) -> dict[str, float]:
        """Return the bound of the generated tensors' gradient."""
        return dict.fromkeys(self.sharing.uploads, self.ctx.settings.clip)
