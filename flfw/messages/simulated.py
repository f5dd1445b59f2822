"""Grids of simulations, whose clients have nothing of their own but their numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

FORCED = "forced-by-server"
"""Key of the configuration of a node whose server forces what the client writes to disk."""


class SimulatedGrid(Grid, ABC):
    """Grid of the nodes 1 to ``clients``, of which node i holds partition i - 1; subclasses exchange the messages.

    The nodes are known from the beginning, and there is no SuperLink. What a client tells of itself beside its number,
    its code, data and GPU, is that of the process that speaks for it.

    Args:
        clients: number of nodes.
        one_disk: whether clients and server write to one disk; then the server forces the clients' private state to
            it, once a round. The nodes are told by `FORCED` in their configuration.
    """

    def __init__(self, clients: int, one_disk: bool = False) -> None:
        self.one_disk = one_disk
        self._nodes, self._run = range(1, clients + 1), Run.create_empty(run_id=1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0  # a Message() asks for them

    @property
    @abstractmethod
    def representatives(self) -> Sequence[int]:
        """Nodes that speak for all together, one for each process; empty: each node is to be asked."""

    def get_node_ids(self) -> list[int]:
        """List all nodes, ascending."""
        return list(self._nodes)

    def get_nodes(self) -> list[NodeInfo]:
        """Describe all nodes; they have nothing but their numbers."""
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    @property
    def run(self) -> Run:
        """Placeholder of a run: there is no SuperLink."""
        return self._run

    def set_run(self, run: Run) -> None:
        """Keep the run's description."""
        self._run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Implement the deprecated `Grid.create_message`; new code uses ``Message(...)``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def has_one_disk(grid: Grid) -> bool:
    """Return whether the server is to force the files of a grid's clients to disk."""
    return isinstance(grid, SimulatedGrid) and grid.one_disk


def representatives(grid: Grid) -> Sequence[int]:
    """Return the nodes of a grid that speak for all; empty: each is to be asked."""
    return grid.representatives if isinstance(grid, SimulatedGrid) else ()
