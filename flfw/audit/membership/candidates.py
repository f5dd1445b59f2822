"""Candidates of the membership game, in an order that tells nothing, and the pairs behind their scores.

Where the pairs are patients, the candidates are all examples of both, and each patient has one score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from flfw.audit.membership.entry import LABELS
from flfw.audit.membership.membership_evidence import ScoredClient
from flfw.data.membership_pairs import (
    MemberPairs,
    PatientGame,
    PatientPairs,
    draw_pairs,
    draw_patient_game,
    patient_scores,
)
from flfw.rng import numpy_generator
from flfw.task.task import Task

_UNTRAINED = 200  # pairs of the null control, over all clients


def by_class(scores: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return in place of each score (N,) the mean of its class.

    What labels alone say is the same for all of a class. Of numbers an attack makes bands of its own, which would tell
    two of one band of the game apart.

    >>> by_class(np.array([1.0, 3.0, 7.0]), np.array([4, 4, 5])).tolist()
    [2.0, 2.0, 7.0]
    """
    _, row = np.unique(classes, return_inverse=True)
    return (np.bincount(row, scores) / np.bincount(row))[row]


def untrained_pairs(
    pairs: Sequence[MemberPairs | PatientGame], clients: Sequence[int], labels: np.ndarray, seed: int
) -> dict[int, MemberPairs | PatientGame]:
    """Draw the pairs of the null control: examples on which nobody trained, in the way of the game's own pairs.

    They are examples that other clients hold out; where there are none, those of the client itself. As the game's own,
    they get their coin before they are candidates: an order or a label that marks members would mark its winners.

    Args:
        pairs: of every client of the run.
        clients: those that are attacked.
        labels: (N,) classes of all training examples.
        seed: of the experiment.

    Returns:
        For each client its pairs, of examples or of patients; few or none where little is held out.
    """
    each, drawn = -(-_UNTRAINED // max(1, len(clients))), dict[int, MemberPairs | PatientGame]()
    for client in clients:
        others = [one for number, one in enumerate(pairs) if number != client] or [pairs[client]]
        pool = np.concatenate([one.held_out for one in others])
        rng = numpy_generator(seed, "null control of membership", client)
        games = [one for one in others if isinstance(one, PatientGame)]
        if games:
            patients = np.concatenate([one.owners[np.isin(one.owners, one.pairs.held_out)] for one in games])
            drawn[client] = draw_patient_game(pool, labels[pool], patients, rng, each)
        else:
            drawn[client] = draw_pairs(pool, labels[pool], rng, each)
    return drawn


def ordered(samples: Tensor, labels: Tensor) -> list[int]:
    """Return the places of examples in the order of a digest of each one's input and label."""
    rows, kinds = samples.contiguous().numpy(), labels.tolist()
    digests = [
        hashlib.sha256(row.tobytes() + str(kind).encode()).digest() for row, kind in zip(rows, kinds, strict=True)
    ]
    return sorted(range(len(digests)), key=digests.__getitem__)


_DIGITS = 9  # means of the same numbers in another order differ by rounding


@final
@dataclass(frozen=True)
class GameCandidates:
    """Candidates of some clients; only the trusted side knows whose they are.

    Attributes:
        samples: (N, ...) raw inputs in [0, 1].
        labels: (N,).
        clients: (N,) the client of each.
        owners: (N,) the patient of each; of single examples, its number among the client's candidates.
        pairs: of each client.
        null: of the null control for each client; none where there is no such control.
        classes: (N,) class of each, of a regression the band of its target; None: the labels.
    """

    samples: Tensor
    labels: Tensor
    clients: Tensor
    owners: Tensor
    pairs: Mapping[int, MemberPairs | PatientPairs]
    null: Mapping[int, MemberPairs | PatientPairs]
    classes: Tensor | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        games: Mapping[int, MemberPairs | PatientGame],
        null: Mapping[int, MemberPairs | PatientGame] | None = None,
    ) -> GameCandidates:
        """Gather the candidates of some clients, ordered by a digest of each example.

        The order is the same whichever of a pair is the member, so that it tells nothing, even with the run's seed.

        Args:
            task: source of the examples.
            games: the pairs of each client.
            null: those of the null control that are mixed with them; None: none.
        """
        parts, pairs, untrained, null = [], {}, {}, null or {}
        for client, played in games.items():
            places, owners, each = _mixed([played, *([null[client]] if client in null else [])])
            for side, one in zip((pairs, untrained), each, strict=False):
                side[client] = one
            samples, labels = task.examples("train", places)
            order = torch.tensor(ordered(samples, labels))
            whose = torch.from_numpy(owners.astype(np.int64))[order]
            parts.append((samples[order], labels[order], torch.full((len(order),), client), whose))
        samples, labels, clients, whose = (torch.cat(column) for column in zip(*parts, strict=True))
        classes = torch.from_numpy(np.asarray(task.dataset.kinds(labels.numpy())))
        return cls(samples, labels, clients, whose, pairs, untrained, classes)

    def granted(self) -> dict[str, Tensor]:
        """Return the tensors that an attack may see of them."""
        return {"samples": self.samples, "labels": self.labels, "clients": self.clients}

    def scored(self, client: int, scores: Sequence[float], statistic: str = "") -> tuple[ScoredClient, ScoredClient]:
        """Sort one client's scores by pair: those of the game, and those of the null control.

        The scores of its examples come in the candidates' order; those of labels are made of classes. A patient with a
        score that is not finite has none. What labels alone say of a patient is the plain mean: a score within classes
        could not tell two mixes of classes apart.

        Raises:
            ValueError: another number of scores than of candidates.
        """
        mine = self.clients == client
        classes = (self.labels if self.classes is None else self.classes)[mine].numpy()
        owners, values = self.owners[mine].numpy(), np.asarray(scores, np.float64)
        if len(values) != len(owners):
            raise ValueError(f"{len(values)} scores for {len(owners)} candidates of client {client}")
        if isinstance(self.pairs[client], MemberPairs):
            each, means = owners, by_class(values, classes) if statistic == LABELS else values
        else:
            each, means = _of_patients(values, classes, owners, statistic)
        return self._sorted(client, dict(zip(each.tolist(), means.tolist(), strict=True)))

    def unscored(self, client: int) -> tuple[ScoredClient, ScoredClient]:
        """Return scores of NaN for all pairs of a client: of the game, and of the null control."""
        return self._sorted(client, {})

    def _sorted(self, client: int, by_owner: Mapping[int, float]) -> tuple[ScoredClient, ScoredClient]:
        nobody = np.zeros(0, np.int64)
        null = self.null.get(client, MemberPairs(nobody, nobody))
        return _by_pair(client, self.pairs[client], by_owner), _by_pair(client, null, by_owner)


def _mixed(
    games: Sequence[MemberPairs | PatientGame],
) -> tuple[np.ndarray, np.ndarray, list[MemberPairs | PatientPairs]]:
    """Return the places of all examples of some games together, the owner of each, and the pairs of owners.

    Single examples are numbered: one that is in two of the games is a candidate twice.
    """
    patients = [one for one in games if isinstance(one, PatientGame)]
    if patients:
        places, owners = ([getattr(one, name) for one in patients] for name in ("places", "owners"))
        return np.concatenate(places), np.concatenate(owners), [one.pairs for one in patients]
    places = np.concatenate([one.members for one in games] + [one.held_out for one in games])
    numbers = np.arange(len(places)).reshape(2, -1)
    ends = np.cumsum([one.count for one in games])
    pairs = [MemberPairs(*numbers[:, end - one.count : end]) for one, end in zip(games, ends, strict=True)]
    return places, numbers.ravel(), list(pairs)


def _of_patients(
    values: np.ndarray, classes: np.ndarray, patients: np.ndarray, statistic: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the patients all of whose scores are finite, and a score for each."""
    finite = ~np.isin(patients, patients[~np.isfinite(values)])
    values, classes, patients = values[finite], classes[finite], patients[finite]
    if statistic != LABELS:
        return patient_scores(values, classes, patients)
    each, row = np.unique(patients, return_inverse=True)
    sums = np.bincount(row, by_class(values, classes), len(each))
    return each, (sums / np.bincount(row, minlength=len(each))).round(_DIGITS)


def _by_pair(client: int, pairs: MemberPairs | PatientPairs, by_owner: Mapping[int, float]) -> ScoredClient:
    members, held_out = (
        np.array([by_owner.get(one, np.nan) for one in side.tolist()], np.float64)
        for side in (pairs.members, pairs.held_out)
    )
    return ScoredClient(client, members, held_out)
