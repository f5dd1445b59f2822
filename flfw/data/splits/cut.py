"""What every scheme cuts a data set into, and the cuts that several of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.errors import BadInput

_NOTHING = np.zeros(0, dtype=np.int64)


class Cut(NamedTuple):
    """What a scheme decides: indices of examples, those of the clients one array a client.

    Attributes:
        train: training examples of each client.
        test: test examples of each client.
        validation: test examples of each client that it does not test on; empty: the scheme sets none aside.
        distillation: training examples for the server.
        proxy: training examples for the clients' defences.
    """

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    validation: Sequence[np.ndarray] = ()
    distillation: np.ndarray = _NOTHING
    proxy: np.ndarray = _NOTHING


def trainable(dataset: Dataset) -> np.ndarray:
    """Indices of the training examples that are no victims, in order."""
    return np.setdiff1d(np.arange(len(dataset.train_y)), dataset.victims)


def even(examples: int, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The positions below ``examples``, shuffled and cut into parts whose sizes differ by at most one."""
    return np.array_split(rng.permutation(examples), parts)


def test_parts(dataset: Dataset, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The test part cut evenly; where there are more clients than examples, they take the parts in turn again."""
    parts = even(len(dataset.test_y), max(1, min(clients, len(dataset.test_y))), rng)
    return [parts[client % len(parts)] for client in range(clients)]


def own_train(dataset: Dataset, scheme: str, train: int) -> int:
    """``train`` examples a client, or the data set's own number for that scheme where it is 0.

    Raises:
        BadInput: it is 0 and the data set has no number of its own.
    """
    own = train or dataset.per_client.get(scheme, (0, 0))[0]
    if not own:
        raise BadInput(
            f"Expected the number of training examples a client, as {dataset.name} has none of its own for {scheme}, "
            f"got {scheme}.train=0; pass --set {scheme}.train=500."
        )
    return own


def at_most(most: int, clients: int, reason: str) -> None:
    """Refuse more than ``most`` clients, saying why there is no more room."""
    if clients > most:
        raise BadInput(f"Expected at most {most} clients, as {reason}, got clients={clients}; take fewer --clients.")
