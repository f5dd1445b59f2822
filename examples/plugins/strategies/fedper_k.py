"""FedPer with K_P private layers: clients share all but the last layers of any network.

Paper       Arivazhagan et al., "Federated Learning with Personalization Layers", arXiv 1912.00818, 2019.
Down        the first layers.
Up          the first layers after local training.
Private     the last K_P layers, kept by the client from round to round.
Client      clients/sgd.py.
A probe     one gradient of the shared layers, with the private ones as they are.
Departures  a layer is a module with parameters of its own, such as a convolution or a normalisation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from torch import nn

from flfw.errors import require
from flfw.messages.sharing import Sharing
from flfw.nets import Tensors
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class FedPerKSettings(PersistentTraining):
    """Local SGD and the number of private layers."""

    layers: int = 2  # K_P, >= 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.layers >= 1, "layers >= 1", layers=self.layers)


@final
class FedPerK(FederatedStrategy):
    """Weighted averaging of the first layers."""

    Settings = FedPerKSettings
    downloads = ("*",)
    uploads = ("*",)
    plain_steps = True

    @classmethod
    def shared(cls, model: nn.Module, settings: FedPerKSettings) -> Sharing:
        """Choose all layers but the last K_P."""
        layers = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
        names = tuple(f"{name}.*" for name in layers[: -settings.layers])
        return Sharing(names, names)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Take the mean of the first layers, weighted by examples."""
        return weighted_mean(updates)
