"""DCS^2's split: clients draw from a sensitive pool, and the rest of the training part is public.

A random ``share`` of the training part is the sensitive pool, from which clients draw without replacement: iid, or
each from a few classes of its own. The rest is the proxy pool, from which a client's defence may start. The test part
is shuffled and cut evenly.
"""

from __future__ import annotations

import numpy as np

from flfw.data.cut import Cut, at_most, even, own_train, trainable
from flfw.data.dataset import Dataset
from flfw.data.schemes import Pools
from flfw.errors import BadInput


def draw(
    labels: np.ndarray, clients: int, train: int, share: float, classes: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Disjoint positions in ``labels`` (N,): ``train`` for each client, and the proxy pool.

    Args:
        labels: of all examples.
        clients: how many there are.
        train: examples a client.
        share: of the examples that are the sensitive pool, 0 < share <= 1.
        classes: of each client, as evenly as can be; 0: the client draws from all classes alike.
        rng: what is random.

    Raises:
        BadInput: the sensitive pool has too few examples for so many clients, or there are too few classes.
    """
    sensitive, proxy = np.split(rng.permutation(len(labels)), [round(share * len(labels))])
    if classes:
        return _by_classes(labels, sensitive, clients, train, classes, rng), proxy
    at_most(len(sensitive) // train, clients, f"each takes {train} of a sensitive pool of {len(sensitive)} examples")
    return np.split(sensitive[: clients * train], clients), proxy


def _by_classes(
    labels: np.ndarray, sensitive: np.ndarray, clients: int, train: int, classes: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Client after client draws its classes among those that still have enough, and takes its share of each."""
    known = len(np.unique(labels))
    if classes > min(train, known):
        raise BadInput(
            f"Expected pools.classes <= {min(train, known)}, of {train} examples a client and {known} classes, "
            f"got classes={classes}; 0 draws from all classes alike."
        )
    left = {label: sensitive[labels[sensitive] == label] for label in np.unique(labels).tolist()}
    shares = [len(part) for part in np.array_split(np.arange(train), classes)]
    partitions = []
    for client in range(clients):
        enough = [label for label, rows in left.items() if len(rows) >= shares[0]]
        if len(enough) < classes:
            reason = f"then fewer than {classes} classes of the sensitive pool have {shares[0]} examples left"
            at_most(client, clients, reason)
        drawn = rng.choice(enough, classes, replace=False).tolist()
        partitions.append(np.concatenate([left[label][:n] for label, n in zip(drawn, shares, strict=True)]))
        left |= {label: left[label][n:] for label, n in zip(drawn, shares, strict=True)}
    return partitions


def divide(dataset: Dataset, scheme: Pools, clients: int, rng: np.random.Generator) -> Cut:
    """The split of a data set; victims are in neither pool."""
    at_most(len(dataset.test_y), clients, f"{dataset.name} has {len(dataset.test_y)} test examples")
    pool, train = trainable(dataset), own_train(dataset, "pools", scheme.train)
    drawn, proxy = draw(np.asarray(dataset.train_y)[pool], clients, train, scheme.share, scheme.classes, rng)
    return Cut([pool[rows] for rows in drawn], even(len(dataset.test_y), clients, rng), proxy=pool[proxy])
