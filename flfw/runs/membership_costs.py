"""Seconds of the attacks on membership, from few candidates of one client in one round, as an audit grants them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import torch

from flfw.adversary.attack import NotApplicable
from flfw.adversary.membership_attack import MembershipAttack, MembershipRound, MembershipView
from flfw.adversary.observation import Examples
from flfw.data.splits import on_demand
from flfw.nets.net import Tensors
from flfw.resolve import Resolved
from flfw.rng import torch_generator
from flfw.task import Task
from flfw.victims.victim import VictimModel

_FEW, _MORE = 4, 68  # candidates; between these numbers the time follows a line
_PUBLIC = 16  # public examples of the measurements that give this line
_EASY, _DRAWS = 16, 8  # candidates of a draw on the easy rung, and draws

Model = Callable[[Tensors], VictimModel]


def membership_seconds(resolved: Resolved, task: Task, model: Model, received: Tensors, sent: Tensors) -> float:
    """Measure the seconds of all attacks on membership: of the easy rung, and of the clients in the audited rounds.

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
    steps = max(1, experiment.local_epochs * -(-on_demand.sizes(task.split.train)[0] // experiment.batch_size))
    one = MembershipRound(1, received, dict.fromkeys(range(experiment.per_round), sent), experiment.lr, steps)
    for attack in resolved.membership.values():

        def seconds(tried: int, known: int, attack: MembershipAttack = attack) -> float:
            few = Examples(candidates.samples[:tried], candidates.labels[:tried])
            some = Examples(public.samples[:known], public.labels[:known])
            view = MembershipView(0, (one,), few, some, model)
            started = time.monotonic()
            with suppress(NotApplicable):
                attack.scores(view, torch_generator(experiment.seed, "estimate"))
            return time.monotonic() - started

        seconds(_FEW, _PUBLIC)  # the first call takes the time of imports, and of memory
        least = seconds(_FEW, _PUBLIC)
        each = max(0.0, seconds(_MORE, _PUBLIC) - least) / (_MORE - _FEW)
        alone = seconds(_FEW, len(public.labels))
        rounds = sum(1 for number in experiment.audited if number) * experiment.per_round / experiment.clients
        total += sum(rounds * (alone + each * max(0, count - _FEW)) for count in counts)
        total += _DRAWS * (alone + each * (_EASY - _FEW))
    return total
