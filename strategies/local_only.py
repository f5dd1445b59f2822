"""Local-only: every client trains alone; the bar that federation has to clear, and it leaks nothing.

Paper       the baseline of every paper on personalised federated learning, "Local" or "Local-only".
Down        nothing.
Up          nothing.
Private     the whole model, kept by the client from round to round.
Client      clients/sgd.py.
A probe     has nothing to send.
Departures  none. All clients start from the same weights, as the federated methods do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from flfw.nets import Tensors
from flfw.server.aggregation import Update
from flfw.server.strategy import FederatedStrategy
from flfw.training.optimisers import LastingTraining


@final
class LocalOnly(FederatedStrategy):
    """No aggregation."""

    Settings = LastingTraining
    downloads = ()
    uploads = ()

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Broadcast nothing, for nothing was sent."""
        return {}
