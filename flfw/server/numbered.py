"""Nodes of a simulation, which follow from the numbers of its clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final


@final
class NumberedNodes(Mapping[int, int]):
    """Nodes by client, where client i is node i + 1; nothing is stored for each of them.

    Args:
        clients: number of clients.

    >>> nodes = NumberedNodes(3)
    >>> dict(nodes), nodes.client_of(3), nodes.client_of(4)
    ({0: 1, 1: 2, 2: 3}, 2, -1)
    """

    def __init__(self, clients: int) -> None:
        self._clients = range(clients)

    def __getitem__(self, client: int) -> int:
        if client not in self._clients:
            raise KeyError(client)
        return client + 1

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def clients(self) -> range:
        """Clients, ascending."""
        return self._clients

    def client_of(self, node: int) -> int:
        """Return the client of a node; -1: it is nobody's."""
        return node - 1 if node - 1 in self._clients else -1
