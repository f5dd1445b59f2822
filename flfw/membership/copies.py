"""Training examples that stand in the data more than once: they are in no pair of the membership game.

The game asks whether a member can be told from an example on which nobody trained. An example that is held out while
others train on a copy of it is no such example: it looks like a member, and a statistic that finds all members is right
no more often than a coin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from flfw.membership.pairs import MemberPairs, PatientGame, game, patient_game

_BYTES = 16  # of a digest: no two of a billion inputs have the same by chance


def copied(train: Sequence[np.ndarray], inputs: np.ndarray, owners: np.ndarray | None = None) -> np.ndarray:
    """Tell of each example whether all that its owner has is in the training data of another owner, too.

    Args:
        train: for each client the places of its training examples.
        inputs: (N, ...) of all training examples. Labels do not count: a copy with another label is trained on as well.
        owners: (N,) the patient of each; None: each example is its own owner.

    Returns:
        (N,), False for examples of no client.

    >>> copied([np.array([0, 1]), np.array([2, 3])], np.array([[1.0], [2.0], [2.0], [3.0]])).tolist()
    [False, True, True, False]
    """
    owners = np.arange(len(inputs)) if owners is None else owners
    places = np.unique(np.concatenate(list(train)))
    digests = [_digest(inputs[place]) for place in places]
    holders: dict[bytes, set[int]] = {}
    for place, digest in zip(places, digests, strict=True):
        holders.setdefault(digest, set()).add(int(owners[place]))
    unique = {int(owners[p]) for p, digest in zip(places, digests, strict=True) if len(holders[digest]) == 1}
    marked = np.zeros(len(inputs), bool)
    marked[places] = ~np.isin(owners[places], list(unique))
    return marked


def games(
    train: Sequence[np.ndarray],
    inputs: np.ndarray,
    labels: np.ndarray,
    patients: np.ndarray | None,
    seed: int,
    most: int | None,
) -> tuple[MemberPairs | PatientGame, ...]:
    """Draw the pairs of every client, of patients if they are known, with nothing in them that has copies.

    Args:
        train: for each client the places of its training examples.
        inputs: (N, ...) of all training examples.
        labels: (N,) their classes.
        patients: (N,) their patients; None: not known.
        seed: of the experiment.
        most: largest number of pairs of a client; None: as many as there are.

    Raises:
        InputError: see `flfw.membership.pairs`.
    """
    marked = copied(train, inputs, patients)
    if patients is None:
        return game(train, labels, seed, most, marked)
    return patient_game(train, labels, patients, seed, most, marked)


def _digest(row: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=_BYTES).digest()


def said_of_copies(train: Sequence[np.ndarray], inputs: np.ndarray, owners: np.ndarray | None) -> list[str]:
    """Say how many training examples are in no pair, as they stand in the data more than once; empty: none.

    Args:
        train: as for `copied`, with or without those that are held out.
        inputs: likewise.
        owners: likewise.
    """
    marked = copied(train, inputs, owners)
    if not marked.any():
        return []
    who = "training examples" if owners is None else "training examples are of patients that"
    what = "stand in the data more than once" if owners is None else "have nothing but what others have as well"
    return [
        f"{int(marked.sum()):,} {who} {what}. They are in no pair of the membership game, and all of them are trained "
        "on: of a copy that is held out nobody could say that it was not. Whether they can be told is not known."
    ]
