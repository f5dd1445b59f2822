"""Result type of all split schemes, and the cuts that several schemes share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.errors import InputError

_NOTHING = np.zeros(0, dtype=np.int64)


class SplitIndices(NamedTuple):
    """Result of a split scheme: indices of examples, with one array for each client.

    Attributes:
        train: training examples of each client.
        test: test examples of each client.
        validation: validation examples of each client, from the test part; empty: the scheme has none.
        distillation: training examples for the server.
        proxy: training examples for the clients' defences.
    """

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    validation: Sequence[np.ndarray] = ()
    distillation: np.ndarray = _NOTHING
    proxy: np.ndarray = _NOTHING


class SplitScheme(ABC):
    """Way to cut a data set: a frozen dataclass with its settings as fields, ``--set scheme.field=value``.

    One of a user's own is set by ``--set Class.field=value``.
    """

    @abstractmethod
    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Cut a data set.

        Args:
            dataset: the data; ``dataset.victims`` are no client's.
            clients: number of clients, >= 1.
            rng: generator of all random choices.
        """


def trainable(dataset: Dataset) -> np.ndarray:
    """Return the indices of the training examples that are no victims, in order."""
    return np.setdiff1d(np.arange(len(dataset.train_y)), dataset.victims)


def even(examples: int, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle the positions below ``examples`` and cut them into parts with sizes that differ by at most one."""
    return np.array_split(rng.permutation(examples), parts)


def test_parts(dataset: Dataset, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Cut the test part evenly; with more clients than examples, clients reuse the parts in turn."""
    parts = even(len(dataset.test_y), max(1, min(clients, len(dataset.test_y))), rng)
    return [parts[client % len(parts)] for client in range(clients)]


def train_size(dataset: Dataset, scheme: str, train: int) -> int:
    """Return ``train``, the number of examples a client; 0 is replaced by the data set's default for that scheme.

    Raises:
        InputError: ``train`` is 0 and the data set has no default.
    """
    examples = train or dataset.per_client.get(scheme, (0, 0))[0]
    if not examples:
        raise InputError(
            f"Expected the number of training examples a client, as {dataset.name} has none of its own for {scheme}, "
            f"got {scheme}.train=0; pass --set {scheme}.train=500."
        )
    return examples


def at_most(maximum: int, clients: int, reason: str, way: str = "take fewer --clients") -> None:
    """Refuse more than ``maximum`` clients; the error gives the reason and the way out."""
    if clients > maximum:
        noun = "client" if maximum == 1 else "clients"
        raise InputError(f"Expected at most {maximum} {noun}, as {reason}, got clients={clients}; {way}.")
