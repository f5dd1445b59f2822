"""Split of one data set in FedCG: a random sample for each client and one, unlabelled, for the server.

Wu et al., IJCAI 2022. Each client holds 2,000 training examples, the server at most 32,000 others to distil from; the
official test part is halved into validation and test, and each half is cut evenly among the clients.

With ``halves=alternate`` every other test example is for validation, at every seed: what is chosen with one seed has
then never seen what another seed is tested on.
"""

from __future__ import annotations

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.schemes import Sampled
from flfw.data.splits.split_indices import SplitIndices, at_most, even, train_size, trainable


def draw(
    examples: int, clients: int, train: int, distillation: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw disjoint positions below ``examples``: ``train`` for each client, and at most ``distillation`` of the rest.

    Raises:
        InputError: there are not ``train`` examples for each client.
    """
    way = "take fewer --clients, or fewer examples with --set sampled.train=N"  # 2,000 are more than small sets have
    at_most(examples // train, clients, f"each takes {train} of {examples} training examples", way)
    order = rng.permutation(examples)
    taken = clients * train
    return np.split(order[:taken], clients), order[taken : taken + distillation]


def divide(dataset: Dataset, scheme: Sampled, clients: int, rng: np.random.Generator) -> SplitIndices:
    """Split a data set into random samples; no client or server holds a victim."""
    pool, train = trainable(dataset), train_size(dataset, "sampled", scheme.train)
    drawn, spare = draw(len(pool), clients, train, scheme.distillation, rng)
    test, validation = _halves(len(dataset.test_y), scheme, clients, rng)
    return SplitIndices([pool[rows] for rows in drawn], test, validation, distillation=pool[spare])


def _halves(
    examples: int, scheme: Sampled, clients: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Cut the test part into the clients' test and validation examples."""
    if scheme.halves == "drawn":
        parts = even(examples, 2 * clients, rng)
        return parts[clients:], parts[:clients]
    first, second = (np.arange(start, examples, 2) for start in (0, 1))
    test, validation = ([half[part] for part in even(len(half), clients, rng)] for half in (second, first))
    return test, validation
