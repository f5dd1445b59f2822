"""Candidates of the membership game where its pairs are patients: all examples of both, and a score of each patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from flfw.audit.membership_entries import ScoredClient
from flfw.audit.membership_entries.entry import LABELS
from flfw.audit.membership_game.candidates import GameCandidates, by_class, classes_of, ordered
from flfw.membership.pairs import MemberPairs, PatientGame, PatientPairs, patient_scores
from flfw.task import Task

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
    task: Task,
    pairs: Mapping[int, MemberPairs | PatientGame],
    null: Mapping[int, MemberPairs | PatientGame],
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
