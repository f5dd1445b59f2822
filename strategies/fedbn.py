"""FedBN: FedAvg of everything but BatchNorm, which each client keeps to itself.

Paper       Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
            arXiv 2102.07623.
Down        all tensors of the model but those of its BatchNorm layers.
Up          the same after local training.
Private     BatchNorm's gamma, beta and running statistics, kept by the client from round to round. They are found by
            the layers' type. A network without BatchNorm is refused: on it FedBN is FedAvg.
Client      clients/sgd.py, which trains all of it together.
A probe     one gradient of all that is shared, with the client's own gamma and beta, and the batch's statistics.
An attacker is granted neither gamma nor beta: it searches for both, from the 1 and 0 that all clients start with. It
            needs no running statistics, for a step normalises by those of its batch.
Departures  1. weights=examples weighs clients as FedAvg does; the paper's mean, and the default, is a plain one.
            2. The paper tests a client with its own BatchNorm, as here; it says nothing about clients that never took
               part. They have the first gamma, beta and statistics.

    client k:  w_k <- E epochs from w with the client's own (gamma_k, beta_k, mu_k, sigma_k);  keep these, send w_k
    server:    w <- 1/K sum_k w_k
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.errors import require
from flfw.inversion.client_models.batch_statistics import normalising_by_batch
from flfw.inversion.client_models.victim import PlainVictim
from flfw.messages.sharing import Sharing
from flfw.nets import Tensors
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update, equal_mean, weighted_mean
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class FedBNSettings(PersistentTraining):
    """Settings of local training, and the weights of the mean."""

    weights: Literal["equal", "examples"] = "equal"  # of the clients: all alike, or by their training examples


@final
class FedBN(FederatedStrategy):
    """Averaging of all but BatchNorm."""

    Settings = FedBNSettings
    downloads = ("*",)
    uploads = ("*",)
    averaged = True
    plain_steps = True  # they move gamma and beta, too

    @classmethod
    def check_model(cls, model: nn.Module, settings: FedBNSettings) -> None:
        """Refuse a network without BatchNorm, on which nothing is private."""
        there = any(isinstance(module, _BatchNorm) for module in model.modules())
        require(there, "a network with BatchNorm for fedbn, such as --net resnet18; else choose fedavg", layers="none")

    @classmethod
    def shared(cls, model: nn.Module, settings: FedBNSettings) -> Sharing:
        """Name every tensor but those of BatchNorm layers."""
        layers = [layer for layer, module in model.named_modules() if isinstance(module, _BatchNorm)]
        names = tuple(name for name in model.state_dict() if name.rpartition(".")[0] not in layers)
        return Sharing(downloads=names, uploads=names)

    @classmethod
    def victim_model(
        cls, model: nn.Module, received: Tensors, inputs: InputSpec, settings: FedBNSettings
    ) -> PlainVictim:
        """Build a client whose gamma and beta are unknown, and which normalises by the batch as training does."""
        return PlainVictim(normalising_by_batch(model), received, cls.descended(model, settings), inputs)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the shared tensors."""
        return equal_mean(updates)[0] if self.settings.weights == "equal" else weighted_mean(updates)
