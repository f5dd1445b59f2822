"""Local-only: every client trains alone; the baseline that federation has to beat, and that leaks nothing.

Paper       the baseline of every paper on personalised federated learning, "Local" or "Local-only".
Down        nothing.
Up          nothing.
Private     the whole model, kept by the client from round to round.
Client      clients/sgd.py.
A probe     sends nothing.
Departures  none. All clients start from the same weights, as the federated methods do.
"""

from collections.abc import Iterable
from typing import final

from flfw.nets import Tensors
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update
from flfw.server.strategy import FederatedStrategy


@final
class LocalOnly(FederatedStrategy):
    """Strategy without aggregation."""

    Settings = PersistentTraining
    downloads = ()
    uploads = ()

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Return nothing: nothing was sent, nothing is broadcast."""
        return {}
