"""Grants of an attack on membership, and the views of its clients, which are built from the grants alone.

Behind secure aggregation the clients of a round are taken in the order of their numbers: the first N of them make one
sum, the next N another, and a rest is in none. Everybody can work that out. Where all clients take part in each round,
the groups stay the same; where some are drawn, a client may have other companions in each round.

A peer is a client, or several that tell each other all they have: those with the highest numbers. What the others sent
follows from two models that it receives one after the other, and from its own uploads, with w the sum of all weights:

    sum over the others of w_k W_k = w W_{t+1} - sum over its own of w_k W_k
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import torch
from torch import Tensor

from flfw.adversary.membership_attack import MembershipRound, MembershipView, PublishedModel
from flfw.adversary.sums import Protocol, mean_upload
from flfw.audit.jobs import MembershipGame
from flfw.errors import require
from flfw.experiment import AGGREGATE, OUTSIDER, PEER
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.net import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Examples, Observation, Vantage

_SENT, _RECEIVED, _FINAL = "sent", "received", "final/"
_MOST = 1e300  # of a score that is written
Cohorts = Mapping[int, Mapping[int, int]]
"""For each round the clients that took part, each with its weight in the mean."""


def in_sums(
    observations: Sequence[Observation], cohorts: Cohorts, size: int, protocol: Callable[[int, int], Protocol]
) -> list[Observation]:
    """Return the uploads with the mean over its group in the place of each client's own.

    A sum in which a message is missing is left out.

    Args:
        observations: the readable uploads.
        cohorts: who took part.
        size: number of clients in a group.
        protocol: makes the secure aggregation of a round's sum, from the round and the place of its first client.

    Raises:
        InputError: the clients of a sum received different tensors.
    """
    result: list[Observation] = []
    for number, uploads in by_round(observations).items():
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
    observations: Sequence[Observation], cohorts: Cohorts, peers: Collection[int], last: int, final: Tensors
) -> list[Observation]:
    """Return the knowledge of peers of a round: the mean upload of all others, as if each had sent it, and their own.

    A round counts if a peer took part in it and one received the model after it.

    Args:
        observations: the peers' own readable uploads.
        cohorts: who took part.
        peers: their numbers.
        last: the last round, after which everybody receives ``final``.
        final: the final model; empty: the peers receive it not, or not as the mean of the last round.

    Raises:
        InputError: no round counts.
    """
    rounds = by_round(observations)
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


def by_round(observations: Sequence[Observation]) -> dict[int, dict[int, Observation]]:
    """Sort uploads by round and by client, the first of each client in a round."""
    rounds: dict[int, dict[int, Observation]] = defaultdict(dict)
    for one in sorted(observations, key=lambda one: (one.round, one.client)):
        rounds[one.round].setdefault(one.client, one)
    return dict(rounds)


def views(
    game: MembershipGame,
    tensors: Tensors,
    observations: Sequence[Observation],
    public: Examples,
    model: Callable[[Tensors], VictimModel],
    local: Callable[[int], LocalSteps | None],
    protocol: Callable[[int, int], Protocol],
    **granted: Any,
) -> Iterator[MembershipView]:
    """Yield the view of each target client; a client of which nothing was recorded has none.

    An outsider has one view of the final model for all clients, and on the easy control one of each.

    Args:
        game: the game.
        tensors: content of its file.
        observations: the readable uploads of the targets and of other clients; at ``peer`` its own ones.
        public: public data.
        model: see `MembershipView`.
        local: returns a client's local training of some steps, see `MembershipView`.
        protocol: secure aggregation of a round's sum, see `flfw.audit.membership.game`.
        granted: further grants of `MembershipView`.

    Raises:
        InputError: the vantage sees no sum.
    """
    device = public.samples.device
    tensors = {name: value.to(device) for name, value in tensors.items()}
    if game.vantage == OUTSIDER:
        for published, mine in _published(game, tensors):
            shown = replace(_empty_view(game, tensors, mine, public, model), published=published)
            yield replace(shown, **granted)
        return
    uploads = by_round(_of_a_control(game, tensors) if game.easy else _as_seen(game, tensors, observations, protocol))
    numbers = game.examples or (0,) * len(game.clients)
    for client, steps, examples in zip(game.clients, game.steps, numbers, strict=True):
        rounds = tuple(
            MembershipRound(
                number, cohort[client].received, _sent_with(cohort[client], cohort.values()), game.lr, steps
            )
            for number, cohort in sorted(uploads.items())
            if client in cohort
        )
        if rounds:
            empty = _empty_view(game, tensors, tensors["clients"] == client, public, model)
            training = local(steps) if game.vantage == "server" else None
            known = {"client": client, "rounds": rounds, "local": training, "examples": examples}
            yield replace(empty, **known, **granted)


def unusable(one: Observation) -> str:
    """Name the fault of a readable upload that cannot be compared with gradients; empty: it has none."""
    for name, value in one.sent.items():
        if name in one.received and value.shape != one.received[name].shape:
            got, sent = tuple(value.shape), tuple(one.received[name].shape)
            return f"{name} has the shape {got}, and the client received {sent}"
    return ""


def _empty_view(
    game: MembershipGame, tensors: Tensors, mine: Tensor, public: Examples, model: Callable[[Tensors], VictimModel]
) -> MembershipView:
    """Return a view of some candidates, marked by True, in which nothing was seen yet."""
    candidates, owners = Examples(tensors["samples"][mine], tensors["labels"][mine]), tensors["clients"][mine]
    return MembershipView(game.clients[0], (), candidates, public, model, owners=owners)


def _as_seen(
    game: MembershipGame,
    tensors: Tensors,
    observations: Sequence[Observation],
    protocol: Callable[[int, int], Protocol],
) -> list[Observation]:
    """Return the uploads as the game's vantage sees them."""
    cohorts: dict[int, dict[int, int]] = defaultdict(dict)
    for number, client, weight in game.cohorts:
        cohorts[number][client] = weight
    if game.vantage == AGGREGATE:
        return in_sums(observations, cohorts, game.group, protocol)
    if game.vantage == PEER:
        return less_own_parts(observations, cohorts, game.peers, game.last, _under(_FINAL, tensors))
    return list(observations)


def _published(game: MembershipGame, tensors: Tensors) -> Iterator[tuple[PublishedModel, Tensor]]:
    """Yield each published model and which candidates it is asked of."""
    training = (game.lr, game.trained, game.batch)
    if not game.easy:
        yield PublishedModel(_under(_FINAL, tensors), *training), torch.ones_like(tensors["clients"], dtype=torch.bool)
    for turn, client in enumerate(game.clients if game.easy else ()):
        yield PublishedModel(_under(f"{_SENT}/{turn}/", tensors), *training), tensors["clients"] == client


def _sent_with(target: Observation, others: Iterable[Observation]) -> dict[int, Tensors]:
    """Return the messages of clients that received the same as the target, its own first; equal are one object."""
    sent, known = {target.client: target.sent}, {id(target.sent)}
    for other in others:
        if other.received is target.received and id(other.sent) not in known:  # a sum is that of several clients
            sent[other.client] = other.sent
            known.add(id(other.sent))
    return sent


def final_tensors(tensors: Tensors) -> dict[str, Tensor]:
    """Name the tensors of the final model for a game's file."""
    return {f"{_FINAL}{name}": value for name, value in tensors.items()}


def own_exchanges(received: Tensors, sent: Sequence[Tensors]) -> Tensors:
    """Name the tensors of a control for its file: those that all clients received, and those that each sent."""
    both = {f"{_RECEIVED}/{name}": value for name, value in received.items()}
    return both | {f"{_SENT}/{k}/{name}": value for k, one in enumerate(sent) for name, value in one.items()}


def _of_a_control(game: MembershipGame, tensors: Tensors) -> list[Observation]:
    received = _under(f"{_RECEIVED}/", tensors)
    return [
        Observation(Vantage.SERVER, "update", "easy", 0, client, k, _under(f"{_SENT}/{k}/", tensors), received)
        for k, client in enumerate(game.clients)
    ]


def _under(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def as_scores(view: MembershipView, scores: Mapping[str, Tensor]) -> list[tuple[int, str, tuple[float | None, ...]]]:
    """Return a view's scores as a solution holds them, client by client; None stands for NaN.

    An infinite one is cut to a number beyond all others, as a file holds finite numbers alone.
    """
    clients = [view.client] if view.owners is None else view.owners.unique().tolist()
    rows = []
    for client in clients:
        mine = slice(None) if view.owners is None else view.owners == client
        rows += [(client, name, tuple(map(_written, values[mine].tolist()))) for name, values in scores.items()]
    return rows


def _written(score: float) -> float | None:
    return None if isnan(score) else min(max(float(score), -_MOST), _MOST)
