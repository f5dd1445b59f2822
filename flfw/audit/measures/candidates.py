"""Candidates held against a message: whether it points to the true data among other data of the same client.

A reconstruction shows only what a search found. Somebody who holds candidates needs no search: they compute how well
each candidate explains the message. This uses all of the message, so that it may point to the truth where every
reconstruction fails.

Candidates are other examples of the same client and the same classes. The victims are drawn at random from the client's
data, so that before the message is seen, the true batch and the candidates are exchangeable: also where the client's
data are unlike all others, and where the model was trained on them. If the message depends on nothing but which client
and which classes it is from, the truth explains it best with a probability of 1 / (1 + candidates). No example is a
candidate for two messages, so that these events are independent.

Where a client has copies of examples, as after oversampling, candidates may be copies of the truth. Equal data explain
a message equally well, so that they count as one: it comes first with a probability of its number / (1 + candidates).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf, isfinite

import numpy as np

from flfw.audit.measures.identification import Identified, convolved, identified_p


def disjoint_candidates(
    labels: Sequence[np.ndarray], pool: np.ndarray, rng: np.random.Generator, maximum: int = 99
) -> list[np.ndarray]:
    """Draw candidates for each message of a client from a pool, each example at most once for all messages together.

    Args:
        labels: for each message the classes (B,) of its batch.
        pool: the classes (N,) of the examples in the pool, among which is none of these batches.
        rng: generator of the drawing.
        maximum: most candidates of a message.

    Returns:
        For each message (n, B): the places in the pool of n batches of the same classes in the same order. n is 0 where
        a class has too few examples.

    >>> zero, one = np.array([0]), np.array([1])
    >>> drawn = disjoint_candidates([zero, zero, one], np.array([0, 0, 0, 0, 1]), np.random.default_rng(0))
    >>> [len(places) for places in drawn]
    [2, 2, 1]
    """
    wanted = Counter(int(label) for classes in labels for label in classes)
    places_of = {label: rng.permutation(np.flatnonzero(pool == label)) for label in sorted(wanted)}
    share = {label: len(indices) // wanted[label] for label, indices in places_of.items()}
    taken: Counter[int] = Counter()
    drawn = []
    for classes in labels:
        count = min([maximum, *(share[int(label)] for label in classes)])
        indices = np.empty((count, len(classes)), np.intp)
        for column, label in enumerate(map(int, classes)):
            indices[:, column] = places_of[label][taken[label] : taken[label] + count]
            taken[label] += share[label]
        drawn.append(indices)
    return drawn


def candidate_test(
    counts: Sequence[int],
    explain: Callable[[int], Sequence[float] | None],
    alike: Callable[[int], np.ndarray] | None = None,
) -> Identified | None:
    """Count the messages that their true data explain better than all candidates do, and test whether this is chance.

    Args:
        counts: number of candidates of each message; messages without any are left out, copies of the truth apart.
        explain: computes how badly the truth and the candidates explain a message, by its place, the truth first. None:
            it cannot be computed, and the message is left out.
        alike: numbers (1 + candidates,) the data behind these values; equal data have one number. None: all differ.

    Returns:
        The count among the other messages, its null and p; None: there is no such message.

    >>> result = candidate_test([99] * 3, lambda message: [0.0, *[1.0] * 99])
    >>> result.count, result.compared, round(1e6 * result.p)
    (3, 3, 1)
    """
    first, nulls = [], []
    for index, count in enumerate(counts):
        values = explain(index) if count else None
        if values is not None:
            same = np.arange(1 + count) if alike is None else alike(index)
            if (same == same[0]).all():  # copies of the truth alone
                continue
            first.append(_is_first(values, same))
            chance = _share_of_best(values, same)
            nulls.append(np.array([1 - chance, chance]))
    if not first:
        return None
    return Identified(sum(first), len(first), convolved(nulls), identified_p(first, nulls))


def _is_first(values: Sequence[float], same: np.ndarray) -> int:
    """Return 1 if the truth explains a message better than all other data; a tie, or no number, is no sign of it."""
    others = [value for value, one in zip(values, same, strict=True) if one != same[0]]
    return int(isfinite(values[0]) and all(value > values[0] for value in others))


def _share_of_best(values: Sequence[float], same: np.ndarray) -> float:
    """Return the share of the data that explain a message best, their copies counted; the truth is any of them."""
    best = int(np.argmin([value if isfinite(value) else inf for value in values]))
    return float(np.mean(same == same[best]))


def numbered(batches: Sequence[np.ndarray]) -> np.ndarray:
    """Number batches (B, ...) by their bytes: equal ones have one number.

    >>> one, other = np.zeros((1, 2)), np.ones((1, 2))
    >>> numbered([one, other, one.copy()]).tolist()
    [0, 1, 0]
    """
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(batch.tobytes(), len(numbers)) for batch in batches])
