"""Seconds of the attacks on membership, from few candidates of one client in one round, as an audit grants them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch

from flfw.adversary.attack import NotApplicableError
from flfw.adversary.membership_attack import MembershipAttack, MembershipRound, MembershipView
from flfw.audit.membership.game import MembershipGame
from flfw.audit.membership_views import InformedAttacker
from flfw.data.splits import lazy_parts
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.net import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.plans.run_plan import RunPlan
from flfw.recording.observation import Examples
from flfw.rng import torch_generator
from flfw.task.task import Task

_FEW, _MORE = 4, 68  # candidates; between these numbers the time follows a line
_NULL = 400  # candidates of the null control, over all clients
# Controls: clients that learn by heart, the candidates of each, and their steps, which are 50 to 400; single steps.
_BY_HEART, _EASY, _LEARNT = 8, 20, 100
_SINGLE, _PAIR = 12, 2
_CONTROL_LR = 0.1

Model = Callable[[Tensors], VictimModel]


def membership_seconds(run_plan: RunPlan, task: Task, model: Model, received: Tensors, sent: Tensors) -> float:
    """Measure the seconds of all attacks on membership: in the controls, and for the clients in the audited rounds.

    What belongs to a round alone, such as the gradients of public examples, is done once for all of its clients. The
    game of an attacker who is told what hides the data is counted like the first one, against the clients concerned.

    Args:
        run_plan: of the run.
        task: its data, with the pairs.
        model: builds the attacker's model of a client.
        received: what a client receives.
        sent: what it sends; the values do not matter.
    """
    experiment, total = run_plan.experiment, 0.0
    if not run_plan.audit.memberships:
        return total
    samples, labels = task.public()
    public = Examples(samples, labels)
    assert task.pairs is not None, "an attack on membership has pairs"
    counts = [len(game.members) + len(game.held_out) for game in task.pairs[: experiment.images]]
    chosen = task.pairs[0].members[torch.arange(_MORE).numpy() % len(task.pairs[0].members)]
    candidates = Examples(*task.examples("train", chosen))
    steps = max(1, experiment.local_epochs * -(-lazy_parts.sizes(task.split.train)[0] // experiment.batch_size))
    one = MembershipRound(1, received, dict.fromkeys(range(experiment.per_round), sent), experiment.lr, steps)
    held = lazy_parts.sizes(task.split.train)[0]
    rounds = sum(1 for number in experiment.audited if number)
    for name, attack in run_plan.audit.memberships.items():

        def seconds(tried: int, local: LocalSteps | None, held: int, attack: MembershipAttack = attack) -> float:
            few = Examples(candidates.samples[:tried], candidates.labels[:tried])
            view = MembershipView(0, (one,), few, public, model, local=local, examples=held)
            started = time.monotonic()
            with suppress(NotApplicableError):
                attack.scores(view, torch_generator(experiment.seed, "estimate"))
            return time.monotonic() - started

        granted = run_plan.client.method.local_steps(run_plan.client.settings, experiment.lr, steps)
        local = granted and replace(granted, batch_size=experiment.batch_size)
        first, alone, more = (seconds(tried, local, held) for tried in (_FEW, _FEW, _MORE))
        of_a_round, each = max(0.0, first - alone), max(0.0, more - alone) / (_MORE - _FEW)
        took_part = experiment.per_round / experiment.clients
        shown = [count + _NULL / len(counts) for count in counts]
        against = [alone + each * max(0, count - _FEW) for count in shown]
        controls = 2 * of_a_round + _BY_HEART * seconds(_EASY, LocalSteps(_CONTROL_LR, _LEARNT), _EASY // 2)
        controls += _SINGLE * seconds(_PAIR, LocalSteps(_CONTROL_LR, 1), _PAIR // 2)
        for targets in filter(None, (against, [against[client] for client in _informed_of(run_plan, name, steps)])):
            total += rounds * (of_a_round + took_part * sum(targets)) + controls
    return total


def _informed_of(run_plan: RunPlan, attack: str, steps: int) -> tuple[int, ...]:
    """Return the target clients against whom somebody who is told what hides the data plays once more."""
    experiment = run_plan.experiment
    clients = tuple(range(min(experiment.images, experiment.clients)))
    game = MembershipGame("", _FEW, clients, (steps,) * len(clients), experiment.lr)
    return InformedAttacker(run_plan.client, experiment.adaptation, game, run_plan.audit.memberships[attack]).clients
