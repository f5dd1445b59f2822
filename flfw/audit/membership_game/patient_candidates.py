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
from flfw.audit.membership_game.candidates import GameCandidates, ordered
from flfw.membership.pairs import Pairs, PatientGame, PatientPairs, patient_scores
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
    """

    samples: Tensor
    labels: Tensor
    clients: Tensor
    patients: Tensor
    pairs: Mapping[int, PatientPairs]

    @classmethod
    def of(cls, task: Task, games: Mapping[int, PatientGame]) -> PatientCandidates:
        """Gather the candidates of some clients in an order that tells nothing, as `GameCandidates.of` does.

        Args:
            task: source of the examples.
            games: of each client.
        """
        parts = []
        for client, own in games.items():
            samples, labels = task.examples("train", own.places)
            order = torch.tensor(ordered(samples, labels))
            whose = torch.from_numpy(np.asarray(own.patients, np.int64))[order]
            parts.append((samples[order], labels[order], torch.full((len(order),), client), whose))
        samples, labels, clients, whose = (torch.cat(column) for column in zip(*parts, strict=True))
        return cls(samples, labels, clients, whose, {client: own.pairs for client, own in games.items()})

    def granted(self) -> dict[str, Tensor]:
        """Return what an attack may see of them."""
        return {"samples": self.samples, "labels": self.labels, "clients": self.clients}

    def scored(self, client: int, scores: Sequence[float], statistic: str = "") -> ScoredClient:
        """Return the scores of one client's patients, by pair, from those of its examples in the candidates' order.

        A patient with a score that is not finite has none. What labels alone say of a patient is the plain mean: a
        score within classes could not tell two mixes of classes apart.

        Raises:
            ValueError: another number of scores than of candidates.
        """
        mine = self.clients == client
        patients, labels = self.patients[mine].numpy(), self.labels[mine].numpy()
        values = np.asarray(scores, np.float64)
        if len(values) != len(patients):
            raise ValueError(f"{len(values)} scores for {len(patients)} candidates of client {client}")
        finite = ~np.isin(patients, patients[~np.isfinite(values)])
        values, labels, patients = values[finite], labels[finite], patients[finite]
        if statistic == LABELS:
            each, row = np.unique(patients, return_inverse=True)
            found = (np.bincount(row, values, len(each)) / np.bincount(row, minlength=len(each))).round(_DIGITS)
        else:
            each, found = patient_scores(values, labels, patients)
        by_patient = dict(zip(each.tolist(), found.tolist(), strict=True))
        own = self.pairs[client]
        members, held_out = (
            np.array([by_patient.get(one, np.nan) for one in side.tolist()]) for side in (own.members, own.held_out)
        )
        return ScoredClient(client, members, held_out)

    def unscored(self, client: int) -> ScoredClient:
        """Return scores of NaN for all pairs of a client."""
        pairs = len(self.pairs[client].members)
        return ScoredClient(client, np.full(pairs, np.nan), np.full(pairs, np.nan))


def candidates_of(task: Task, pairs: Mapping[int, Pairs | PatientGame]) -> GameCandidates | PatientCandidates:
    """Gather the candidates of some clients: of single examples, or of patients where these are in the pairs."""
    patients = {client: own for client, own in pairs.items() if isinstance(own, PatientGame)}
    examples = {client: own for client, own in pairs.items() if isinstance(own, Pairs)}
    return PatientCandidates.of(task, patients) if patients else GameCandidates.of(task, examples)
