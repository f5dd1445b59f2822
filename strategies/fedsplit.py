"""FedSplit: FedAvg of the classifier above a private extractor; the control for every private-extractor claim.

Paper       as Wu et al., IJCAI 2022, arXiv 2111.08211, compare FedCG with it.
Down        classifier.*
Up          classifier.* after local training.
Private     extractor.*, kept by the client from round to round; with lasting=true also its optimiser's memory.
Client      clients/sgd.py, which trains both parts together.
A probe     one gradient of the classifier, with the extractor as it is.
Departures  start=independent draws each client's own first extractor; the authors start all from one. See
            strategies/fedcg.py, departure 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, final

from flfw.nets import Tensors
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class FedSplitSettings(PersistentTraining):
    """Settings of local training, and the start of the extractors."""

    # The authors' optimiser: with SGD the sigmoids of lenet5 learn nothing in tens of rounds.
    optimiser: Literal["sgd", "adam"] = "adam"
    start: Literal["common", "independent"] = "common"  # of the extractors, see the card


@final
class FedSplit(FederatedStrategy):
    """Weighted averaging of classifiers."""

    Settings = FedSplitSettings
    net = "lenet5"
    downloads = ("classifier.*",)
    uploads = ("classifier.*",)
    averaged = True
    reduces = "mean"
    plain_steps = True

    @classmethod
    def common_start(cls, settings: FedSplitSettings) -> bool:
        """Return whether the setting ``start`` is ``common``."""
        return settings.start == "common"

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the classifiers, weighted by examples."""
        return weighted_mean(updates)
