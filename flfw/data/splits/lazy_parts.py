"""Parts of a split that are computed when they are asked for, so that a million clients need no memory each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final, overload

import numpy as np

from flfw.bounds import BoundedSettings, NonNegativeInt, PositiveInt
from flfw.data.files.dataset import Dataset
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, trainable
from flfw.errors import InputError, require
from flfw.rng import numpy_generator

_DECKS = 8  # that were asked for last; a round's clients come in order
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


@dataclass(frozen=True)
class SampledOnDemand(SplitScheme, BoundedSettings):
    """Examples dealt to each client by the seed and its number, on demand: for more clients than there are data.

    What a client holds does not depend on how many clients there are: so nothing is computed before it is asked for,
    and a million clients are no more work than ten. Examples are dealt like cards: the data are shuffled, each client
    in turn takes the next ones, and where they do not suffice for another client, all are shuffled anew. So no example
    is held more often than once in each of these decks, and clients share none while one deck lasts. Clients with
    random classes draw by themselves.
    """

    NAMED = "sampled_on_demand."
    train: PositiveInt = 20  # examples a client
    test: PositiveInt = 20  # likewise
    classes: NonNegativeInt = 0  # number of random classes of each client; 0: a client draws from all

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Return the pools of all draws, as those of one client: training data without victims, and all test data."""
        return SplitIndices([trainable(dataset)], [np.arange(len(dataset.test_y))])

    def parts(self, dataset: Dataset, pool: np.ndarray, part: str, clients: int, seed: int) -> LazyParts:
        """Return the parts of all clients.

        Args:
            dataset: the data.
            pool: the examples that are drawn from.
            part: ``train`` or ``test``.
            clients: number of clients.
            seed: seed of the draws.

        Raises:
            InputError: the pool may have too few examples for a client.
        """
        size = getattr(self, part)
        if not self.classes:
            _require(size, len(pool), part, self)
            return _dealt(pool, size, part, clients, seed)
        labels = np.asarray(getattr(dataset, f"{part}_y"))[pool]
        by_class = [pool[labels == label] for label in range(dataset.classes)]
        require(
            self.classes <= dataset.classes, f"sampled_on_demand.classes <= {dataset.classes}", classes=self.classes
        )
        _require(size, sum(sorted(map(len, by_class))[: self.classes]), part, self)

        def of(client: int) -> np.ndarray:
            chosen = numpy_generator(seed, "drawn classes", client).choice(dataset.classes, self.classes, replace=False)
            mine = np.concatenate([by_class[label] for label in chosen])
            return mine[numpy_generator(seed, f"drawn {part}", client).choice(len(mine), size, replace=False)]

        return LazyParts(clients, size, of)


def _dealt(pool: np.ndarray, size: int, part: str, clients: int, seed: int) -> LazyParts:
    """Return the parts of clients that take turns in shuffled decks of the pool."""
    players = len(pool) // size  # of one deck

    @lru_cache(_DECKS)
    def deck(number: int) -> np.ndarray:
        return numpy_generator(seed, f"drawn {part}", number).permutation(len(pool))

    def of(client: int) -> np.ndarray:
        number, place = divmod(client, players)
        return pool[deck(number)[place * size : (place + 1) * size]]

    return LazyParts(clients, size, of, copies=-(-clients // players))


def _require(size: int, there: int, part: str, scheme: SampledOnDemand) -> None:
    if size > there:
        which = f"{scheme.classes} classes may have" if scheme.classes else "there are"
        raise InputError(
            f"Expected sampled_on_demand.{part} <= {there}, the {part} examples that {which}, got {part}={size}."
        )
