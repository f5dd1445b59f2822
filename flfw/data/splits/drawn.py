"""Split for more clients than there are data: each client's examples are drawn by the seed and its number alone.

What a client holds does not depend on how many clients there are: so nothing is computed before it is asked for, and a
million clients are no more work than ten. Examples are dealt like cards: the data are shuffled, each client in turn
takes the next ones, and where they do not suffice for another client, all are shuffled anew. So no example is held
more often than once in each of these decks, and clients share none while one deck lasts. Clients with random classes
draw by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from flfw.bounds import BoundedSettings, NonNegativeInt, PositiveInt
from flfw.data.files.dataset import Dataset
from flfw.data.splits.lazy_parts import LazyParts
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, trainable
from flfw.errors import InputError, require
from flfw.rng import numpy_generator

_DECKS = 8  # that were asked for last; a round's clients come in order


@dataclass(frozen=True)
class SampledOnDemand(SplitScheme, BoundedSettings):
    """Examples dealt to each client by the seed and its number, on demand, see ``flfw.data.splits.drawn``."""

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
