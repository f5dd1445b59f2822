"""Grids of simulations, whose clients have nothing of their own but their numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from flwr.serverapp import Grid

FORCED = "forced-by-server"
"""Key of the configuration of a node whose server forces what the client writes to disk."""


class SimulatedGrid(Grid, ABC):
    """Grid of simulated clients: client i is node i + 1.

    What a client tells of itself beside its number, its code, data and GPU, is that of the process that speaks for it.

    Attributes:
        one_disk: whether clients and server write to one disk; then the server forces the clients' private state to
            it, once a round. The nodes are told by `FORCED` in their configuration.
    """

    one_disk: bool = False

    @property
    @abstractmethod
    def representatives(self) -> Sequence[int]:
        """Nodes that tell together what all nodes would, one for each process; empty: each node is to be asked."""


def has_one_disk(grid: Grid) -> bool:
    """Return whether the server is to force to disk what clients of a grid write."""
    return isinstance(grid, SimulatedGrid) and grid.one_disk


def representatives(grid: Grid) -> Sequence[int]:
    """Return the nodes of a grid that tell what all would; empty: each is to be asked."""
    return grid.representatives if isinstance(grid, SimulatedGrid) else ()
