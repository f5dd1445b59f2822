"""Seconds of the attacks on membership, from few candidates of one client in one round, as an audit grants them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from flfw.adversary.attack import NotApplicable
from flfw.adversary.membership_attack import MembershipAttack, MembershipRound, MembershipView
from flfw.adversary.observation import Examples
from flfw.audit.adaptation import hiding
from flfw.audit.jobs import Ticket
from flfw.audit.knowledge import hidden
from flfw.data.splits import on_demand
from flfw.nets.net import Tensors
from flfw.resolve import Resolved
from flfw.rng import torch_generator
from flfw.runs.timing import announce
from flfw.task import Task
from flfw.victims.local_steps import LocalSteps
from flfw.victims.operator import Operator
from flfw.victims.victim import VictimModel

_FEW, _MORE = 4, 68  # candidates; between these numbers the time follows a line
_NULL = 400  # candidates of the null control, over all clients
# Controls: clients that learn by heart, the candidates of each, and their steps, which are 50 to 400; single steps.
_BY_HEART, _EASY, _LEARNT = 8, 20, 100
_SINGLE, _PAIR = 12, 2
_CONTROL_LR = 0.1
_CALLS = 5  # measurements of a game

Model = Callable[[Tensors], VictimModel]


def membership_seconds(resolved: Resolved, task: Task, model: Model, received: Tensors, sent: Tensors) -> float:
    """Measure the seconds of all attacks on membership: in the controls, and for the clients in the audited rounds.

    What belongs to a round alone, such as the gradients of public examples, is done once for all of its clients. The
    game of an attacker who is told of the defence is counted beside that of one who is not.

    Args:
        resolved: the experiment.
        task: its data, with the pairs.
        model: builds the attacker's model of a client.
        received: what a client receives.
        sent: what it sends; the values do not matter.
    """
    experiment, total = resolved.experiment, 0.0
    if not resolved.membership:
        return total
    samples, labels = task.public()
    public = Examples(samples, labels)
    assert task.pairs is not None, "an attack on membership has pairs"
    counts = [len(game.members) + len(game.held_out) for game in task.pairs[: experiment.images]]
    chosen = task.pairs[0].members[torch.arange(_MORE).numpy() % len(task.pairs[0].members)]
    candidates = Examples(*task.examples("train", chosen))
    held = on_demand.sizes(task.split.train)[0]
    steps = max(1, experiment.local_epochs * -(-held // experiment.batch_size))
    one = MembershipRound(1, received, dict.fromkeys(range(experiment.per_round), sent), experiment.lr, steps)
    rounds = sum(1 for number in experiment.audited if number)
    granted = resolved.method.local_steps(resolved.settings, experiment.lr, steps)
    local = granted and replace(granted, batch_size=experiment.batch_size)
    games = _games(resolved, counts, steps, held)
    remaining = len(games) * _CALLS
    for attack, knowledge, targets in games:

        def seconds(
            tried: int,
            local: LocalSteps | None,
            held: int,
            attack: MembershipAttack = attack,
            knows: _Told = knowledge,
        ) -> float:
            few = Examples(candidates.samples[:tried], candidates.labels[:tried])
            seen = (replace(one, mechanism=knows.operator),)
            granted = {"adaptive": knows.adaptive, "replaced": knows.replaced}
            view = MembershipView(0, seen, few, public, model, local=local, examples=held, **granted)
            started = time.monotonic()
            with suppress(NotApplicable):
                attack.scores(view, torch_generator(experiment.seed, "estimate"))
            return time.monotonic() - started

        first = seconds(_FEW, local, held)
        announce((remaining - 1) * first)
        alone, more = (seconds(tried, local, held) for tried in (_FEW, _MORE))
        of_a_round, each = max(0.0, first - alone), max(0.0, more - alone) / (_MORE - _FEW)
        took_part = experiment.per_round / experiment.clients
        shown = [count + _NULL / len(targets) for count in targets]
        total += rounds * (of_a_round + took_part * sum(alone + each * max(0, count - _FEW) for count in shown))
        total += 2 * of_a_round + _BY_HEART * seconds(_EASY, LocalSteps(_CONTROL_LR, _LEARNT), _EASY // 2)
        total += _SINGLE * seconds(_PAIR, LocalSteps(_CONTROL_LR, 1), _PAIR // 2)
        remaining -= _CALLS
    return total


@dataclass(frozen=True)
class _Told:
    """Knowledge of an attacker about the mechanism that hides the data.

    Attributes:
        operator: mechanism behind the messages; None: none is granted.
        replaced: private part of the model for which a stand-in is learnt; empty: none.
        adaptive: whether anything is granted.
    """

    operator: Operator | None = None
    replaced: str = ""
    adaptive: bool = False


def _games(
    resolved: Resolved, counts: Sequence[int], steps: int, held: int
) -> list[tuple[MembershipAttack, _Told, list[int]]]:
    """Return the games of each attack, with the candidates of each target: untold, and told of the defence.

    Clients with the defence and those without differ in an attacker's knowledge.
    """
    games = []
    for attack in resolved.membership.values():
        games.append((attack, _Told(), list(counts)))
        for defended in (True, False):
            clients = resolved.experiment.defended_partitions
            targets = [count for client, count in enumerate(counts) if (client in clients) == defended]
            knowledge = _told(resolved, attack, steps, held, defended)
            if targets and knowledge.adaptive:
                games.append((attack, knowledge, targets))
    return games


def _told(resolved: Resolved, attack: MembershipAttack, steps: int, held: int, defended: bool) -> _Told:
    """Return an informed attacker's knowledge of a client; see `flfw.audit.membership_views.Informed`."""
    experiment = resolved.experiment
    ticket = Ticket("target", 1, "", min(experiment.batch_size, held), steps, "membership")
    hides = hiding(resolved, ticket, "server", defended)
    operator = hides.through(-experiment.lr * steps) if hides.adapts else None
    passing = operator if isinstance(operator, Operator) and operator.passes else None
    replaced = attack.replaceable(resolved.model, hidden(resolved))
    return _Told(passing, replaced, adaptive=passing is not None or bool(replaced))
