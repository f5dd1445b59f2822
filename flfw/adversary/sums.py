"""Sums over clients: what a server sees behind secure aggregation, and what a client derives from received models.

The next model is the mean of what all clients of a round sent. A client that knows how many they are takes off its own
part, and those of others that work with it; the sum over the rest is left. With one client left, that is the client's
own message, but for the rounding of the model.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import final

import torch

from flfw.adversary.secure_aggregation import Quantiser
from flfw.errors import require
from flfw.nets.net import Tensors
from flfw.recording.observation import Observation
from flfw.rng import older_numpy_generator

SEEN = "of the clients' messages only their sum, as behind secure aggregation; which clients took part"
"""Grant of an attack on sums, in words."""


@final
@dataclass(frozen=True)
class Protocol:
    """Secure aggregation by SecAgg+, without its masks: all that it changes in a sum is clipping and rounding.

    Attributes:
        seed: of the random rounding, >= 0 and below 2**32.
        quantiser: clipping and steps. All clients have the largest weight, with which least is lost.
    """

    seed: int
    quantiser: Quantiser = field(default_factory=Quantiser)

    def sum(self, messages: Sequence[Tensors], names: Sequence[str]) -> Tensors:
        """Compute the sums in float64 that a server recovers, of tensors that are in all messages."""
        return {name: value * len(messages) for name, value in self.mean(messages, names, [1] * len(messages)).items()}

    def mean(self, messages: Sequence[Tensors], names: Sequence[str], weights: Sequence[int]) -> Tensors:
        """Compute the weighted means in float64 that a server recovers, of tensors that are in all messages.

        Args:
            messages: of the clients.
            names: of the tensors.
            weights: of the messages, >= 1; the largest one is the protocol's largest weight.
        """
        rng, maximum = older_numpy_generator(self.seed), max(weights)
        quantiser = replace(self.quantiser, max_weight=maximum)
        clients = (quantiser.modulus_range - 1) // quantiser.quantization_range
        require(len(messages) <= clients, f"at most {clients} clients in a sum of SecAgg+", clients=len(messages))
        arrays = ([message[name].double().numpy(force=True) for name in names] for message in messages)
        weighted = zip(arrays, weights, strict=True)
        recovered = quantiser.recover([quantiser.quantise(array, weight, rng) for array, weight in weighted])
        return {name: torch.from_numpy(value) for name, value in zip(names, recovered, strict=True)}

    def cuts(self, messages: Sequence[Tensors]) -> bool:
        """Return whether the protocol clips a number of any message, so that a sum is not that of the messages."""
        maximum = self.quantiser.clipping_range
        return any(bool((value.abs() > maximum).any()) for message in messages for value in message.values())

    @property
    def words(self) -> str:
        """The protocol, for the attacker's grants."""
        q = self.quantiser
        return (
            f"SecAgg+ with clipping to {q.clipping_range:g} and {q.quantization_range:,} steps (Flower's defaults), "
            "each client with the largest weight; the protocol is taken to be right, and nobody to break it"
        )


def groups_of(messages: int, clients: int, size: int) -> list[tuple[int, ...]]:
    """Return the places of the messages in each sum; a rest of a turn through the clients is in none.

    Args:
        messages: number of messages; message i is of client i modulo ``clients``.
        clients: number of clients.
        size: number of clients in a sum, >= 1.

    >>> groups_of(8, 5, 2)
    [(0, 1), (2, 3), (5, 6)]
    """
    turns = [range(first, min(first + clients, messages)) for first in range(0, messages, clients)]
    return [tuple(turn[i : i + size]) for turn in turns for i in range(0, len(turn) - size + 1, size)]


def pooled(members: Sequence[Observation], weights: bool, protocol: Protocol | None) -> Observation:
    """Return one observation for several clients: their mean gradient, or the mean of their weights after training.

    The mean gradient of clients with equally many examples is that of all their examples as one batch. It has client
    and place of the first one.

    Args:
        members: observations of different clients in one round and control.
        weights: whether the sent tensors are weights after training, rather than a gradient.
        protocol: rounds the sum; None: it is exact.

    Raises:
        InputError: the clients did not all receive the same tensors, so that their sum is of no single model.
    """
    first = _of_one_model(members)
    mean = {name: value.double() / len(members) for name, value in _sum(members, weights, protocol).items()}
    if weights:
        mean = {name: first.received[name].double() + value for name, value in mean.items()}
    return replace(first, sent={name: value.to(first.sent[name].dtype) for name, value in mean.items()})


def isolated(
    members: Sequence[Observation], client: int, names: Collection[str], weights: bool, protocol: Protocol | None
) -> Observation:
    """Return the observation of one client in a sum, where all others were sent numbers that make their update zero.

    It is the sum itself, of gradients or of changes: nothing of the clients' own messages is used.

    Args:
        members: observations of different clients in one round and control; one of them is the client's.
        client: the isolated client.
        names: tensors in which the others' update is zero; the sums of all other tensors are left out.
        weights: whether the sent tensors are weights after training, rather than a gradient.
        protocol: rounds the sum; None: it is exact.
    """
    target = next(observation for observation in members if observation.client == client)
    total = {name: value for name, value in _sum(members, weights, protocol).items() if name in names}
    if weights:
        total = {name: target.received[name].double() + value for name, value in total.items()}
    return replace(target, sent={name: value.to(target.sent[name].dtype) for name, value in total.items()})


def mean_upload(members: Sequence[Observation], weights: Sequence[int], protocol: Protocol) -> Tensors:
    """Return the weighted mean of clients' weights after training, of the tensors with fractions.

    Args:
        members: uploads of different clients in one round.
        weights: of the clients, >= 1, as in the method's mean.
        protocol: rounds the mean.

    Raises:
        InputError: the clients did not all receive the same tensors, so that their sum is of no single model.
    """
    first = _of_one_model(members)
    fractions = [name for name, value in first.sent.items() if value.is_floating_point() and name in first.received]
    names = [name for name in fractions if all(name in other.sent for other in members)]
    mean = protocol.mean([one.sent for one in members], names, weights)
    return {name: value.to(first.sent[name]) for name, value in mean.items()}


def summed(observations: Sequence[Observation], weights: bool, protocol: Protocol | None = None) -> list[Observation]:
    """Return the observations with a sum over clients in the place of each client's own message.

    The first message of each client makes one sum, the second ones another, and so on. Of weights after training the
    changes are summed: the server knows the weights that it sent, so a sum of weights tells it the same. Each client
    then seems to have sent its received weights, changed by the changes of all clients.

    Args:
        observations: observations of one round and control.
        weights: whether the sent tensors are weights after training, rather than a gradient.
        protocol: rounds the sums; None: they are exact.
    """
    turns, groups = Counter[int](), defaultdict[int, list[int]](list)
    for index in sorted(range(len(observations)), key=lambda index: observations[index].slot):
        client = observations[index].client
        groups[turns[client]].append(index)
        turns[client] += 1
    result = list(observations)
    for group in groups.values():
        first = observations[group[0]].sent
        exact = _sum([observations[index] for index in group], weights, protocol)
        total = {name: value.to(first[name].dtype) for name, value in exact.items()}
        for index in group:
            observation = observations[index]
            sent = {name: observation.received[name] + value for name, value in total.items()} if weights else total
            result[index] = replace(observation, sent=sent)
    return result


def _sum(group: Sequence[Observation], weights: bool, protocol: Protocol | None) -> Tensors:
    """Return the sum in float64 of gradients or of changes by name, of the tensors that all clients sent."""
    first = group[0].sent
    names = [
        name
        for name in first
        if all(name in observation.sent and (name in observation.received or not weights) for observation in group)
    ]
    if protocol is None:
        total = {name: torch.zeros_like(first[name], dtype=torch.float64) for name in names}
        for observation in group:
            for name, value in total.items():
                value += observation.sent[name].double()
    else:
        total = protocol.sum([observation.sent for observation in group], names)
    bound = inf if protocol is None else protocol.quantiser.clipping_range
    for observation in group if weights else ():
        for name, value in total.items():  # of what was sent beyond the bound, the server knows that it comes clipped
            value -= observation.received[name].double().clamp(-bound, bound)
    return total


def _of_one_model(members: Sequence[Observation]) -> Observation:
    """Return the first of some observations that all received the same."""
    alike = all(same_received(members[0], other) for other in members[1:])
    require(alike, "the same weights received by all clients of a sum", clients=len(members))
    return members[0]


def same_received(first: Observation, second: Observation) -> bool:
    """Return whether two clients received equal tensors."""
    one, other = first.received, second.received
    return one is other or (one.keys() == other.keys() and all(torch.equal(v, other[n]) for n, v in one.items()))


SEEN_BY_PEER = "the model before the round and after it, how much each client counts in the mean, and who took part"
"""Grant of a peer, in words."""


def others_mean(others: Sequence[Observation], known: Sequence[Observation], weights: bool, lr: float) -> Observation:
    """Return one observation for the other clients: their mean gradient, or the mean of their weights after training.

    All count alike. It has client and place of the first one.

    Args:
        others: observations of different clients in one round and control, at least one.
        known: those of the colluding clients in it, at least one.
        weights: whether the sent tensors are weights after training; else gradients, by which one step is taken.
        lr: the step's learning rate, > 0.

    Raises:
        InputError: no other or no colluding client, or clients that did not all receive the same tensors.
    """
    require(bool(others) and bool(known), "another and a colluding client", others=len(others), colluding=len(known))
    everybody = [*others, *known]
    first = _of_one_model(everybody)
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
        # The model that a client is sent.
        after = (before + torch.stack(changes).mean(0)).to(first.received[name].dtype)
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
