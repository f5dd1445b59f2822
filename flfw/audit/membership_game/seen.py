"""Uploads as they are seen from elsewhere than the server: sums over groups of clients, and a sum less one's own part.

Behind secure aggregation the clients of a round are taken in the order of their numbers: the first N of them make one
sum, the next N another, and a rest is in none. Everybody can work that out. Where all clients take part in each round,
the groups stay the same; where some are drawn, a client may have other companions in each round.

A peer is a client, or several that tell each other all they have: those with the highest numbers. What the others sent
follows from two models that it receives one after the other, and from its own uploads:

    sum over the others of w_k W_k = w W_{t+1} - sum over its own of w_k W_k     with w the sum of all weights
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from flfw.adversary.observation import Observation, Vantage
from flfw.adversary.sums import Protocol, mean_upload
from flfw.errors import require
from flfw.nets.net import Tensors

Cohorts = Mapping[int, Mapping[int, int]]
"""For each round the clients that took part, each with its weight in the mean."""


def in_sums(
    seen: Sequence[Observation], cohorts: Cohorts, size: int, protocol: Callable[[int, int], Protocol]
) -> list[Observation]:
    """Return the uploads with the mean over its group in the place of each client's own.

    A sum in which a message is missing is left out.

    Args:
        seen: the readable uploads.
        cohorts: who took part.
        size: number of clients in a group.
        protocol: makes the secure aggregation of a round's sum, from the round and the place of its first client.

    Raises:
        InputError: the clients of a sum received different tensors.
    """
    result: list[Observation] = []
    for number, uploads in by_round(seen).items():
        weights = cohorts[number]
        order = sorted(weights)
        for first in range(0, len(order) - size + 1, size):
            group = order[first : first + size]
            if uploads.keys() >= set(group):
                members = [uploads[client] for client in group]
                mean = mean_upload(members, [weights[client] for client in group], protocol(number, first))
                result += [replace(one, vantage=Vantage.AGGREGATE, sent=mean) for one in members]
    return result


def less_own_parts(
    seen: Sequence[Observation], cohorts: Cohorts, peers: Collection[int], last: int, final: Tensors
) -> list[Observation]:
    """Return the knowledge of peers of a round: the mean upload of all others, as if each had sent it, and their own.

    A round counts if a peer took part in it and one received the model after it.

    Args:
        seen: the peers' own readable uploads.
        cohorts: who took part.
        peers: their numbers.
        last: the last round, after which everybody receives ``final``.
        final: the final model; empty: the peers receive it not, or not as the mean of the last round.

    Raises:
        InputError: no round counts.
    """
    rounds = by_round(seen)
    result: list[Observation] = []
    for number, uploads in rounds.items():
        after = next((one.received for one in rounds.get(number + 1, {}).values()), final if number == last else {})
        weights, first = cohorts[number], next(iter(uploads.values()))
        others = [client for client in weights if client not in peers]
        if not after or not others or uploads.keys() != {client for client in weights if client in peers}:
            continue
        left = _remainder(after, uploads, weights)
        result += [replace(first, vantage=Vantage.PEER, client=client, sent=left) for client in others]
        result += [replace(one, vantage=Vantage.PEER) for one in uploads.values()]
    require(
        bool(result), "a peer that took part in an audited round and received the model after it", rounds=len(rounds)
    )
    return result


def _remainder(after: Tensors, uploads: Mapping[int, Observation], weights: Mapping[int, int]) -> Tensors:
    """Compute the mean upload of all clients but the own ones."""
    first, total = next(iter(uploads.values())), sum(weights.values())
    rest = total - sum(weights[client] for client in uploads)
    fractions = [name for name, value in first.sent.items() if value.is_floating_point() and name in first.received]
    left = {}
    for name in (name for name in fractions if name in after):
        mine = sum(weights[client] * one.sent[name].double() for client, one in uploads.items())
        left[name] = ((total * after[name].to(first.sent[name]).double() - mine) / rest).to(first.sent[name])
    return left


def by_round(seen: Sequence[Observation]) -> dict[int, dict[int, Observation]]:
    """Sort uploads by round and by client, the first of each client in a round."""
    rounds: dict[int, dict[int, Observation]] = defaultdict(dict)
    for one in sorted(seen, key=lambda one: (one.round, one.client)):
        rounds[one.round].setdefault(one.client, one)
    return dict(rounds)
