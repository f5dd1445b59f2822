"""Candidates of the membership game, in an order that tells nothing, and the pairs behind their scores."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from flfw.audit.membership_entries import ScoredClient
from flfw.membership.pairs import Pairs
from flfw.rng import numpy_generator
from flfw.task import Task


@final
@dataclass(frozen=True)
class GameCandidates:
    """Candidates of some clients; only the trusted side has the places.

    Attributes:
        samples: (N, ...) raw inputs in [0, 1].
        labels: (N,).
        clients: (N,) the client of each.
        places: (N,) place of each among its own client's: its pair, and the number of pairs more if it is held out.
    """

    samples: Tensor
    labels: Tensor
    clients: Tensor
    places: Tensor

    @classmethod
    def of(cls, task: Task, pairs: Mapping[int, Pairs]) -> GameCandidates:
        """Gather the candidates of some clients, ordered by a digest of each example.

        The order is the same whichever of a pair is the member, so that it tells nothing, even with the run's seed.

        Args:
            task: source of the examples.
            pairs: of each client.
        """
        parts = [_of_client(task, client, drawn) for client, drawn in pairs.items()]
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def granted(self) -> dict[str, Tensor]:
        """Return the tensors that an attack may see of them."""
        return {"samples": self.samples, "labels": self.labels, "clients": self.clients}

    def scored(self, client: int, scores: Sequence[float], statistic: str = "") -> ScoredClient:
        """Sort one client's scores, which are in the candidates' order, by pair; those of all statistics alike.

        Raises:
            ValueError: another number of scores than of candidates.
        """
        places = self.places[self.clients == client].numpy()
        if len(scores) != len(places):
            raise ValueError(f"{len(scores)} scores for {len(places)} candidates of client {client}")
        by_place = np.empty(len(places))
        by_place[places] = scores
        half = len(places) // 2
        return ScoredClient(client, by_place[:half], by_place[half:])

    def unscored(self, client: int) -> ScoredClient:
        """Return scores of NaN for all pairs of a client."""
        pairs = int((self.clients == client).sum()) // 2
        return ScoredClient(client, np.full(pairs, np.nan), np.full(pairs, np.nan))


def permuted(scored: Sequence[ScoredClient], seed: int) -> list[ScoredClient]:
    """Return the scores with the two of each pair in a random order: nothing may be told from them."""
    result = []
    for one in scored:
        swapped = numpy_generator(seed, "null control of membership", one.client).random(len(one.members)) < 0.5
        members, others = (
            np.where(swapped, *ends) for ends in ((one.held_out, one.members), (one.members, one.held_out))
        )
        result.append(ScoredClient(one.client, members, others))
    return result


def _of_client(task: Task, client: int, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
