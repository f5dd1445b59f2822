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
from flfw.audit.membership.evidence import ScoredClient
from flfw.data.membership_pairs import (
    MemberPairs,
    PatientGame,
    PatientPairs,
    draw_pairs,
    draw_patient_pairs,
    patient_scores,
)
from flfw.rng import numpy_generator
from flfw.task.task import Task

_UNTRAINED = 200  # pairs of the null control, over all clients


@final
@dataclass(frozen=True)
class GameCandidates:
    """Candidates of some clients; only the trusted side has the places.

    Attributes:
        samples: (N, ...) raw inputs in [0, 1].
        labels: (N,).
        clients: (N,) the client of each.
        places: (N,) place of each among its own client's: its pair, and the number of pairs more if it is held out.
        played: for each client the number of pairs of the game; later pairs are those of the null control.
        classes: (N,) class of each, of a regression the band of its target; None: the labels.
    """

    samples: Tensor
    labels: Tensor
    clients: Tensor
    places: Tensor
    played: Mapping[int, int]
    classes: Tensor | None = None

    @classmethod
    def of(
        cls, task: Task, pairs: Mapping[int, MemberPairs], null: Mapping[int, MemberPairs] | None = None
    ) -> GameCandidates:
        """Gather the candidates of some clients, ordered by a digest of each example.

        The order is the same whichever of a pair is the member, so that it tells nothing, even with the run's seed.

        Args:
            task: source of the examples.
            pairs: of each client.
            null: pairs of the null control that are mixed with them, for each client; None: none.
        """
        null = null or {}
        both = {client: _joined(drawn, null.get(client)) for client, drawn in pairs.items()}
        parts = [_of_client(task, client, drawn) for client, drawn in both.items()]
        played = {client: len(drawn.members) for client, drawn in pairs.items()}
        samples, labels, *others = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return cls(samples, labels, *others, played=played, classes=classes_of(task, labels))

    def granted(self) -> dict[str, Tensor]:
        """Return the tensors that an attack may see of them."""
        return {"samples": self.samples, "labels": self.labels, "clients": self.clients}

    def scored(self, client: int, scores: Sequence[float], statistic: str = "") -> tuple[ScoredClient, ScoredClient]:
        """Sort one client's scores, which are in the candidates' order, by pair; those of labels are made of classes.

        Returns:
            Those of the game, and those of the null control.

        Raises:
            ValueError: another number of scores than of candidates.
        """
        indices = self.places[self.clients == client].numpy()
        if len(scores) != len(indices):
            raise ValueError(f"{len(scores)} scores for {len(indices)} candidates of client {client}")
        values = np.asarray(scores, np.float64)
        if statistic == LABELS and self.classes is not None:
            values = by_class(values, self.classes[self.clients == client].numpy())
        by_place = np.empty(len(indices))
        by_place[indices] = values
        return self._sorted(client, by_place)

    def unscored(self, client: int) -> tuple[ScoredClient, ScoredClient]:
        """Return scores of NaN for all pairs of a client: of the game, and of the null control."""
        return self._sorted(client, np.full(int((self.clients == client).sum()), np.nan))

    def _sorted(self, client: int, by_place: np.ndarray) -> tuple[ScoredClient, ScoredClient]:
        first, second = np.split(by_place, 2)
        played = self.played[client]
        return (
            ScoredClient(client, first[:played], second[:played]),
            ScoredClient(client, first[played:], second[played:]),
        )


def classes_of(task: Task, labels: Tensor) -> Tensor:
    """Return the class (N,) of each label, of a regression the band of the target by which pairs are drawn."""
    return torch.from_numpy(np.asarray(task.dataset.kinds(labels.numpy())))


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
            patients = np.concatenate([one.patients[np.isin(one.patients, one.pairs.held_out)] for one in games])
            drawn[client] = _of_patients(pool, patients, labels, rng, each)
        else:
            drawn[client] = draw_pairs(pool, labels[pool], rng, each)
    return drawn


def _of_patients(
    pool: np.ndarray, patients: np.ndarray, labels: np.ndarray, rng: np.random.Generator, maximum: int
) -> PatientGame:
    """Draw pairs of patients that are held out, with the places of all of their examples."""
    paired = draw_patient_pairs(labels[pool], patients, rng, maximum)
    kept = np.isin(patients, np.concatenate([paired.members, paired.held_out]))
    return PatientGame(paired, pool[kept], patients[kept])


def _joined(pairs: MemberPairs, more: MemberPairs | None) -> MemberPairs:
    if more is None:
        return pairs
    members, held_out = (
        np.concatenate(parts) for parts in ((pairs.members, more.members), (pairs.held_out, more.held_out))
    )
    return MemberPairs(members, held_out)


def _of_client(task: Task, client: int, pairs: MemberPairs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    samples, labels = task.examples("train", np.concatenate([pairs.members, pairs.held_out]))
    order = torch.tensor(ordered(samples, labels))
    return samples[order], labels[order], torch.full((len(order),), client), order


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
class PatientCandidates:
    """Candidates of some clients' patients; only the trusted side knows whose they are.

    Attributes:
        samples: (N, ...) raw inputs in [0, 1].
        labels: (N,).
        clients: (N,) the client of each.
        patients: (N,) the patient of each.
        pairs: of each client.
        null: of the null control for each client; none where there is no such control.
        classes: (N,) class of each, of a regression the band of its target; None: the labels.
    """

    samples: Tensor
    labels: Tensor
    clients: Tensor
    patients: Tensor
    pairs: Mapping[int, PatientPairs]
    null: Mapping[int, PatientPairs]
    classes: Tensor | None = None

    @classmethod
    def of(
        cls, task: Task, games: Mapping[int, PatientGame], null: Mapping[int, PatientGame] | None = None
    ) -> PatientCandidates:
        """Gather the candidates of some clients in an order that tells nothing, as `GameCandidates.of` does.

        Args:
            task: source of the examples.
            games: of each client.
            null: those of the null control that are mixed with them; None: none.
        """
        parts, null = [], null or {}
        for client, played in games.items():
            mixed = [played, *([null[client]] if client in null else [])]
            samples, labels = task.examples("train", np.concatenate([one.places for one in mixed]))
            order = torch.tensor(ordered(samples, labels))
            patients = np.concatenate([one.patients for one in mixed])
            whose = torch.from_numpy(np.asarray(patients, np.int64))[order]
            parts.append((samples[order], labels[order], torch.full((len(order),), client), whose))
        samples, labels, clients, whose = (torch.cat(column) for column in zip(*parts, strict=True))
        pairs, untrained = ({client: one.pairs for client, one in side.items()} for side in (games, null))
        return cls(samples, labels, clients, whose, pairs, untrained, classes_of(task, labels))

    def granted(self) -> dict[str, Tensor]:
        """Return the part that an attack may see."""
        return {"samples": self.samples, "labels": self.labels, "clients": self.clients}

    def scored(self, client: int, scores: Sequence[float], statistic: str = "") -> tuple[ScoredClient, ScoredClient]:
        """Return the scores of one client's patients by pair: those of the game, and those of the null control.

        The scores of its examples come in the candidates' order. A patient with a score that is not finite has none.
        What labels alone say of a patient is the plain mean: a score within classes could not tell two mixes of
        classes apart.

        Raises:
            ValueError: another number of scores than of candidates.
        """
        mine = self.clients == client
        classes = (self.labels if self.classes is None else self.classes)[mine].numpy()
        patients = self.patients[mine].numpy()
        values = np.asarray(scores, np.float64)
        if len(values) != len(patients):
            raise ValueError(f"{len(values)} scores for {len(patients)} candidates of client {client}")
        finite = ~np.isin(patients, patients[~np.isfinite(values)])
        values, classes, patients = values[finite], classes[finite], patients[finite]
        if statistic == LABELS:
            each, row = np.unique(patients, return_inverse=True)
            values = by_class(values, classes)
            means = (np.bincount(row, values, len(each)) / np.bincount(row, minlength=len(each))).round(_DIGITS)
        else:
            each, means = patient_scores(values, classes, patients)
        return self._sorted(client, dict(zip(each.tolist(), means.tolist(), strict=True)))

    def unscored(self, client: int) -> tuple[ScoredClient, ScoredClient]:
        """Return scores of NaN for all pairs of a client: of the game, and of the null control."""
        return self._sorted(client, {})

    def _sorted(self, client: int, by_patient: Mapping[int, float]) -> tuple[ScoredClient, ScoredClient]:
        nobody = np.zeros(0, np.int64)
        null = self.null.get(client, PatientPairs(nobody, nobody, nobody))
        return _by_pair(client, self.pairs[client], by_patient), _by_pair(client, null, by_patient)


def _by_pair(client: int, pairs: PatientPairs, by_patient: Mapping[int, float]) -> ScoredClient:
    members, held_out = (
        np.array([by_patient.get(one, np.nan) for one in side.tolist()], np.float64)
        for side in (pairs.members, pairs.held_out)
    )
    return ScoredClient(client, members, held_out)


def candidates_of(
    task: Task, pairs: Mapping[int, MemberPairs | PatientGame], null: Mapping[int, MemberPairs | PatientGame]
) -> GameCandidates | PatientCandidates:
    """Gather the candidates of some clients: of single examples, or of patients where these are in the pairs.

    Args:
        task: source of the examples.
        pairs: of each client.
        null: those of the null control that are mixed with them.
    """
    patients, untrained = (
        {client: one for client, one in side.items() if isinstance(one, PatientGame)} for side in (pairs, null)
    )
    if patients:
        return PatientCandidates.of(task, patients, untrained)
    examples, others = (
        {client: one for client, one in side.items() if isinstance(one, MemberPairs)} for side in (pairs, null)
    )
    return GameCandidates.of(task, examples, others)
