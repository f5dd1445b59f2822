"""The course of a run as far as privacy depends on it, known before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import final


@final
@dataclass(frozen=True)
class Course:
    """Who takes part how often, with how much.

    Attributes:
        rounds: T, of training.
        participations: of them, the most in which one and the same client takes part.
        clients: K, in all.
        cohort: Kt, in a round; the expected number where each is drawn by a coin of its own.
        poisson: whether each client is drawn by such a coin.
        fewest: training examples of the client that has the fewest.
        most: of the client that has the most.
        batch: B, examples in a local step.
        epochs: passes over a client's examples in a round.
        replication: the most clients that hold one and the same example.
        tensors: numbers in each trained tensor, by name.
    """

    rounds: int
    participations: int
    clients: int
    cohort: int
    poisson: bool
    fewest: int
    most: int
    batch: int
    epochs: int
    replication: int
    tensors: Mapping[str, int]

    @property
    def local_steps(self) -> int:
        """L, of the client with the most examples in a round."""
        return self.epochs * ceil(self.most / self.batch)

    @property
    def example_rate(self) -> float:
        """The probability with which a Poisson batch holds an example, of the client with the fewest."""
        return min(1.0, self.batch / self.fewest)

    @property
    def client_rate(self) -> float:
        """The share of the clients that take part in a round."""
        return self.cohort / self.clients
