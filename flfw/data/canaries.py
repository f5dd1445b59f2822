"""Canaries: training examples with a wrong label, each put into its client's data or left out by a fair coin.

An auditor that knows the canaries but not the coins guesses from a run which canaries were in. The number of right
guesses bounds the run's epsilon from below, see `flfw.dp.canary_audit`. Without canaries none of this is computed.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from flfw.data.splits.lazy_parts import looked_at
from flfw.data.splits.partition import Split
from flfw.errors import require
from flfw.rng import numpy_generator


@final
@dataclass(frozen=True)
class Canaries:
    """M canaries, their wrong labels and the results of their coins.

    Attributes:
        indices: (M,) indices into ``train_x``, ascending, none twice.
        holders: (M,) the only client that would hold each canary.
        labels: (M,) labels used in training, each a wrong one.
        included: (M,) bool, whether the coin put it into the training data.
    """

    indices: np.ndarray
    holders: np.ndarray
    labels: np.ndarray
    included: np.ndarray


def draw(split: Split, labels: np.ndarray, classes: int, count: int, seed: int) -> Canaries:
    """Choose canaries, as evenly over the clients as their data allow, and toss the coins.

    If two clients held a canary, it would be trained on whatever its coin says. So only examples of one client are
    chosen. The choice, the labels and the coins are three draws, each with its own generator.

    Args:
        split: indices of the examples that each client holds.
        labels: (N,) labels of the training part.
        classes: number of labels.
        count: M >= 1.
        seed: seed of the draws.

    Raises:
        InputError: fewer than M examples are held by exactly one client, there is only one class, or there are very
            many clients, whose data are drawn on demand.
    """
    require(classes >= 2, "at least two classes for canaries with wrong labels", classes=classes)
    few = f"at most {len(looked_at(split.train)):,} clients for canaries, since whoever holds an example must be found"
    require(len(looked_at(split.train)) == len(split.train), few, clients=len(split.train))
    held, copies = np.unique(np.concatenate(split.train), return_counts=True)
    rng = numpy_generator(seed, "canaries")
    candidates = [rng.permutation(np.intersect1d(indices, held[copies == 1])) for indices in split.train]
    there = sum(map(len, candidates))
    require(count <= there, f"at most {there} canaries, the examples that exactly one client holds", canaries=count)
    holders = np.repeat(np.arange(len(candidates)), [len(indices) for indices in candidates])
    turns = np.concatenate([np.arange(len(indices)) for indices in candidates])
    dealt = np.lexsort((holders, turns))[:count]  # one of each client, then a second of each, and so on
    indices = np.concatenate(candidates)[dealt]
    order = np.argsort(indices)
    indices, holders = indices[order], holders[dealt][order]
    moved = numpy_generator(seed, "labels of canaries").integers(1, classes, count)
    included = numpy_generator(seed, "coins of canaries").random(count) < 0.5
    return Canaries(indices, holders, (labels[indices] + moved) % classes, included)


def without_left_out(split: Split, canaries: Canaries) -> Split:
    """Return the split without the canaries that were left out; everything else stays, in the same order.

    Raises:
        InputError: a client would be left without training data.
    """
    left_out = canaries.indices[~canaries.included]
    train = tuple(indices[~np.isin(indices, left_out)] for indices in split.train)
    fewest = min(range(len(train)), key=lambda client: len(train[client]))
    require(len(train[fewest]) > 0, f"fewer canaries, so that client {fewest} has training data", left=0)
    return replace(split, train=train)


def relabelled(labels: np.ndarray, canaries: Canaries) -> np.ndarray:
    """Return a copy of the training part's labels (N,) with the canaries' wrong labels."""
    changed = np.array(labels)
    changed[canaries.indices] = canaries.labels
    return changed
