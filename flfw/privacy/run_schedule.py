"""Course of a run: the numbers that its privacy depends on, known before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import final


@final
@dataclass(frozen=True)
class RunSchedule:
    """Participation and data of the clients in a run.

    Attributes:
        rounds: T, number of training rounds.
        max_participations: largest number of rounds in which the same client takes part.
        clients: K, number of clients.
        cohort_size: Kt, clients in a round; with Poisson sampling the expected number.
        poisson: whether each client is drawn by an independent coin.
        min_examples: training examples of the client with the fewest.
        max_examples: training examples of the client with the most.
        batch_size: B, examples in a local step.
        epochs: passes over a client's examples in a round.
        max_copies: largest number of clients that hold the same example.
        tensors: number of entries of each trained tensor, by name.
        min_summed_updates: least number of clients whose updates are in a round's sum, also when others drop out; a
            round with fewer has no sum.
        colluding: further clients whose updates may be in that sum, and whose noise does not count.
    """

    rounds: int
    max_participations: int
    clients: int
    cohort_size: int
    poisson: bool
    min_examples: int
    max_examples: int
    batch_size: int
    epochs: int
    max_copies: int
    tensors: Mapping[str, int]
    min_summed_updates: int = 1
    colluding: int = 0

    @property
    def local_steps(self) -> int:
        """L, local steps in a round of the client with the most examples."""
        return self.epochs * ceil(self.max_examples / self.batch_size)

    @property
    def example_rate(self) -> float:
        """Probability that a Poisson batch of the client with the fewest examples holds a given example."""
        return min(1.0, self.batch_size / self.min_examples)

    @property
    def client_rate(self) -> float:
        """Share of the clients that take part in a round."""
        return self.cohort_size / self.clients
