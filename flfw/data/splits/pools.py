"""Split of DCS^2: clients draw from a sensitive pool, and the rest of the training part is public.

A random ``share`` of the training part is the sensitive pool. Clients draw from it: iid, or each from a few random
classes. The rest is the proxy pool for the clients' defences. The test part is shuffled and cut evenly.

Clients draw without replacement, one after the other. Once the pool is used up, they begin again, and then clients
share examples: the paper's 10 clients with 2,000 CIFAR-10 images each do not fit into a quarter of 50,000. No client
holds an example twice.
"""

from dataclasses import dataclass

import numpy as np

from flfw.bounds import BoundedSettings, NonNegativeInt, PositiveShare
from flfw.data.files.dataset import Dataset
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, at_most, even, train_size, trainable
from flfw.errors import InputError


def draw(
    labels: np.ndarray, clients: int, train: int, share: float, classes: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw positions in ``labels`` (N,): ``train`` for each client, and the proxy pool, disjoint from all of these.

    Args:
        labels: labels of all examples.
        clients: number of clients.
        train: examples a client.
        share: share of the examples in the sensitive pool, 0 < share <= 1.
        classes: number of classes of each client, in nearly equal parts; 0: a client draws from all classes alike.
        rng: generator of the draws.

    Raises:
        InputError: the sensitive pool has too few examples, or too few classes with enough examples, for one client.
    """
    sensitive, proxy = np.split(rng.permutation(len(labels)), [round(share * len(labels))])
    if classes:
        return _by_classes(labels, sensitive, clients, train, classes, rng), proxy
    if train > len(sensitive):
        raise InputError(
            f"Expected pools.train <= {len(sensitive)}, the sensitive pool, got train={train}; "
            "ask for less or raise pools.share."
        )
    return [_next(sensitive, client * train, train) for client in range(clients)], proxy


def _next(pool: np.ndarray, start: int, count: int) -> np.ndarray:
    """Return ``count`` <= len(pool) entries from ``start`` on, wrapping around at the end."""
    return pool.take(np.arange(start, start + count), mode="wrap")


def _by_classes(
    labels: np.ndarray, sensitive: np.ndarray, clients: int, train: int, classes: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw each client's classes among the large enough ones, and take its share of each."""
    shares = [len(part) for part in np.array_split(np.arange(train), classes)]
    pools = [sensitive[labels[sensitive] == label] for label in np.unique(labels)]
    pools = [pool for pool in pools if len(pool) >= max(1, shares[0])]
    if not 0 < classes <= min(train, len(pools)):
        raise InputError(
            f"Expected pools.classes <= {min(train, len(pools))}, as {len(pools)} classes of the sensitive pool have "
            f"{shares[0]} examples for a client of {train}, got classes={classes}; 0 draws from all classes alike."
        )
    taken = [0] * len(pools)
    partitions = []
    for _ in range(clients):
        indices = []
        for index, count in zip(rng.choice(len(pools), classes, replace=False).tolist(), shares, strict=True):
            indices.append(_next(pools[index], taken[index], count))
            taken[index] += count
        partitions.append(np.concatenate(indices))
    return partitions


@dataclass(frozen=True)
class Pools(SplitScheme, BoundedSettings):
    """Samples from a sensitive pool; the rest of the data is public, see ``flfw.data.splits.pools``."""

    NAMED = "pools."
    train: NonNegativeInt = 0  # examples a client
    share: PositiveShare = 0.25  # share of the training part in the sensitive pool; 0 < share <= 1
    classes: NonNegativeInt = 0  # number of random classes of each client; 0: iid

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Split a data set into pools; victims are in neither pool."""
        at_most(len(dataset.test_y), clients, f"{dataset.name} has {len(dataset.test_y)} test examples")
        pool, train = trainable(dataset), train_size(dataset, "pools", self.train)
        drawn, proxy = draw(np.asarray(dataset.train_y)[pool], clients, train, self.share, self.classes, rng)
        return SplitIndices([pool[rows] for rows in drawn], even(len(dataset.test_y), clients, rng), proxy=pool[proxy])
