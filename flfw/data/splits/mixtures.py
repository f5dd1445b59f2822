"""Benchmark splits by Flower's partitioners: iid, Dirichlet proportions, a few classes a client.

Training data are disjoint. With uneven classes, a client tests on the class proportions of its training data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits import dominant
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, at_most, even, trainable
from flfw.errors import InputError, require


@dataclass(frozen=True)
class IID(SplitScheme):
    """Training and test part, each shuffled and cut into nearly equal, disjoint parts."""

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Shuffle both parts and cut them evenly."""
        pool = _pool(dataset, clients)
        train = even(len(pool), clients, rng)  # as Flower's IidPartitioner cuts a shuffled table
        return SplitIndices([pool[rows] for rows in train], even(len(dataset.test_y), clients, rng))


@dataclass(frozen=True)
class Dirichlet(SplitScheme):
    """Classes of the training part divided disjointly, each in proportions drawn from Dir(alpha)."""

    alpha: float = 0.5  # > 0; a small value gives few classes a client

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InputError(f"Expected alpha > 0, got alpha={self.alpha}; 0.5 is usual, 100 is nearly iid.")

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Divide each class in proportions drawn from Dir(alpha); a client may be left empty."""
        pool = _pool(dataset, clients)
        from flfw.data.splits import partitioners  # imports flwr_datasets, 6 s and 250 MB

        train = [pool[rows] for rows in partitioners.dirichlet(dataset.train_y[pool], clients, self.alpha, rng)]
        return SplitIndices(train, _alike(dataset, train))


@dataclass(frozen=True)
class Pathological(SplitScheme):
    """Random classes for each client; a class is cut evenly over the clients that drew it, and else unused."""

    classes: int = 2  # number of classes of each client

    def __post_init__(self) -> None:
        require(self.classes >= 1, "pathological.classes >= 1", classes=self.classes)

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Give each client ``self.classes`` random classes."""
        pool = _pool(dataset, clients)
        from flfw.data.splits import partitioners

        train = [pool[rows] for rows in partitioners.pathological(dataset.train_y[pool], clients, self.classes, rng)]
        return SplitIndices(train, _alike(dataset, train))


def _pool(dataset: Dataset, clients: int) -> np.ndarray:
    """Return the indices of the training examples without victims; refuse too few examples for the clients."""
    pool, tests = trainable(dataset), len(dataset.test_y)
    reason = f"{dataset.name} has {len(pool)} training examples that are no victims and {tests} test examples"
    at_most(min(len(pool), tests), clients, reason)
    return pool


def _alike(dataset: Dataset, train: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return each client's test indices: its share of the test part, in the class proportions of its training data.

    If a client needs more test examples of a class than there are, it gets the whole class, so nothing is repeated.
    """
    pools = dominant.by_class(dataset.test_y, dataset.classes)
    size = len(dataset.test_y) // len(train)
    most = [len(pool) for pool in pools]
    client_quotas = []
    for indices in train:
        exact = np.bincount(dataset.train_y[indices], minlength=dataset.classes) * size / max(1, len(indices))
        quota = np.floor(exact).astype(np.int64)
        # Largest remainders: the examples lost by rounding down go to the classes with the largest loss.
        quota[np.argsort(quota - exact, kind="stable")[: round(exact.sum()) - quota.sum()]] += 1
        client_quotas.append(np.minimum(quota, most))
    return dominant.assign(pools, client_quotas, [0] * len(pools))
