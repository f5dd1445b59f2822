"""Split of Fed-CDP: every client holds a few random shards of the training part sorted by label.

Wei et al., ICDCS 2021, after McMahan et al. (AISTATS 2017). The training part is copied as often as K clients with
``train`` examples need, sorted by label and cut into shards of ``train // shards`` examples. Each client gets
``shards`` of them, 2 (15 for LFW). With 500 of 50,000 examples a client, 100 clients hold each example once, 1,000
clients ten times.

The papers validate on the last 10,000 training images and report accuracy on these. Here ``shards.pool=50000`` also
keeps them out of training, but accuracy is measured on the official test part, cut evenly: a departure. On CIFAR-10 the
2,000 victims are left out as well, so 38,000 of the first 40,000 remain: for 100 clients with 400 examples each, one in
eleven is in two clients; with ``shards.pool=42000`` each is in one.

No client holds an example twice: shards are dealt as numbers of examples of each class. Each class is then handed out
in file order, client after client, starting again at its end: two copies of an example are always a whole class apart.
If the shards of a client have more examples of a class than the class has (a class smaller than a few shards), the
client exchanges the surplus, see `_feasible`.
"""

from dataclasses import dataclass

import numpy as np

from flfw.bounds import BoundedSettings, NonNegativeInt, PositiveInt
from flfw.data.files.dataset import Dataset
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, test_parts, train_size, trainable
from flfw.errors import InputError


def deal(labels: np.ndarray, clients: int, train: int, shards: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal each client ``train`` positions in ``labels`` (N,), rounded down to whole shards, none of them twice.

    Raises:
        InputError: more examples a client than there are, empty shards, or a surplus that no client can take.
    """
    if not shards <= train <= len(labels):
        raise InputError(
            f"Expected shards.shards <= shards.train <= {len(labels)}, the examples there are, "
            f"got shards={shards} train={train}; pass --set shards.train=... or --set shards.shards=..."
        )
    copies = -(-clients * train // len(labels))
    size = train // shards
    in_order = np.sort(np.tile(labels, copies))
    dealt = rng.permutation(len(in_order) // size)[: clients * shards].reshape(clients, shards)
    runs = in_order[: len(in_order) // size * size].reshape(-1, size)
    sizes = np.bincount(labels)
    quotas = np.stack([np.bincount(runs[shard_ids].ravel(), minlength=len(sizes)) for shard_ids in dealt])
    pools = [np.flatnonzero(labels == label) for label in range(len(sizes))]
    return _hand_out(pools, _feasible(quotas, sizes, rng))


def _hand_out(pools: list[np.ndarray], quotas: np.ndarray) -> list[np.ndarray]:
    """Give each client its quota (clients, classes) of every class's pool, from the end of the previous client's."""
    starts = np.cumsum(quotas, axis=0) - quotas
    return [
        np.concatenate([pool.take(np.arange(start, start + n), mode="wrap") for pool, start, n in runs if n])
        for runs in (zip(pools, first, quota, strict=True) for first, quota in zip(starts, quotas, strict=True))
    ]


def _feasible(quotas: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Exchange examples in quotas (clients, classes) until no client has more of a class than its size (classes,).

    A surplus goes to a client with the fewest examples of that class (ties broken at random). In exchange that client
    gives as many examples of its largest class among those that the first client has room for. So the number of
    examples of each client and of each class does not change.
    """
    quotas = quotas.copy()
    for client, label in np.argwhere(quotas > sizes):
        while (surplus := quotas[client, label] - sizes[label]) > 0:
            room = np.maximum(sizes - quotas, 0)
            offers = np.minimum(quotas, room[client])  # (clients, classes)
            takers = rng.permutation(np.flatnonzero((room[:, label] > 0) & offers.any(axis=1)))
            if not len(takers):
                raise InputError(
                    f"Expected clients without an example twice, got {quotas[client, label]} of the {sizes[label]} "
                    f"examples of class {label} for client {client}; take more shards or fewer examples a client."
                )
            taker = takers[quotas[takers, label].argmin()]
            other = offers[taker].argmax()
            moved = min(surplus, room[taker, label], offers[taker, other])
            quotas[[client, taker], label] += [-moved, moved]
            quotas[[client, taker], other] += [moved, -moved]
    return quotas


@dataclass(frozen=True)
class Shards(SplitScheme, BoundedSettings):
    """Random runs of the training part sorted by label, see ``flfw.data.splits.shards``."""

    NAMED = "shards."
    train: NonNegativeInt = 0  # examples a client, before rounding down to whole shards
    shards: PositiveInt = 2  # number of shards of each client; 15 for LFW
    pool: NonNegativeInt = 0  # number of first training examples that are dealt; 0: all

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Split a data set into shards; victims are left out of the pool."""
        if self.pool > len(dataset.train_y):
            raise InputError(
                f"Expected shards.pool <= {len(dataset.train_y)}, the training part of {dataset.name}, "
                f"got pool={self.pool}; 0 takes all of it."
            )
        pool = trainable(dataset)
        pool = pool[pool < self.pool] if self.pool else pool
        train = train_size(dataset, "shards", self.train)
        dealt = deal(np.asarray(dataset.train_y)[pool], clients, train, self.shards, rng)
        return SplitIndices([pool[rows] for rows in dealt], test_parts(dataset, clients, rng))


@dataclass(frozen=True)
class FullCopy(SplitScheme):
    """Whole training part for every client; the test part is cut evenly. See ``flfw.data.splits.shards``."""

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Split as for Fed-CDP's small tables: all clients train on all non-victims; the test part is cut evenly."""
        return SplitIndices([trainable(dataset)] * clients, test_parts(dataset, clients, rng))
