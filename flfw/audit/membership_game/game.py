"""Grants of an attack on membership, and the views of its clients, which are built from them alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.adversary.observation import Examples, Observation, Vantage
from flfw.errors import require
from flfw.nets.net import Tensors
from flfw.victims.victim import VictimModel

_SENT, _RECEIVED = "sent", "received"


@dataclass(frozen=True)
class Game:
    """Membership game of a job.

    Attributes:
        file: the file of the candidates, each with its client; in a control it holds the exchanges as well.
        candidates: their number.
        clients: the target clients.
        steps: number of local steps of each of them in a round.
        lr: learning rate of these steps.
        easy: whether the exchanges are those of a control on a fresh network, see `own_exchanges`.
    """

    file: str
    candidates: int
    clients: tuple[int, ...]
    steps: tuple[int, ...]
    lr: float
    easy: bool = False

    def __post_init__(self) -> None:
        fits = len(self.steps) == len(self.clients) and all(count >= 1 for count in self.steps)
        require(fits, "a number of steps >= 1 for each client of a membership game", steps=self.steps)


def views(
    game: Game,
    held: Tensors,
    seen: Sequence[Observation],
    public: Examples,
    model: Callable[[Tensors], VictimModel],
    **granted: Any,
) -> Iterator[MembershipView]:
    """Yield the view of each target client; a client of which nothing was recorded has none.

    Args:
        game: the game.
        held: content of its file.
        seen: the readable uploads of the targets and of other clients.
        public: public data.
        model: see `MembershipView`.
        granted: further grants of `MembershipView`.
    """
    by_round: dict[int, list[Observation]] = defaultdict(list)
    for one in _of_a_control(game, held) if game.easy else seen:
        by_round[one.round].append(one)
    device = public.samples.device
    for client, steps in zip(game.clients, game.steps, strict=True):
        rounds = tuple(
            MembershipRound(number, target.received, _sent_with(target, by_round[number]), game.lr, steps)
            for number in sorted(by_round)
            for target in by_round[number]
            if target.client == client
        )
        mine = held["clients"] == client
        candidates = Examples(held["samples"][mine].to(device), held["labels"][mine].to(device))
        if rounds:
            yield MembershipView(client, rounds, candidates, public, model, **granted)


def unusable(one: Observation) -> str:
    """Name the fault of a readable upload that cannot be compared with gradients; empty: it has none."""
    for name, value in one.sent.items():
        if name in one.received and value.shape != one.received[name].shape:
            got, sent = tuple(value.shape), tuple(one.received[name].shape)
            return f"{name} has the shape {got}, and the client received {sent}"
    return ""


def _sent_with(target: Observation, others: Sequence[Observation]) -> dict[int, Tensors]:
    """Return the messages of clients that received the same as the target, its own first; equal are one object."""
    alike = [other for other in others if other.received is target.received and other.client != target.client]
    return {one.client: one.sent for one in (target, *alike)}


def own_exchanges(received: Tensors, sent: Sequence[Tensors]) -> Tensors:
    """Name the tensors of a control for its file: those that all clients received, and those that each sent."""
    both = {f"{_RECEIVED}/{name}": value for name, value in received.items()}
    return both | {f"{_SENT}/{k}/{name}": value for k, one in enumerate(sent) for name, value in one.items()}


def _of_a_control(game: Game, held: Tensors) -> list[Observation]:
    received = _under(f"{_RECEIVED}/", held)
    return [
        Observation(Vantage.SERVER, "update", "easy", 0, client, k, _under(f"{_SENT}/{k}/", held), received)
        for k, client in enumerate(game.clients)
    ]


def _under(prefix: str, held: Tensors) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in held.items() if name.startswith(prefix)}


def as_scores(client: int, scores: Mapping[str, Tensor]) -> list[tuple[int, str, tuple[float, ...]]]:
    """Return one client's scores as a solution holds them."""
    return [(client, name, tuple(map(float, values.tolist()))) for name, values in scores.items()]
