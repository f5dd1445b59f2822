"""Candidates held against a message: whether it points to the true data among public data of the same classes.

A reconstruction shows only what a search found. Somebody who holds candidates needs no search: they compute how well
each candidate explains the message. This uses all of the message, so that it may point to the truth where every
reconstruction fails.

Null hypothesis: the message does not depend on which of (1 + n) batches is the true one: the client's, or one of n that
are drawn from public examples of the same classes. The truth then explains it best with a probability of 1 / (1 + n).
No example is a candidate for two messages, so that these events are independent.

**Limits.** The client's examples must be like the public ones of their class, apart from what identifies them. A model
that was trained on them may prefer them whatever the message is. The control: the messages of other clients must not
point to the truth as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from flfw.audit.measures.identification import CONTROLLED, Identified, convolved, identified_p
from flfw.audit.measures.public import Public

CANDIDATES = 99
_CONTROLS = 7  # other messages that are held against the candidates of each

Explain = Callable[[int, int], Sequence[float]]
"""Computes how badly the truth and the candidates of a message explain a message, the truth first; both by place."""


def disjoint_candidates(
    labels: Sequence[np.ndarray], public: Public, rng: np.random.Generator, most: int = CANDIDATES
) -> list[np.ndarray]:
    """Draw candidates for each message from the public data, each example at most once for all messages together.

    Args:
        labels: for each message the classes (B,) of its batch.
        public: the public data.
        rng: generator of the drawing.
        most: most candidates of a message.

    Returns:
        For each message (n, B): the places in the public data of n batches of the same classes in the same order. n is
        0 where a class has too few public examples.

    >>> public = Public(np.zeros((5, 1)), np.array([0, 0, 0, 0, 1]))
    >>> drawn = disjoint_candidates([np.array([0]), np.array([0]), np.array([1])], public, np.random.default_rng(0))
    >>> [len(places) for places in drawn]
    [2, 2, 1]
    """
    wanted = Counter(int(label) for classes in labels for label in classes)
    pools = {label: rng.permutation(np.flatnonzero(public.labels == label)) for label in sorted(wanted)}
    share = {label: len(pool) // wanted[label] for label, pool in pools.items()}
    taken: Counter[int] = Counter()
    drawn = []
    for classes in labels:
        count = min([most, *(share[int(label)] for label in classes)])
        places = np.empty((count, len(classes)), np.intp)
        for column, label in enumerate(map(int, classes)):
            places[:, column] = pools[label][taken[label] : taken[label] + count]
            taken[label] += share[label]
        drawn.append(places)
    return drawn


def pointed(counts: Sequence[int], explain: Explain) -> Identified | None:
    """Count the messages that their true data explain better than all candidates do, and test whether this is chance.

    Where it is not, up to seven other messages are held against the same candidates. If the truths explain these better
    than chance allows as well, the clients' data differ from the public ones as a group: p is then 1.

    Args:
        counts: number of candidates of each message; messages without any are left out.
        explain: computes the values, the smaller the better; the ones of another message only if they are needed.

    Returns:
        The count among the messages with candidates, its null and p; None: there is no such message.

    >>> explains_all = pointed([99] * 3, lambda message, candidates: [0.0] + [1.0] * 99)
    >>> explains_own = pointed([99] * 3, lambda message, candidates: [float(message != candidates)] + [0.5] * 99)
    >>> explains_all.count, explains_all.p, explains_own.count, round(1e6 * explains_own.p)
    (3, 1.0, 3, 1)
    """
    places = [place for place, count in enumerate(counts) if count]
    if not places:
        return None
    nulls = [np.array([1 - 1 / (1 + counts[place]), 1 / (1 + counts[place])]) for place in places]
    first = [_first(explain(place, place)) for place in places]
    p = identified_p(first, nulls)
    if p <= CONTROLLED:
        for turn in range(1, min(_CONTROLS, len(places) - 1) + 1):
            others = [places[(i + turn) % len(places)] for i in range(len(places))]
            control = [_first(explain(other, place)) for other, place in zip(others, places, strict=True)]
            if identified_p(control, nulls) <= CONTROLLED:
                p = 1.0
                break
    return Identified(sum(first), len(places), convolved(nulls), p)


def _first(values: Sequence[float]) -> int:
    """Return 1 if the truth explains a message better than every candidate; a tie, or no number, is no sign of it."""
    truth, *others = values
    return int(isfinite(truth) and all(value > truth for value in others))
