"""Sums over clients, which is all that a server sees of their messages behind secure aggregation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch

from flfw.adversary.observation import Observation
from flfw.nets.net import Tensors

SEEN = "of the clients' messages only their sum, as behind secure aggregation; which clients took part"
"""Grant of an attack on sums, in words."""


def summed(observations: Sequence[Observation], weights: bool) -> list[Observation]:
    """Return the observations with a sum over clients in the place of each client's own message.

    The first message of each client makes one sum, the second ones another, and so on. Of weights after training the
    changes are summed: the server knows the weights that it sent, so a sum of weights tells it the same. Each client
    then seems to have sent its received weights, changed by the changes of all clients.

    Args:
        observations: observations of one round and rung.
        weights: whether the sent tensors are weights after training, rather than a gradient.
    """
    turns, groups = Counter[int](), defaultdict[int, list[int]](list)
    for place in sorted(range(len(observations)), key=lambda place: observations[place].slot):
        client = observations[place].client
        groups[turns[client]].append(place)
        turns[client] += 1
    result = list(observations)
    for group in groups.values():
        total = _sum([observations[place] for place in group], weights)
        for place in group:
            seen = observations[place]
            sent = {name: seen.received[name] + value for name, value in total.items()} if weights else total
            result[place] = replace(seen, sent=sent)
    return result


def _sum(group: Sequence[Observation], weights: bool) -> Tensors:
    """Return the sum of gradients or of changes by name, of the tensors that all clients sent; added in float64."""
    first = group[0].sent
    names = [
        name for name in first if all(name in seen.sent and (name in seen.received or not weights) for seen in group)
    ]
    total = {name: torch.zeros_like(first[name], dtype=torch.float64) for name in names}
    for seen in group:
        for name, value in total.items():
            value += seen.sent[name].double() - (seen.received[name].double() if weights else 0)
    return {name: value.to(first[name].dtype) for name, value in total.items()}
