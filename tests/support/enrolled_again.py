"""Method that enrols all clients anew before each round, by the server's own code: one run then tells many lies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import final

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from flfw.engines.federation import Federation
from flfw.messages.streaming import StreamingGrid
from flfw.nets import Tensors
from flfw.resolve import resolve
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy
from flfw.training.optimisers import PersistentTraining


@final
class EnrolledAgain(FederatedStrategy):
    """Federated averaging of clients who introduce themselves in each round."""

    Settings = PersistentTraining
    downloads = ("*",)
    uploads = ("*",)
    client = "sgd"

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Enrol all, then ask those that fit."""
        assert isinstance(grid, StreamingGrid)
        with tempfile.TemporaryDirectory() as folder:
            flowers = grid._grid  # around which the server puts its own
            again = Federation(flowers, resolve(self.require_context.experiment), Path(folder))
            again._enrol()
        self.roster = again._strategy.roster
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the models, weighted by examples."""
        return weighted_mean(updates)
