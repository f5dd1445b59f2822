"""Canaries: training examples with a wrong label, of which a fair coin each decides whether its client has them at all.

Who knows the canaries but not the coins can try to tell from a run who was there. How often that succeeds bounds the
run's epsilon from below, in `flfw.dp.canary_audit`. Without canaries nothing of this is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from flfw.data.splits.partition import Split
from flfw.errors import require
from flfw.rng import numpy_generator


@final
@dataclass(frozen=True)
class Canaries:
    """M training examples and what became of them.

    Attributes:
        indices: (M,) into ``train_x``, ascending, none twice.
        holders: (M,) the client of each, which alone would hold it.
        labels: (M,) that they are trained with, each a wrong one.
        included: (M,) bool, whether the coin put it into the training data.
    """

    indices: np.ndarray
    holders: np.ndarray
    labels: np.ndarray
    included: np.ndarray


def draw(split: Split, labels: np.ndarray, classes: int, count: int, seed: int) -> Canaries:
    """Choose canaries, as evenly over the clients as their data allow, and toss the coins.

    A canary that a second client held would be trained on whatever its coin says: only examples of one client are
    chosen. The choice, the labels and the coins are three draws, each of a generator of its own.

    Args:
        split: who holds what.
        labels: (N,) of the training part.
        classes: number of labels.
        count: M >= 1.
        seed: of the draws.

    Raises:
        BadInput: fewer than M examples are held by exactly one client, or there is but one class.
    """
    require(classes >= 2, "at least two classes for canaries with wrong labels", classes=classes)
    held, copies = np.unique(np.concatenate(split.train), return_counts=True)
    rng = numpy_generator(seed, "canaries")
    own = [rng.permutation(np.intersect1d(indices, held[copies == 1])) for indices in split.train]
    there = sum(map(len, own))
    require(count <= there, f"at most {there} canaries, the examples that exactly one client holds", canaries=count)
    holders = np.repeat(np.arange(len(own)), [len(indices) for indices in own])
    turns = np.concatenate([np.arange(len(indices)) for indices in own])
    dealt = np.lexsort((holders, turns))[:count]  # one of each client, then a second of each, and so on
    indices = np.concatenate(own)[dealt]
    order = np.argsort(indices)
    indices, holders = indices[order], holders[dealt][order]
    moved = numpy_generator(seed, "labels of canaries").integers(1, classes, count)
    included = numpy_generator(seed, "coins of canaries").random(count) < 0.5
    return Canaries(indices, holders, (labels[indices] + moved) % classes, included)


def without_left_out(split: Split, canaries: Canaries) -> Split:
    """The split in which the canaries that were left out are nobody's; all else stays as it is, and in its order.

    Raises:
        BadInput: a client would be left without training data.
    """
    left_out = canaries.indices[~canaries.included]
    train = tuple(own[~np.isin(own, left_out)] for own in split.train)
    fewest = min(range(len(train)), key=lambda client: len(train[client]))
    require(len(train[fewest]) > 0, f"fewer canaries, so that client {fewest} has training data", left=0)
    return replace(split, train=train)


def relabelled(labels: np.ndarray, canaries: Canaries) -> np.ndarray:
    """The training part's labels (N,) with those of the canaries, in a new array."""
    changed = np.array(labels)
    changed[canaries.indices] = canaries.labels
    return changed
