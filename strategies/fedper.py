"""FedPer: FedAvg of the feature extractor under a private classifier; the control for every private-head claim.

Paper       Arivazhagan et al., "Federated Learning with Personalization Layers", arXiv 1912.00818, 2019.
Down        extractor.*
Up          extractor.* after local training.
Private     classifier.*, kept by the client from round to round.
Client      clients/sgd.py, which trains both parts together.
A probe     one gradient of the extractor, with the classifier as it is.
Departures  none; the private part is the network's classifier (one linear layer in CNN 1 and CNN 2).
"""

from collections.abc import Iterable
from typing import final

from flfw.nets import Tensors
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@final
class FedPer(FederatedStrategy):
    """Weighted averaging of extractors."""

    Settings = PersistentTraining
    downloads = ("extractor.*",)
    uploads = ("extractor.*",)
    averaged = True
    reduces = "mean"
    plain_steps = True

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the extractors, weighted by examples."""
        return weighted_mean(updates)
