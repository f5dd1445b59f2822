"""Method that enrols all clients anew before each round, by the server's own code: one run then tells many lies."""

from collections.abc import Iterable
from typing import Any, final

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from flfw.messages.streaming import StreamingGrid
from flfw.nets import Tensors
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.client_directory import ClientDirectory, NodeAssignment
from flfw.server.strategy import FederatedStrategy


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
        server: Any = getattr(self.before_round, "__self__", None)  # the run's `Federation`
        first: NodeAssignment = server._assignment
        client_directory, own_grid = ClientDirectory(self.client_directory.tolerance), StreamingGrid(grid._grid)
        terms = first._clients, first._wait, first._required, first._registered, first._alike
        NodeAssignment(own_grid, client_directory, *terms).begin()
        self.client_directory = client_directory
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the models, weighted by examples."""
        return weighted_mean(updates)
