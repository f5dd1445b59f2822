"""Cohorts: clients of a round, drawn from the seed and the round, so that all know them; or by a key of the server."""

from __future__ import annotations

import hashlib
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
        return _at(clients, np.flatnonzero(rng.random(len(clients)) < sample / len(clients)))
    return sorted(_at(clients, rng.choice(len(clients), sample, replace=False)))


def drawn_last(clients: Sequence[int], most: int | None, seed: int) -> list[int]:
    """Draw the clients of the final evaluation; return them ascending.

    Args:
        clients: all clients, ascending.
        most: the most that are drawn, >= 0; None: all.
        seed: seed of the draw.
    """
    if most is None or most >= len(clients):
        return list(clients)
    return sorted(_at(clients, numpy_generator(seed, "final evaluation").choice(len(clients), most, replace=False)))


def secretly_drawn(clients: Sequence[int], sample: int, key: bytes, server_round: int, attempt: int) -> list[int]:
    """Draw the clients of a round, each by a coin that nobody without the key can tell; return them ascending.

    Args:
        clients: all clients, ascending.
        sample: expected number of drawn clients, >= 1; each is drawn with this share of all, rounded down to 63 digits.
        key: 32 secret bytes.
        server_round: number of the round, from 1.
        attempt: how often the round was asked for before: a round that is repeated has new coins.
    """
    tossed = hashlib.shake_256(key + server_round.to_bytes(8) + attempt.to_bytes(8)).digest(8 * len(clients))
    heads = (np.frombuffer(tossed, np.uint64) >> np.uint64(1)) < np.uint64(sample * 2**63 // len(clients))
    return _at(clients, np.flatnonzero(heads))


def in_turn(clients: Sequence[int], apart: int, server_round: int) -> Sequence[int]:
    """Return the clients whose turn a round is: each has one in ``apart`` rounds, by its number alone.

    So their rounds are at least that far apart, also when clients are added or a round is repeated.

    >>> [list(in_turn(range(5), 2, server_round)) for server_round in (1, 2, 3)]
    [[0, 2, 4], [1, 3], [0, 2, 4]]
    """
    turn = (server_round - 1) % apart
    if isinstance(clients, range) and (clients.start, clients.step) == (0, 1):  # of a million no list is made
        return clients[turn::apart]
    return [client for client in clients if client % apart == turn]


def most_participations(clients: int, sample: int, sampling: Sampling, seed: int, rounds: int, apart: int = 1) -> int:
    """Count the rounds of the client that takes part most often; ``apart`` as for `in_turn`."""
    if apart == 1 and not 0 < sample < clients:
        return rounds
    counts = np.zeros(clients, dtype=np.int64)
    for server_round in range(1, rounds + 1):
        turn = in_turn(range(clients), apart, server_round)
        counts[drawn(turn, sample, sampling, seed, server_round)] += 1
    return int(counts.max())


def _at(clients: Sequence[int], places: np.ndarray) -> list[int]:
    return [clients[place] for place in places.tolist()]
