"""Fed-CDP's split: every client holds a few random shards of the training part sorted by label.

Wei et al., ICDCS 2021, after McMahan et al. (AISTATS 2017). The training part is copied as often as K clients of
``train`` examples need, sorted by label and cut into shards of ``train // shards`` examples, of which each client gets
``shards``, 2 (15 for LFW): 100 clients of 500 of 50,000 examples hold each example once, 1,000 clients ten times.

The papers keep the last 10,000 training images for validation and measure on these; here ``shards.pool=50000`` keeps
them out of training likewise, while accuracy is measured on the official test part, cut evenly: a departure. On
CIFAR-10 the 2,000 victims are left out as well: of the 38,000 others in its first 40,000, for 100 clients of 400 one in
eleven is in two clients; with ``shards.pool=42000`` each is in one.

So that no client holds an example twice, shards are dealt as numbers of examples of each class, and each class is
then handed out in file order, client after client and round and round: two copies of an example are always a whole
class apart. A client whose shards hold more of a class than there are different examples (as classes smaller than a
few shards) exchanges the surplus, see `_feasible`.
"""

from __future__ import annotations

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.cut import Cut, own_train, test_parts, trainable
from flfw.data.splits.schemes import Everything, Shards
from flfw.errors import BadInput


def deal(labels: np.ndarray, clients: int, train: int, shards: int, rng: np.random.Generator) -> list[np.ndarray]:
    """For each client ``train`` positions, rounded down to whole shards, in ``labels`` (N,), none of them twice.

    Raises:
        BadInput: more examples a client than there are, shards of none, or a surplus nobody can take.
    """
    if not shards <= train <= len(labels):
        raise BadInput(
            f"Expected shards.shards <= shards.train <= {len(labels)}, the examples there are, "
            f"got shards={shards} train={train}; pass --set shards.train=... or --set shards.shards=..."
        )
    copies = -(-clients * train // len(labels))
    size = train // shards
    in_order = np.sort(np.tile(labels, copies))
    dealt = rng.permutation(len(in_order) // size)[: clients * shards].reshape(clients, shards)
    runs = in_order[: len(in_order) // size * size].reshape(-1, size)
    sizes = np.bincount(labels)
    quotas = np.stack([np.bincount(runs[own].ravel(), minlength=len(sizes)) for own in dealt])
    pools = [np.flatnonzero(labels == label) for label in range(len(sizes))]
    return _hand_out(pools, _feasible(quotas, sizes, rng))


def _hand_out(pools: list[np.ndarray], quotas: np.ndarray) -> list[np.ndarray]:
    """For each client its quota (clients, classes) of every class's pool, from where the client before it stopped."""
    starts = np.cumsum(quotas, axis=0) - quotas
    return [
        np.concatenate([pool.take(np.arange(start, start + n), mode="wrap") for pool, start, n in runs if n])
        for runs in (zip(pools, first, quota, strict=True) for first, quota in zip(starts, quotas, strict=True))
    ]


def _feasible(quotas: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of examples (clients, classes) such that nobody has more of a class than its size (classes,).

    A surplus goes to a client that has the fewest of that class, a random one of these, for as many examples of the
    class of which this one has most among those that the giver has room for. So the number of examples of each client
    and of each class stays as it was.
    """
    quotas = quotas.copy()
    for client, label in np.argwhere(quotas > sizes):
        while (surplus := quotas[client, label] - sizes[label]) > 0:
            room = np.maximum(sizes - quotas, 0)
            offers = np.minimum(quotas, room[client])  # of each client and class
            takers = rng.permutation(np.flatnonzero((room[:, label] > 0) & offers.any(axis=1)))
            if not len(takers):
                raise BadInput(
                    f"Expected clients without an example twice, got {quotas[client, label]} of the {sizes[label]} "
                    f"examples of class {label} for client {client}; take more shards or fewer examples a client."
                )
            taker = takers[quotas[takers, label].argmin()]
            other = offers[taker].argmax()
            moved = min(surplus, room[taker, label], offers[taker, other])
            quotas[[client, taker], label] += [-moved, moved]
            quotas[[client, taker], other] += [moved, -moved]
    return quotas


def divide(dataset: Dataset, scheme: Shards, clients: int, rng: np.random.Generator) -> Cut:
    """The split of a data set; victims are left out of the pool."""
    if scheme.pool > len(dataset.train_y):
        raise BadInput(
            f"Expected shards.pool <= {len(dataset.train_y)}, the training part of {dataset.name}, "
            f"got pool={scheme.pool}; 0 takes all of it."
        )
    pool = trainable(dataset)
    pool = pool[pool < scheme.pool] if scheme.pool else pool
    train = own_train(dataset, "shards", scheme.train)
    dealt = deal(np.asarray(dataset.train_y)[pool], clients, train, scheme.shards, rng)
    return Cut([pool[rows] for rows in dealt], test_parts(dataset, clients, rng))


def everything(dataset: Dataset, scheme: Everything, clients: int, rng: np.random.Generator) -> Cut:
    """Fed-CDP's small tables: every client trains on all that are no victims; the test part is cut evenly."""
    return Cut([trainable(dataset)] * clients, test_parts(dataset, clients, rng))
