"""Split of one data set in FedCG: a random sample for each client and one, unlabelled, for the server.

Wu et al., IJCAI 2022. Each client holds 2,000 training examples, the server at most 32,000 others to distil from; the
official test part is halved into validation and test, and each half is cut evenly among the clients.
"""

from __future__ import annotations

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.cut import Cut, at_most, even, train_size, trainable
from flfw.data.splits.schemes import Sampled


def draw(
    examples: int, clients: int, train: int, distillation: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw disjoint positions below ``examples``: ``train`` for each client, and at most ``distillation`` of the rest.

    Raises:
        BadInput: there are not ``train`` examples for each client.
    """
    at_most(examples // train, clients, f"each takes {train} of {examples} training examples")
    order = rng.permutation(examples)
    taken = clients * train
    return np.split(order[:taken], clients), order[taken : taken + distillation]


def divide(dataset: Dataset, scheme: Sampled, clients: int, rng: np.random.Generator) -> Cut:
    """Split a data set into random samples; no client or server holds a victim."""
    pool, train = trainable(dataset), train_size(dataset, "sampled", scheme.train)
    drawn, spare = draw(len(pool), clients, train, scheme.distillation, rng)
    parts = even(len(dataset.test_y), 2 * clients, rng)
    return Cut([pool[rows] for rows in drawn], parts[clients:], parts[:clients], distillation=pool[spare])
