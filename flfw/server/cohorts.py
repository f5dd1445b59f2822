"""Cohorts: clients of a round, drawn from the seed and the round, so that all know them; or by a key of the server."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from hashlib import shake_256
from io import BytesIO
from typing import Literal, TypeAlias, final

import numpy as np

from flfw.rng import numpy_generator

Sampling: TypeAlias = Literal["fixed", "poisson"]

_RUN = 64  # clients that are drawn in the mean from each run of them
_DIGITS = 256  # binary digits of the first weight of a binomial distribution
_BLOCK = 4096  # bytes of a key's stream at a time


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
    rng, count = numpy_generator(seed, "cohort", server_round), sample
    if sampling == "poisson":  # as coins: a binomial number, and all sets of that number alike
        count = int(rng.binomial(len(clients), sample / len(clients)))
    return sorted(_at(clients, rng.choice(len(clients), count, replace=False)))


def drawn_last(clients: Sequence[int], maximum: int | None, seed: int) -> list[int]:
    """Draw the clients of the final evaluation; return them ascending.

    Args:
        clients: all clients, ascending.
        maximum: the most that are drawn, >= 0; None: all.
        seed: seed of the draw.
    """
    if maximum is None or maximum >= len(clients):
        return list(clients)
    return sorted(_at(clients, numpy_generator(seed, "final evaluation").choice(len(clients), maximum, replace=False)))


def secretly_drawn(clients: Sequence[int], sample: int, key: bytes, server_round: int, attempt: int) -> list[int]:
    """Draw the clients of a round, each by a coin that nobody without the key can tell; return them ascending.

    No coin is tossed for those that are not drawn. The clients are cut into runs of which some dozens are drawn in the
    mean. For each run their number is drawn from the binomial distribution, then which they are.

    Args:
        clients: all clients, ascending.
        sample: expected number of drawn clients, >= 1 and below their number; each is drawn with this share of all.
        key: 32 secret bytes.
        server_round: number of the round, from 1.
        attempt: how often the round was asked for before: a round that is repeated has new coins.
    """
    bits = _KeyedBits(key + server_round.to_bytes(8) + attempt.to_bytes(8))
    everyone = len(clients)
    width = min(everyone, -(-everyone * _RUN // sample))
    drawn_places: list[int] = []
    for start in range(0, everyone, width):
        length = min(width, everyone - start)
        sums = _binomial_sums(length, sample, everyone)
        count = bisect_right(sums, bits.below(sums[-1]))
        drawn_places += [start + index for index in bits.places(length, count)]
    return [clients[index] for index in sorted(drawn_places)]


@final
class _KeyedBits:
    """Random numbers that follow from a key, as outputs of SHAKE-256 of the key and a counter.

    Args:
        key: secret bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._blocks, self._left = key, 0, BytesIO()

    def below(self, limit: int) -> int:
        """Draw a whole number from 0 to ``limit`` - 1, all exactly as likely."""
        digits = (limit - 1).bit_length()
        while True:
            number = int.from_bytes(self._taken(-(-digits // 8))) & ((1 << digits) - 1)
            if number < limit:
                return number

    def places(self, length: int, count: int) -> set[int]:
        """Draw ``count`` of the numbers below ``length``, all sets as likely, by Floyd's algorithm."""
        drawn_ones: set[int] = set()
        for last in range(length - count, length):
            place = self.below(last + 1)
            drawn_ones.add(last if place in drawn_ones else place)
        return drawn_ones

    def _taken(self, count: int) -> bytes:
        taken = self._left.read(count)
        while len(taken) < count:
            self._left = BytesIO(shake_256(self._key + self._blocks.to_bytes(8)).digest(_BLOCK))
            self._blocks += 1
            taken += self._left.read(count - len(taken))
        return taken


@lru_cache(maxsize=8)
def _binomial_sums(length: int, sample: int, everyone: int) -> list[int]:
    """Return the distribution function of the number of heads among ``length`` coins of ``sample / everyone``.

    It is times a large number: the last entry stands for 1. Divisions are rounded down, which changes no probability by
    more than 2^-190 for up to 2^33 coins.

    >>> [round(one / _binomial_sums(2, 1, 4)[-1], 4) for one in _binomial_sums(2, 1, 4)]
    [0.5625, 0.9375, 1.0]
    """
    weight, sums, heads = 1 << _DIGITS, [1 << _DIGITS], 0
    while weight and heads < length:
        weight = weight * (length - heads) * sample // ((heads + 1) * (everyone - sample))
        heads += 1
        sums.append(sums[-1] + weight)
    return sums


def in_turn(clients: Sequence[int], separation: int, server_round: int) -> Sequence[int]:
    """Return the clients whose turn a round is: each has one in ``separation`` rounds, by its number alone.

    So their rounds are at least that far apart, also when clients are added or a round is repeated.

    >>> [list(in_turn(range(5), 2, server_round)) for server_round in (1, 2, 3)]
    [[0, 2, 4], [1, 3], [0, 2, 4]]
    """
    turn = (server_round - 1) % separation
    if isinstance(clients, range) and (clients.start, clients.step) == (0, 1):  # of a million no list is made
        return clients[turn::separation]
    return [client for client in clients if client % separation == turn]


def participations(
    clients: int, sample: int, sampling: Sampling, seed: int, rounds: int, separation: int = 1
) -> np.ndarray:
    """Count the rounds of each client (clients,); ``separation`` as for `in_turn`."""
    if separation == 1 and not 0 < sample < clients:
        return np.full(clients, rounds)
    counts = np.zeros(clients, np.int64)
    for server_round in range(1, rounds + 1):
        turn = in_turn(range(clients), separation, server_round)
        counts[drawn(turn, sample, sampling, seed, server_round)] += 1
    return counts


def _at(clients: Sequence[int], indices: np.ndarray) -> list[int]:
    return [clients[index] for index in indices.tolist()]
