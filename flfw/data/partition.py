"""Which examples each client holds: iid, by Dirichlet proportions, or the papers' dominant classes.

A split is computed once and kept in the user's cache, so that client processes read it without Flower's partitioners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from flfw.data import cache, describe, dominant
from flfw.data.dataset import Dataset
from flfw.data.schemes import IID, Dirichlet, Dominant, Scheme, scheme, schemes
from flfw.errors import BadInput
from flfw.rng import numpy_generator

__all__ = ["IID", "Dirichlet", "Dominant", "Scheme", "Split", "scheme", "schemes", "split"]


@dataclass(frozen=True)
class Split:
    """Who holds what.

    Attributes:
        train: for each client int64 indices into ``train_x``, none twice, never a victim.
        test: for each client int64 indices into ``test_x``, none twice, of the client's own mix of classes.
        public: int64 indices into ``test_x`` an attacker may hold: the whole official test part.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    public: np.ndarray


_Partitions: TypeAlias = Sequence[np.ndarray]  # indices of each client


def split(dataset: Dataset, scheme: Scheme, clients: int, seed: int) -> Split:
    """Share the data set out to ``clients`` clients; the same arguments give the same split, in any process.

    Raises:
        BadInput: no clients, one left without training or test data, or a dominant split the data cannot fill.
    """
    if clients < 1:
        raise BadInput(f"Expected clients >= 1, got clients={clients}; pass --clients.")
    if isinstance(scheme, Dominant):
        scheme = _sized(scheme, dataset)
    labels = np.asarray(dataset.train_y).tobytes(), np.asarray(dataset.test_y).tobytes()
    key = cache.digest(*labels, dataset.classes, dataset.victims, dataset.test_start, scheme, clients, seed)
    file = cache.user_cache() / "splits" / f"{dataset.name}-{key}.npz"
    if not file.exists():
        train, test = _divide(dataset, scheme, clients, seed)
        for part, partitions in (("training", train), ("test", test)):
            empty = [client for client, indices in enumerate(partitions) if len(indices) == 0]
            if empty:
                raise BadInput(
                    f"Expected {part} data for each of {clients} clients, got none for client {empty[0]} and "
                    f"{len(empty) - 1} more ({dataset.name}, {scheme}, seed={seed}); take fewer --clients, another "
                    "--split or another --seed."
                )
        cache.publish(file, lambda path: _write(path, train, test))
    return _read(file, public=np.arange(len(dataset.test_y)))


def _divide(dataset: Dataset, scheme: Scheme, clients: int, seed: int) -> tuple[_Partitions, _Partitions]:
    """Training and test indices of each client."""
    if isinstance(scheme, Dominant):
        return _dominant(dataset, scheme, clients)
    pool = np.setdiff1d(np.arange(len(dataset.train_y)), dataset.victims)
    most = min(len(pool), len(dataset.test_y))
    if clients > most:
        raise BadInput(
            f"Expected at most {most} clients, as {dataset.name} has {len(pool)} training examples that are no victims "
            f"and {len(dataset.test_y)} test examples, got clients={clients}; take fewer --clients."
        )
    from flfw.data import partitioners  # imports flwr_datasets, 6 s and 250 MB

    rng = numpy_generator(seed, "split")
    if isinstance(scheme, IID):
        train = partitioners.iid(dataset.train_y[pool], clients, rng)
        return [pool[rows] for rows in train], partitioners.iid(np.asarray(dataset.test_y), clients, rng)
    train = [pool[rows] for rows in partitioners.dirichlet(dataset.train_y[pool], clients, scheme.alpha, rng)]
    return train, _alike(dataset, train)


def _by_class(labels: np.ndarray, classes: int, leave_out: range = range(0)) -> list[np.ndarray]:
    """For each class its indices in ``labels`` (N,), in order, without those of ``leave_out``."""
    return [np.setdiff1d(np.flatnonzero(labels == label), leave_out) for label in range(classes)]


def _alike(dataset: Dataset, train: _Partitions) -> list[np.ndarray]:
    """Test indices of each client, about its share of the test part, in the class proportions of its training data.

    A class asked for more often than the test part has it is given whole, so that nothing is repeated.
    """
    pools = _by_class(dataset.test_y, dataset.classes)
    size = len(dataset.test_y) // len(train)
    most = [len(pool) for pool in pools]
    client_quotas = []
    for indices in train:
        exact = np.bincount(dataset.train_y[indices], minlength=dataset.classes) * size / max(1, len(indices))
        quota = np.floor(exact).astype(np.int64)
        # Largest remainders: what flooring lost goes to the classes that lost most.
        quota[np.argsort(quota - exact, kind="stable")[: round(exact.sum()) - quota.sum()]] += 1
        client_quotas.append(np.minimum(quota, most))
    return dominant.assign(pools, client_quotas, [0] * len(pools))


def _sized(scheme: Dominant, dataset: Dataset) -> Dominant:
    """The scheme with the data set's own numbers in place of zeros."""
    dominant.groups(dataset.classes)
    if scheme.train and scheme.test:
        return scheme
    own = describe(dataset.name).per_client
    if own is None:
        raise BadInput(
            f"Expected the numbers of examples a client, as {dataset.name} has none of its own, got {scheme}; "
            "pass --set dominant.train=600 dominant.test=600."
        )
    return replace(scheme, train=scheme.train or own[0], test=scheme.test or own[1])


def _dominant(dataset: Dataset, scheme: Dominant, clients: int) -> tuple[_Partitions, _Partitions]:
    """The papers' split; no client trains on a victim.

    HyperFL's code starts CIFAR-10's pointers at 2000 (train) and 500 (test); the paper does not say of what. Here
    they count images of the whole part, so that training begins behind the 2,000 victims and, as these are left out of
    the pools, never returns to them. Counted within each class (5,000 and 1,000 images) they would give clients the
    same numbers of other images, and from client 36 on wrap into the victims.
    """
    train_pools = _by_class(dataset.train_y, dataset.classes, leave_out=dataset.victims)
    test_pools = _by_class(dataset.test_y, dataset.classes)
    test_starts = [int(np.searchsorted(pool, dataset.test_start)) for pool in test_pools]
    partitions = []
    for part, pools, starts, examples in (
        ("train", train_pools, [0] * len(train_pools), scheme.train),
        ("test", test_pools, test_starts, scheme.test),
    ):
        client_quotas = [dominant.quotas(dataset.classes, client, examples) for client in range(clients)]
        for label, pool in enumerate(pools):
            wanted = max(quota[label] for quota in client_quotas)
            if wanted > len(pool):
                raise BadInput(
                    f"Expected at most {len(pool)} examples of class {label} a client, all that the {part} part of "
                    f"{dataset.name} has, got {wanted} from {part}={examples}; ask for less or take another --split."
                )
        partitions.append(dominant.assign(pools, client_quotas, starts))
    return partitions[0], partitions[1]


def _write(path: Path, train: _Partitions, test: _Partitions) -> None:
    """Two arrays a part: all clients' indices behind each other, and how many each client has."""
    with path.open("wb") as file:
        np.savez(
            file,
            train=np.concatenate(train),
            train_sizes=[len(indices) for indices in train],
            test=np.concatenate(test),
            test_sizes=[len(indices) for indices in test],
        )


def _read(path: Path, public: np.ndarray) -> Split:
    """What ``_write`` wrote."""
    with np.load(path) as arrays:
        train, test = (
            tuple(np.split(arrays[part], np.cumsum(arrays[f"{part}_sizes"])[:-1])) for part in ("train", "test")
        )
    return Split(train, test, public)
