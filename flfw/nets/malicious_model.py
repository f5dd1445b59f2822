"""Networks that a malicious server changes: the changed network, which all clients build, and the numbers it sends.

A server that isolates a client changes no network, and lies in the attacked messages alone: it sends all other clients
numbers for which their update is zero, so that a sum over clients is the update of one.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from flfw.nets.net import Net, Tensors


class ImposedModule(nn.Module, ABC):
    """Base of the modules that a malicious server puts into a network; an honest network has none."""


class ModelModification(ABC):
    """Change of a network by a malicious server, which an attack needs.

    Both sides build the network with the change, so a client of the server's choice must run the server's code, or
    agree to. The server makes the numbers anew for each message and overwrites those that training left there.
    """

    @property
    def isolates(self) -> int | None:
        """Client whose update alone is in a sum over clients; by default None: the server isolates nobody.

        A server that isolates a client lies in the audit's probes of the target alone, and trains as an honest one.
        """
        return None

    def touched(self, model: nn.Module) -> list[str]:
        """List the tensors of a model that the server overwrites; by default those of an `ImposedModule`."""
        return imposed_names(model)

    def alone(self, names: Sequence[str]) -> list[str]:
        """List the tensors in which a sum is the isolated client's update; by default all.

        Args:
            names: the tensors of a sum.
        """
        return list(names)

    @abstractmethod
    def network(self, net: Net) -> Net:
        """Return the network with an `ImposedModule`; ``net`` itself may be changed.

        Args:
            net: an honest network, with its input shape.
        """

    def network_for(self, net: Net, clients: int) -> Net:
        """Return the network for a number of clients; by default this does not depend on their number.

        Args:
            net: an honest network, with its input shape.
            clients: number of all clients of the run.
        """
        return self.network(net)

    @abstractmethod
    def crafted(self, tensors: Tensors, public: Tensor) -> Tensors:
        """Compute the tensors that the server sends in place of its own; others are sent as they are.

        Args:
            tensors: all tensors of a message by name; empty where nothing is to be replaced.
            public: (n, ...) public inputs, normalised as the network takes them.
        """

    def personal(self, client: int, tensors: Tensors, public: Tensor) -> Tensors:
        """Compute the tensors that one client alone is sent, beside those of `crafted`; by default there are none.

        Args:
            client: the client's number.
            tensors: all tensors of a message by name.
            public: (n, ...) public inputs, normalised as the network takes them.
        """
        return {}


def in_front(net: Net, module: ImposedModule) -> Net:
    """Put a module between the inputs and the extractor; the rest keeps its numbers under ``extractor.honest.*``."""
    net.extractor = nn.Sequential(OrderedDict(imposed=module, honest=net.extractor))
    return net


def imposed_names(model: nn.Module) -> list[str]:
    """List the tensors of a model that belong to an `ImposedModule`; empty for an honest network."""
    parts = [name for name, part in model.named_modules() if isinstance(part, ImposedModule)]
    return [name for name in model.state_dict() if any(name.startswith(f"{part}.") for part in parts)]
