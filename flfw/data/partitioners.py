"""Flower's partitioners, over labels alone. Imported only where a split is computed: flwr_datasets takes seconds."""

from __future__ import annotations

import numpy as np
from datasets import Dataset as Table
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, Partitioner

from flfw.data import dominant


class DominantPartitioner(Partitioner):
    """The papers' dominant-class split for any Flower app; see ``flfw.data.dominant`` for the rule.

    Args:
        num_partitions: clients.
        partition_by: the column of labels 0 to ``classes - 1``.
        classes: 10 or 62.
        examples: per client, before quotas are rounded.
    """

    def __init__(self, num_partitions: int, partition_by: str, classes: int, examples: int) -> None:
        super().__init__()
        self._quotas = [dominant.quotas(classes, client, examples) for client in range(num_partitions)]
        self._partition_by = partition_by
        self._partitions: list[np.ndarray] = []

    def load_partition(self, partition_id: int) -> Table:
        """The rows of one client, class by class."""
        if not self._partitions:
            labels = np.asarray(self.dataset[self._partition_by][:])
            pools = [np.flatnonzero(labels == label) for label in range(len(self._quotas[0]))]
            self._partitions = dominant.assign(pools, self._quotas, [0] * len(pools))
        return self.dataset.select(self._partitions[partition_id])

    @property
    def num_partitions(self) -> int:
        """Clients."""
        return len(self._quotas)


def _rows(partitioner: Partitioner, labels: np.ndarray) -> list[np.ndarray]:
    """For each client the positions in ``labels`` (N,) that the partitioner gives it."""
    partitioner.dataset = Table.from_dict({"label": labels, "index": np.arange(len(labels))})
    return [
        np.asarray(partitioner.load_partition(client)["index"][:], dtype=np.int64)
        for client in range(partitioner.num_partitions)
    ]


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Positions in ``labels`` (N,) of each client: shuffled, then cut into nearly equal parts."""
    order = rng.permutation(len(labels))  # Flower's partitioner cuts the table as it is
    return [order[rows] for rows in _rows(IidPartitioner(clients), labels[order])]


def dirichlet(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Positions in ``labels`` (N,) of each client: each class is shared out in proportions drawn from Dir(alpha).

    A draw that leaves a client empty is not repeated, as that would change the distribution: the caller says so.
    """
    order = rng.permutation(len(labels))
    seed = int(rng.integers(2**32))
    partitioner = DirichletPartitioner(clients, "label", alpha, min_partition_size=0, shuffle=False, seed=seed)
    return [order[rows] for rows in _rows(partitioner, labels[order])]
