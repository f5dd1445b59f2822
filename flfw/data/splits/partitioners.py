"""Partitioners of a table by its columns: the papers' splits for any Flower app, and Flower's own for flfw.

Imported only to compute a split, as flwr_datasets takes seconds. With the same seed each partitioner draws the same as
``flfw.data.splits.partition.split``.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np
from datasets import Dataset as Table
from flwr_datasets.partitioner import DirichletPartitioner, Partitioner, PathologicalPartitioner

from flfw.data.splits import domains, dominant, pools, shards
from flfw.errors import InputError
from flfw.rng import numpy_generator


class _AtOnce(Partitioner, ABC):
    """A partitioner that computes all its partitions at the first request."""

    def __init__(self, num_partitions: int) -> None:
        super().__init__()
        self._num_partitions = num_partitions
        self._partitions: Sequence[np.ndarray] = ()

    @abstractmethod
    def _assign(self) -> Sequence[np.ndarray]:
        """Return the row numbers of each client."""

    def load_partition(self, partition_id: int) -> Table:
        """Return the rows of one client."""
        self._partitions = self._partitions or self._assign()
        return self.dataset.select(self._partitions[partition_id])

    @property
    def num_partitions(self) -> int:
        """Number of clients."""
        return self._num_partitions

    def _column(self, name: str) -> np.ndarray:
        return np.asarray(self.dataset[name][:])


@final
class DominantPartitioner(_AtOnce):
    """Dominant-class split of the papers; see ``flfw.data.splits.dominant`` for the rule.

    Args:
        num_partitions: clients.
        partition_by: the column of labels 0 to ``classes - 1``.
        classes: 10 or 62.
        examples: per client, before quotas are rounded.
    """

    def __init__(self, num_partitions: int, partition_by: str, classes: int, examples: int) -> None:
        super().__init__(num_partitions)
        self._quotas = [dominant.quotas(classes, client, examples) for client in range(num_partitions)]
        self._partition_by = partition_by

    def _assign(self) -> Sequence[np.ndarray]:
        by_class = dominant.by_class(self._column(self._partition_by), len(self._quotas[0]))
        return dominant.assign(by_class, self._quotas, [0] * len(by_class))


@final
class SampledPartitioner(_AtOnce):
    """Disjoint random samples of equal size; see ``flfw.data.splits.domains``.

    Args:
        num_partitions: clients.
        examples: per client.
        seed: seed of the draws.
    """

    def __init__(self, num_partitions: int, examples: int, seed: int = 0) -> None:
        super().__init__(num_partitions)
        self._examples, self._seed = examples, seed

    def _assign(self) -> Sequence[np.ndarray]:
        rng = numpy_generator(self._seed, "split")
        return domains.draw_sampled(self.dataset.num_rows, self.num_partitions, self._examples, 0, rng)[0]


@final
class DomainPartitioner(_AtOnce):
    """A domain a client; see ``flfw.data.splits.domains``.

    Args:
        num_partitions: number of clients; client i holds the domain in place ``i mod len(domains)``.
        partition_by: the column of domains.
        domains: the domains that clients hold, in order; no client holds the others.
        examples: per client; 0: each domain is cut evenly among its clients.
        seed: seed of the draws.
    """

    def __init__(
        self, num_partitions: int, partition_by: str, domains: Sequence[str], examples: int = 0, seed: int = 0
    ) -> None:
        super().__init__(num_partitions)
        self._partition_by, self._domains, self._examples, self._seed = partition_by, domains, examples, seed

    def _assign(self) -> Sequence[np.ndarray]:
        column, rng = self._column(self._partition_by), numpy_generator(self._seed, "split")
        return domains.draw(column, self._domains, self.num_partitions, self._examples, rng)


@final
class ShardCopiesPartitioner(_AtOnce):
    """Shards of the table, copied as often as the clients need; see ``flfw.data.splits.shards``.

    Flower's ShardPartitioner does not copy; on a table of copies it would give a client the same example twice.

    Args:
        num_partitions: clients.
        partition_by: the column of labels, 0 and up.
        examples: per client, before rounding down to whole shards.
        num_shards_per_partition: number of shards of each client.
        seed: seed of the draws.
    """

    def __init__(
        self, num_partitions: int, partition_by: str, examples: int, num_shards_per_partition: int = 2, seed: int = 0
    ) -> None:
        super().__init__(num_partitions)
        self._partition_by, self._examples, self._seed = partition_by, examples, seed
        self._shards = num_shards_per_partition

    def _assign(self) -> Sequence[np.ndarray]:
        labels, rng = self._column(self._partition_by), numpy_generator(self._seed, "split")
        return shards.deal(labels, self.num_partitions, self._examples, self._shards, rng)


@final
class PoolPartitioner(_AtOnce):
    """Samples from a sensitive pool that is a random share of the table; see ``flfw.data.splits.pools``.

    Args:
        num_partitions: clients.
        partition_by: the column of labels.
        examples: per client.
        share: share of the table in the sensitive pool, 0 < share <= 1.
        classes: number of random classes of each client; 0: a client draws from all classes alike.
        seed: seed of the draws.
    """

    def __init__(
        self,
        num_partitions: int,
        partition_by: str,
        examples: int,
        share: float = 0.25,
        classes: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_partitions)
        self._partition_by, self._examples, self._seed = partition_by, examples, seed
        self._share, self._classes = share, classes

    def _assign(self) -> Sequence[np.ndarray]:
        labels, rng = self._column(self._partition_by), numpy_generator(self._seed, "split")
        return pools.draw(labels, self.num_partitions, self._examples, self._share, self._classes, rng)[0]


def _rows(partitioner: Partitioner, labels: np.ndarray) -> list[np.ndarray]:
    """Return for each client the positions in ``labels`` (N,) that the partitioner gives it."""
    partitioner.dataset = Table.from_dict({"label": labels, "index": np.arange(len(labels))})
    return [
        np.asarray(partitioner.load_partition(client)["index"][:], dtype=np.int64)
        for client in range(partitioner.num_partitions)
    ]


def dirichlet(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Return each client's positions in ``labels`` (N,): each class is divided in proportions drawn from Dir(alpha).

    A draw that leaves a client empty is not repeated, as that would change the distribution: the caller refuses it.
    """
    order = rng.permutation(len(labels))
    seed = int(rng.integers(2**32))
    partitioner = DirichletPartitioner(clients, "label", alpha, min_partition_size=0, shuffle=False, seed=seed)
    return [order[rows] for rows in _rows(partitioner, labels[order])]


def pathological(labels: np.ndarray, clients: int, classes: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return each client's positions in ``labels`` (N,): ``classes`` random classes, each cut evenly over its clients.

    Raises:
        InputError: ``classes`` exceeds the number of classes, or more clients drew a class than it has examples.
    """
    known = len(np.unique(labels))
    if classes > known:
        raise InputError(f"Expected pathological.classes <= {known}, the classes there are, got classes={classes}.")
    order = rng.permutation(len(labels))
    seed = int(rng.integers(2**32))
    partitioner = PathologicalPartitioner(clients, "label", classes, "random", shuffle=False, seed=seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Classes: .* will NOT be used")  # part of the scheme
        try:
            rows = _rows(partitioner, labels[order])
        except ValueError as error:  # the only case that Flower still refuses
            raise InputError(
                f"Expected an example of each class for every client that draws it, got clients={clients} "
                f"pathological.classes={classes} of {len(labels)} examples; take fewer --clients or another --seed."
            ) from error
    return [order[positions] for positions in rows]
