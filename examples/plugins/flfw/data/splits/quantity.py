"""Quantity skew: clients have the same mixture of classes, but numbers of examples in proportions from Dir(alpha)."""

import math
from dataclasses import dataclass

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, test_parts, trainable
from flfw.errors import require


@dataclass(frozen=True)
class Quantity(SplitScheme):
    """Uneven numbers of examples, see ``flfw.data.splits.quantity``."""

    alpha: float = 0.5  # > 0; a small value gives some clients few examples

    def __post_init__(self) -> None:
        require(0 < self.alpha < math.inf, "quantity.alpha > 0", alpha=self.alpha)

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Shuffle the training part and cut it unevenly; a client may be left empty."""
        pool = rng.permutation(trainable(dataset))
        shares = rng.dirichlet(np.full(clients, self.alpha))
        ends = np.round(np.cumsum(shares)[:-1] * len(pool)).astype(np.int64)
        return SplitIndices(np.split(pool, ends), test_parts(dataset, clients, rng))
