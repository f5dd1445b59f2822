"""FedProx: FedAvg whose clients are held near the broadcast model.

Paper       Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
Down        all tensors of the model, w.
Up          all tensors of the model after local training, w_k.
Private     nothing.
Client      clients/fedprox.py: adds mu/2 ||w_k - w||^2 to the loss.
A probe     one gradient of the whole model; the proximal term has none at the broadcast model.
Departures  full local epochs for all clients; the paper also lets slow clients stop early.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

from flfw.bounds import NonNegativeFloat
from flfw.nets import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class FedProxSettings(PersistentTraining):
    """Settings of local SGD and of the proximal term."""

    mu: NonNegativeFloat = 0.01  # weight of the proximal term; the FedCG paper tries 0.001, 0.01, 0.1 and 1


@final
class FedProx(FederatedStrategy):
    """Weighted averaging of whole models that were trained with a proximal term."""

    Settings = FedProxSettings
    downloads = ("*",)
    uploads = ("*",)
    averaged = True
    reduces = "mean"

    @classmethod
    def local_steps(cls, settings: FedProxSettings, lr: float, steps: int) -> LocalSteps | None:
        """Describe steps of the optimiser on the loss with the proximal term."""
        plain = settings.steps_at(lr, steps)
        return replace(plain, proximal=settings.mu) if plain else None

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the models, weighted by examples."""
        return weighted_mean(updates)
