"""The membership game: pairs of a client's examples of one class, of which a fair coin chooses one to train on.

As both are of one class, labels tell nothing. As the coins are fair, independent and unknown to the training, a guess
on each pair is a test of epsilon for the replacement of one example, see `flfw.privacy.lower_bound`.

The game asks whether a member can be told from an example on which nobody trained. So training examples that stand in
the data more than once are in no pair: one that is held out while others train on a copy of it looks like a member, and
a statistic that finds all members is right no more often than a coin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flfw.errors import InputError, require
from flfw.rng import numpy_generator

FEWEST = 2
"""Smallest number of pairs of a client: with one, nothing is left of it once a threshold is chosen."""

MOST_CLIENTS = 10_000
"""Largest number of clients whose pairs are drawn, each on its own."""

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
    indices = np.unique(np.concatenate(list(train)))
    digests = [_digest(inputs[index]) for index in indices]
    holders: dict[bytes, set[int]] = {}
    for index, digest in zip(indices, digests, strict=True):
        holders.setdefault(digest, set()).add(int(owners[index]))
    unique = {int(owners[p]) for p, digest in zip(indices, digests, strict=True) if len(holders[digest]) == 1}
    marked = np.zeros(len(inputs), bool)
    marked[indices] = ~np.isin(owners[indices], list(unique))
    return marked


def games(
    train: Sequence[np.ndarray],
    inputs: np.ndarray,
    labels: np.ndarray,
    patients: np.ndarray | None,
    seed: int,
    maximum: int | None,
) -> tuple[MemberPairs | PatientGame, ...]:
    """Draw the pairs of every client, of patients if they are known, with nothing in them that has copies.

    Args:
        train: for each client the places of its training examples.
        inputs: (N, ...) of all training examples.
        labels: (N,) their classes.
        patients: (N,) their patients; None: not known.
        seed: of the experiment.
        maximum: largest number of pairs of a client; None: as many as there are.

    Raises:
        InputError: see `flfw.data.membership_pairs`.
    """
    return game(train, labels, seed, maximum, copied(train, inputs, patients), patients)


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


@final
@dataclass(frozen=True)
class MemberPairs:
    """Pairs of one client's examples.

    Attributes:
        members: (P,) places of the examples that are trained on.
        held_out: (P,) places of their counterparts, which nobody trains on.
    """

    members: np.ndarray
    held_out: np.ndarray

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.members)


def draw_pairs(
    indices: np.ndarray, labels: np.ndarray, rng: np.random.Generator, maximum: int | None = None
) -> MemberPairs:
    """Pair a client's examples within classes in a random order: which of a pair comes first is its coin.

    An example that is left over in its class is in no pair; it may be trained on.

    Args:
        indices: (n,) distinct places of the client's examples.
        labels: (n,) their classes.
        rng: generator of the order; neither the training nor an attacker may have it.
        maximum: largest number of pairs; None: as many as there are.

    Raises:
        InputError: places that repeat, or a number of pairs below 1.
    """
    require(
        len(np.unique(indices)) == len(indices) == len(labels), "distinct places, a label each", places=len(indices)
    )
    require(maximum is None or maximum >= 1, "most >= 1", most=maximum)
    rows = [np.zeros((0, 2), indices.dtype)]
    for label in np.unique(labels):
        same = rng.permutation(indices[labels == label])
        rows.append(same[: len(same) // 2 * 2].reshape(-1, 2))
    pairs = np.concatenate(rows)
    pairs = pairs[rng.permutation(len(pairs))[:maximum]]
    return MemberPairs(pairs[:, 0], pairs[:, 1])


@final
@dataclass(frozen=True)
class PatientPairs:
    """Pairs of one client's patients.

    Attributes:
        members: (P,) numbers of the patients all of whose examples are trained on.
        held_out: (P,) numbers of their counterparts, of whom nobody trains on any example.
        unlike: (P,) number of examples by which a pair's numbers of each class differ; 0: the mixes are the same.
    """

    members: np.ndarray
    held_out: np.ndarray
    unlike: np.ndarray


def draw_patient_pairs(
    labels: np.ndarray, patients: np.ndarray, rng: np.random.Generator, maximum: int | None = None
) -> PatientPairs:
    """Pair a client's patients with mixes of classes as near as the data allow, and toss a fair coin for each pair.

    Patients are taken in a random order. Each is paired with the one left whose numbers of examples of each class
    differ least from its own (the sum of the differences; the first in that order of several). The coins are tossed
    afterwards, so that also where mixes differ nothing but the training tells which of a pair is the member. With an
    odd number of patients one is in no pair.

    Args:
        labels: (n,) classes of all of the client's examples.
        patients: (n,) their patients.
        rng: generator of order and coins; neither the training nor an attacker may have it.
        maximum: largest number of pairs, those that differ least; None: as many as there are.

    Raises:
        InputError: not a patient for each label, or a number of pairs below 1.
    """
    require(len(labels) == len(patients), "a patient for each label", labels=len(labels), patients=len(patients))
    require(maximum is None or maximum >= 1, "most >= 1", most=maximum)
    each, row = np.unique(patients, return_inverse=True)
    mixes = np.zeros((len(each), int(labels.max(initial=0)) + 1), np.int64)
    np.add.at(mixes, (row, labels), 1)
    left = rng.permutation(len(each))
    pairs, unlike = np.zeros((len(each) // 2, 2), np.int64), np.zeros(len(each) // 2, np.int64)
    for index in range(len(pairs)):
        first, left = left[0], left[1:]
        distance = np.abs(mixes[left] - mixes[first]).sum(axis=1)
        nearest = int(distance.argmin())
        pairs[index], unlike[index] = (first, left[nearest]), distance[nearest]
        left = np.delete(left, nearest)
    kept = np.argsort(unlike, kind="stable")[:maximum]
    chosen = rng.permuted(each[pairs[kept]], axis=1)
    return PatientPairs(chosen[:, 0], chosen[:, 1], unlike[kept])


@final
@dataclass(frozen=True)
class PatientGame:
    """Pairs of one client's patients, with the places of all of their examples.

    Attributes:
        pairs: the pairs.
        places: (n,) distinct places of the examples of all patients in them.
        owners: (n,) the patient of each.
    """

    pairs: PatientPairs
    places: np.ndarray
    owners: np.ndarray

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.pairs.members)

    @property
    def members(self) -> np.ndarray:
        """Places of the examples of the patients that are trained on."""
        return self.places[np.isin(self.owners, self.pairs.members)]

    @property
    def held_out(self) -> np.ndarray:
        """Places of the examples of their counterparts, which nobody trains on."""
        return self.places[np.isin(self.owners, self.pairs.held_out)]


def draw_patient_game(
    indices: np.ndarray, labels: np.ndarray, patients: np.ndarray, rng: np.random.Generator, maximum: int | None = None
) -> PatientGame:
    """Pair a client's patients as `draw_patient_pairs` does; return the pairs with the places of their examples.

    Args:
        indices: (n,) distinct places of the client's examples.
        labels: (n,) their classes.
        patients: (n,) their patients.
        rng: see `draw_patient_pairs`.
        maximum: likewise.
    """
    pairs = draw_patient_pairs(labels, patients, rng, maximum)
    kept = np.isin(patients, np.concatenate([pairs.members, pairs.held_out]))
    return PatientGame(pairs, indices[kept], patients[kept])


def patient_scores(scores: np.ndarray, labels: np.ndarray, patients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute a score for each patient: the mean of its examples' z-scores.

    A z-score is the score less the mean of its class, over the deviation of all these differences. Nothing in it
    depends on membership. If there is no deviation, all are 0.

    Args:
        scores: (N,) scores of all candidates, higher for members.
        labels: (N,) their classes.
        patients: (N,) their patients.

    Returns:
        The numbers of the patients, ascending, and their scores.

    Raises:
        InputError: not a label and a patient for each score, or scores that are not finite.
    """
    full = len(scores) == len(labels) == len(patients)
    require(full, "a label and a patient for each score", scores=len(scores), patients=len(patients))
    require(bool(np.isfinite(scores).all()), "finite scores", scores="NaN or infinity")
    of_class = np.unique(labels, return_inverse=True)[1]
    centred = scores - (np.bincount(of_class, scores) / np.bincount(of_class))[of_class]
    std = float(np.sqrt(np.mean(centred**2))) if len(scores) else 0.0
    z = centred / std if std > 0 else np.zeros(len(scores))
    each, row = np.unique(patients, return_inverse=True)
    return each, np.bincount(row, z, minlength=len(each)) / np.bincount(row, minlength=len(each))


def game(
    train: Sequence[np.ndarray],
    labels: np.ndarray,
    seed: int,
    maximum: int | None,
    copied: np.ndarray | None = None,
    patients: np.ndarray | None = None,
) -> tuple[MemberPairs | PatientGame, ...]:
    """Draw the pairs of every client, each with a generator of its own, which no attack is granted.

    Args:
        train: for each client the places of its training examples.
        labels: (N,) classes of all training examples.
        seed: of the experiment.
        maximum: largest number of pairs of a client; None: as many as there are.
        copied: (N,) whether an example, or its patient, is in no pair, see `flfw.data.membership_pairs`; None: none is.
        patients: (N,) patients of all training examples, whose pairs are drawn; None: those of examples are.

    Raises:
        InputError: very many clients, clients that share examples or patients, or one with fewer than `FEWEST` pairs.
    """
    few = f"at most {MOST_CLIENTS:,} clients with membership-pairs"
    require(len(train) <= MOST_CLIENTS, few, clients=len(train))
    held = [one if patients is None else np.unique(patients[one]) for one in train]
    apart = "clients without common training examples" if patients is None else "each patient at one client"
    shared = int((np.unique(np.concatenate(held), return_counts=True)[1] > 1).sum())
    require(not shared, f"{apart} for membership-pairs, as with another --split", shared=shared)
    drawn: list[MemberPairs | PatientGame] = []
    for client, held_here in enumerate(train):
        rng, indices = numpy_generator(seed, "membership pairs", client), _without(held_here, copied)
        if patients is None:
            drawn.append(draw_pairs(indices, labels[indices], rng, maximum))
            needed, there = f"{FEWEST} pairs of examples alike in class, or more,", drawn[-1].count
        else:
            drawn.append(draw_patient_game(indices, labels[indices], patients[indices], rng, maximum))
            needed, there = f"{2 * FEWEST} patients or more", len(np.unique(patients[indices]))
        if drawn[-1].count < FEWEST:
            count = len(held_here) - len(indices)
            copies = f" {count} of its examples have copies, and are in no pair." if count else ""
            raise InputError(
                f"Expected {needed} at each client for --expert membership_pairs, got {there} at client {client}; take "
                f"fewer --clients or another --split.{copies}"
            )
    return tuple(drawn)


def _without(indices: np.ndarray, copied: np.ndarray | None) -> np.ndarray:
    return indices if copied is None else indices[~copied[indices]]


def without_held_out(train: Sequence[np.ndarray], pairs: Sequence[MemberPairs | PatientGame]) -> tuple[np.ndarray, ...]:
    """Return every client's places without those that are held out; the rest stays, in the same order."""
    return tuple(indices[~np.isin(indices, drawn.held_out)] for indices, drawn in zip(train, pairs, strict=True))


def correct_pairs(members: np.ndarray, held_out: np.ndarray, guesses: int) -> int:
    """Count the right guesses on the pairs whose scores differ most; equal scores count as wrong.

    Args:
        members: (P,) scores of the members of the pairs.
        held_out: (P,) scores of their counterparts.
        guesses: number of pairs that are guessed, fixed before the scores are seen.

    Raises:
        InputError: more guesses than pairs, or scores that are not finite.
    """
    require(len(members) == len(held_out), "a counterpart for each", members=len(members), held_out=len(held_out))
    require(0 <= guesses <= len(members), f"0 <= guesses <= {len(members)}", guesses=guesses)
    apart = members - held_out
    require(bool(np.isfinite(apart).all()), "finite scores", scores="NaN or infinity")
    boldest = np.argsort(-np.abs(apart), kind="stable")[:guesses]
    return int((apart[boldest] > 0).sum())
