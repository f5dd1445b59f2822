"""Parts of a split that are computed when they are asked for, so that a million clients need no memory each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import final, overload

import numpy as np

_KEPT = 256  # parts of the clients that were asked for last: a round asks for each several times


@final
class LazyParts(Sequence[np.ndarray]):
    """Parts of all clients, of equal sizes.

    Args:
        clients: number of clients.
        size: number of examples of each.
        draw: function that computes the part of a client; the same at each call.
        copies: bound on the number of clients that hold one example; 0: not known. No client holds one twice.

    Attributes:
        size: number of examples of each client.
        copies: as given.
    """

    def __init__(self, clients: int, size: int, draw: Callable[[int], np.ndarray], copies: int = 0) -> None:
        self._clients, self.size, self.copies = range(clients), size, copies
        self._draw = lru_cache(_KEPT)(draw)

    @classmethod
    def same(cls, clients: int, part: np.ndarray) -> LazyParts:
        """Return one part for all clients."""
        return cls(clients, len(part), lambda client: part, copies=clients)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[np.ndarray, ...]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | tuple[np.ndarray, ...]:
        if isinstance(index, slice):
            return tuple(self._draw(client) for client in self._clients[index])
        return self._draw(self._clients[index])

    def __len__(self) -> int:
        return len(self._clients)


def sizes(parts: Sequence[np.ndarray]) -> list[int]:
    """Return the number of examples of each client; a single one if all clients have as many by construction."""
    return [parts.size] if isinstance(parts, LazyParts) else [len(part) for part in parts]


def total(parts: Sequence[np.ndarray]) -> int:
    """Return the number of examples of all clients together, each as often as it is held."""
    return len(parts) * parts.size if isinstance(parts, LazyParts) else sum(map(len, parts))


def most_copies(parts: Sequence[np.ndarray]) -> int | None:
    """Return a bound on the number of clients that hold one example, if it is known by construction."""
    if not isinstance(parts, LazyParts):
        return None
    return (parts.copies or None) if parts.size else 0


def looked_at(parts: Sequence[np.ndarray], maximum: int = 10_000) -> range:
    """Return the clients whose data a check looks at before a run: all, or the first ones of parts on demand."""
    return range(min(len(parts), maximum) if isinstance(parts, LazyParts) else len(parts))
