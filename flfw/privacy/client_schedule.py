"""Schedule of one client: what it does in a run as far as its privacy depends on it, known before the run starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import final


@final
@dataclass(frozen=True)
class ClientSchedule:
    """Data and participation of one client; by the defaults it is alone, for one round, as a site counts a message.

    Attributes:
        examples: number of its training examples, which everybody is taken to know.
        batch_size: B, examples in a local step.
        epochs: passes over its examples in a round.
        tensors: number of entries of each trained tensor, by name.
        rounds: T, number of training rounds of the run.
        max_participations: largest number of rounds in which this client takes part.
        client_rate: share of the clients that take part in a round.
        poisson: whether each client is drawn by an independent coin.
        max_copies: largest number of clients that hold the same example.
        min_summed_updates: least number of clients whose updates are in a round's sum, also when others drop out; a
            round with fewer has no sum.
        colluding: further clients whose updates may be in that sum, and whose noise does not count.
        client: number of this client.
        held: number of its training, validation and test examples; for private metrics alone.
    """

    examples: int
    batch_size: int
    epochs: int
    tensors: Mapping[str, int]
    rounds: int = 1
    max_participations: int = 1
    client_rate: float = 1.0
    poisson: bool = False
    max_copies: int = 1
    min_summed_updates: int = 1
    colluding: int = 0
    client: int = 0
    held: int = 0

    @property
    def batches(self) -> int:
        """Local steps of a pass."""
        return ceil(self.examples / self.batch_size)

    @property
    def local_steps(self) -> int:
        """L, local steps in a round."""
        return self.epochs * self.batches

    @property
    def example_rate(self) -> float:
        """Probability that a Poisson batch holds a given example."""
        return min(1.0, self.batch_size / max(1, self.examples))
