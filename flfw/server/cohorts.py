"""Cohorts: the server draws a round's clients from the seed and the round alone, so they are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from flfw.rng import numpy_generator

Sampling: TypeAlias = Literal["fixed", "poisson"]


def drawn(clients: Sequence[int], sample: int, sampling: Sampling, seed: int, server_round: int) -> list[int]:
    """Draw the clients of a round; return them ascending.

    Args:
        clients: all clients, ascending.
        sample: number of clients to draw; 0: all take part.
        sampling: ``fixed``: exactly ``sample`` clients, without replacement; ``poisson``: each client independently
            with probability ``sample / len(clients)``, so that their number varies and may be 0.
        seed: seed of the draw.
        server_round: number of the round, from 1.
    """
    if not sample or sample >= len(clients):
        return list(clients)
    rng = numpy_generator(seed, "cohort", server_round)
    if sampling == "poisson":
        coins = rng.random(len(clients)) < sample / len(clients)
        return [client for client, heads in zip(clients, coins, strict=True) if heads]
    return sorted(int(client) for client in rng.choice(clients, sample, replace=False))


def most_participations(clients: int, sample: int, sampling: Sampling, seed: int, rounds: int) -> int:
    """Count the rounds of the client that takes part most often."""
    counts = np.zeros(clients, dtype=np.int64)
    for server_round in range(1, rounds + 1):
        counts[drawn(range(clients), sample, sampling, seed, server_round)] += 1
    return int(counts.max())
