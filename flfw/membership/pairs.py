"""The membership game: pairs of a client's examples of one class, of which a fair coin chooses one to train on.

As both are of one class, labels tell nothing. As the coins are fair, independent and unknown to the training, a guess
on each pair is a test of epsilon for the replacement of one example, see `flfw.privacy.lower_bound`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from flfw.errors import require


@final
@dataclass(frozen=True)
class Pairs:
    """Pairs of one client's examples.

    Attributes:
        members: (P,) places of the examples that are trained on.
        held_out: (P,) places of their counterparts, which nobody trains on.
    """

    members: np.ndarray
    held_out: np.ndarray


def draw_pairs(places: np.ndarray, labels: np.ndarray, rng: np.random.Generator, most: int | None = None) -> Pairs:
    """Pair a client's examples within classes in a random order: which of a pair comes first is its coin.

    An example that is left over in its class is in no pair; it may be trained on.

    Args:
        places: (n,) distinct places of the client's examples.
        labels: (n,) their classes.
        rng: generator of the order; neither the training nor an attacker may have it.
        most: largest number of pairs; None: as many as there are.

    Raises:
        BadInput: places that repeat, or a number of pairs below 1.
    """
    require(len(np.unique(places)) == len(places) == len(labels), "distinct places, a label each", places=len(places))
    require(most is None or most >= 1, "most >= 1", most=most)
    rows = [np.zeros((0, 2), places.dtype)]
    for label in np.unique(labels):
        same = rng.permutation(places[labels == label])
        rows.append(same[: len(same) // 2 * 2].reshape(-1, 2))
    pairs = np.concatenate(rows)
    pairs = pairs[rng.permutation(len(pairs))[:most]]
    return Pairs(pairs[:, 0], pairs[:, 1])


def correct_pairs(members: np.ndarray, held_out: np.ndarray, guesses: int) -> int:
    """Count the right guesses on the pairs whose scores differ most; equal scores count as wrong.

    Args:
        members: (P,) scores of the members of the pairs.
        held_out: (P,) scores of their counterparts.
        guesses: number of pairs that are guessed, fixed before the scores are seen.

    Raises:
        BadInput: more guesses than pairs, or scores that are not finite.
    """
    require(len(members) == len(held_out), "a counterpart for each", members=len(members), held_out=len(held_out))
    require(0 <= guesses <= len(members), f"0 <= guesses <= {len(members)}", guesses=guesses)
    apart = members - held_out
    require(bool(np.isfinite(apart).all()), "finite scores", scores="NaN or infinity")
    boldest = np.argsort(-np.abs(apart), kind="stable")[:guesses]
    return int((apart[boldest] > 0).sum())
