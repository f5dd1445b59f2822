"""Parts of a split that are computed when they are asked for, so that a million clients need no memory each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import final, overload

import numpy as np

_COUNTED = 10_000  # clients whose examples are counted at a time
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


def max_held(*lists: Sequence[np.ndarray]) -> int:
    """Return how often an example counts at most in the parts of some lists together, or a bound if one is known.

    It counts once for each part that has it; c^2 times, if it is c times there.
    """
    known = [one for one in map(most_copies, lists) if one is not None]
    if len(known) == len(lists):
        return max(1, sum(known))
    drawn = all(isinstance(parts, LazyParts) for parts in lists)
    return (_most_drawn if drawn else _counted)(*lists)


def _counted(*lists: Sequence[np.ndarray]) -> int:
    counts = np.zeros(0)
    for some in (parts[start : start + _COUNTED] for parts in lists for start in range(0, len(parts), _COUNTED)):
        held = [np.unique(part, return_counts=True) for part in some]
        indices, times = (np.concatenate(each) for each in zip(*held, strict=True))
        squares = np.bincount(indices, times.astype(np.float64) ** 2)
        length = max(len(counts), len(squares))
        counts = np.pad(counts, (0, length - len(counts))) + np.pad(squares, (0, length - len(squares)))
    return int(counts.max(initial=1))


_most_drawn = lru_cache(4)(_counted)  # for parts on demand, which know each other by identity, not by content


def looked_at(parts: Sequence[np.ndarray], maximum: int = 10_000) -> range:
    """Return the clients whose data a check looks at before a run: all, or the first ones of parts on demand."""
    return range(min(len(parts), maximum) if isinstance(parts, LazyParts) else len(parts))
