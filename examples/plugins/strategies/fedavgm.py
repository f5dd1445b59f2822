"""FedAvgM: FedAvg whose server follows the mean update with momentum.

Paper       Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
            Classification", arXiv 1909.06335, 2019.
Down        all tensors of the model, w.
Up          all tensors of the model after local training, w_k.
Private     nothing.
Client      clients/sgd.py.
A probe     one gradient of the whole model.
Departures  networks with buffers (batch-norm statistics) are refused: momentum can make a variance negative.

    v <- beta v + (w - sum_k (n_k / sum_j n_j) w_k)
    w <- w - v
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from flfw.errors import InputError, require
from flfw.nets import Tensors
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class FedAvgMSettings(PersistentTraining):
    """Local SGD and the server's momentum."""

    beta: float = 0.9  # momentum of the server, in [0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta < 1, "0 <= beta < 1", beta=self.beta)


@final
class FedAvgM(FederatedStrategy):
    """Weighted averaging of whole models, with momentum."""

    Settings = FedAvgMSettings
    downloads = ("*",)
    uploads = ("*",)
    plain_steps = True

    @classmethod
    def check_model(cls, model: nn.Module, settings: FedAvgMSettings) -> None:
        """Refuse a network with buffers."""
        for name, _ in model.named_buffers():
            raise InputError(f"Expected a network without buffers for fedavgm, got {name}; choose another --net.")

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Follow the velocity from the broadcast model."""
        before, mean, velocity = self.last_broadcast, weighted_mean(updates), self.state
        zero = torch.zeros(())
        self.state = {n: self.settings.beta * velocity.get(n, zero) + before[n] - value for n, value in mean.items()}
        return {name: before[name] - value for name, value in self.state.items()}
