"""View that a client of a federation has of the other clients' messages, from the models that it is sent.

The next model is the mean of what all clients of a round sent. A client that knows how many they are takes the part of
its own off, and those of others that work with it; the sum over the rest is left. With one client left, that is the
client's own message, but for the rounding of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from flfw.adversary.observation import Observation
from flfw.adversary.sums import same_received
from flfw.errors import require
from flfw.nets.net import Tensors

SEEN = "the model before the round and after it, how much each client counts in the mean, and who took part"
"""Grant of a peer, in words."""


def others_mean(others: Sequence[Observation], known: Sequence[Observation], weights: bool, lr: float) -> Observation:
    """Return one observation for the other clients: their mean gradient, or the mean of their weights after training.

    All count alike. It has client and place of the first one.

    Args:
        others: observations of different clients in one round and rung, at least one.
        known: those of the colluding clients in it, at least one.
        weights: whether the sent tensors are weights after training; else gradients, by which one step is taken.
        lr: the step's learning rate, > 0.

    Raises:
        InputError: no other or no colluding client, or clients that did not all receive the same tensors.
    """
    require(bool(others) and bool(known), "another and a colluding client", others=len(others), colluding=len(known))
    first, everybody = others[0], [*others, *known]
    alike = all(same_received(first, other) for other in everybody)
    require(alike, "the same weights received by all clients of a sum", clients=len(everybody))
    names = [
        name
        for name in first.sent
        if all(name in observation.sent and name in observation.received for observation in everybody)
    ]
    scale = 1.0 if weights else -lr
    sent: Tensors = {}
    for name in names:
        before = first.received[name].double()
        changes = [
            observation.sent[name].double() - before if weights else observation.sent[name].double() * scale
            for observation in everybody
        ]
        after = (before + torch.stack(changes).mean(0)).to(
            first.received[name].dtype
        )  # the model that a client is sent
        rest = (after.double() - before) * len(everybody) - sum(changes[len(others) :])
        mean = rest / len(others)
        sent[name] = (before + mean if weights else mean / scale).to(first.sent[name].dtype)
    return replace(first, sent=sent)


def rounding(received: Tensors, names: Sequence[str], clients: int, left: int) -> float:
    """Return the largest length of a difference in a mean change that the rounding of the next model makes.

    Args:
        received: the model before the round.
        names: the tensors in question.
        clients: number of clients in the round.
        left: number of those that do not collude.
    """
    lengths = [received[name].double().norm() * torch.finfo(received[name].dtype).eps for name in names]
    return float(torch.stack(lengths).norm()) * clients / left if lengths else 0.0
