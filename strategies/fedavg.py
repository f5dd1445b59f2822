"""FedAvg: all clients train the same model, the server averages.

Paper       McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
Down        all tensors of the model, w.
Up          all tensors of the model after local training, w_k.
Private     nothing; of a pretrained network with ``--trainable adapter`` the running statistics of the adapters.
Client      clients/sgd.py.
A probe     one gradient of the whole model.
Departures  none. Buffers (batch-norm statistics) are averaged like weights, but for those of adapters. What
            ``--trainable`` freezes is no tensor of the model: it is neither trained nor sent.

    for each round t:
        S_t <- the cohort;  every k in S_t: w_k <- local SGD from w
        w <- sum_k (n_k / sum_j n_j) w_k
"""

from collections.abc import Iterable
from typing import final

from flfw.nets import Tensors
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@final
class FedAvg(FederatedStrategy):
    """Weighted averaging of whole models."""

    Settings = PersistentTraining
    downloads = ("*",)
    uploads = ("*",)
    averaged = True
    reduces = "mean"
    plain_steps = True

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the models, weighted by examples."""
        return weighted_mean(updates)
