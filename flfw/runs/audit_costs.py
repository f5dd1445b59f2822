"""Costs of an audit's attacks on this machine: on the easy control, on a round's probes and on its uploads.

The attacks' time is no multiple of a message's examples: a small network searches for many in hardly more time than for
one. So the smallest and the largest probe are measured, and an upload as it is.
"""

from __future__ import annotations

import importlib
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import final

import numpy as np

from flfw.audit.adaptation import hiding
from flfw.audit.controls import tickets_beside
from flfw.audit.jobs import UPLOAD, ProbeSet, round_probe_sets, target_probe_set
from flfw.audit.knowledge import MOST_SEARCHED, unrolled
from flfw.audit.probe import RUNGS, control_net
from flfw.data.splits import lazy_parts
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.messages.sharing import shared
from flfw.messages.wire import pack, views
from flfw.nets.net import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.plans.run_plan import RunPlan, plan
from flfw.rng import initialising
from flfw.runs.attack_costs import AttackSeconds, TimedTarget, attack_seconds
from flfw.runs.costs import Costs, client_of, file_bytes, peak_gib
from flfw.runs.membership_costs import membership_seconds
from flfw.runs.timing import announce
from flfw.task.task import Task


def audit_costs(run_plan: RunPlan, folder: Path, costs: Costs) -> None:
    """Measure all attacks on the easy rung and on one round's target, and the imports for scores and reports."""
    # torch imports the last one with the first trace.
    report = ("flfw.report.report", "flfw.report.charts")
    needed = ("flfw.audit.auditor", *report, "skimage.metrics", "scipy.stats", "torch._dynamo")
    costs["imports_s"] = timeit.timeit(lambda: [importlib.import_module(name) for name in needed], number=1)
    experiment, method, settings = run_plan.experiment, run_plan.client.method, run_plan.client.settings
    task = plan(experiment).task.load(experiment.data_root)

    def plain() -> PlainVictim:
        fresh = control_net(RUNGS[1], task.network, experiment.seed, task.dataset.shape, task.dataset.classes)
        return PlainVictim(fresh, fresh.state_dict(), ("*",), task.inputs)

    easy = plain()
    costs["easy_file"] = file_bytes(experiment, easy.known)
    answer = partial(easy.gradient, unknown={}, constants={})
    remaining = _Remaining(run_plan)
    ladder = TimedTarget(plain, 1, answer, first=True, images=experiment.images)
    costs["easy_s"] = remaining.measured(ladder).total
    worker = client_of(run_plan, min(experiment.defended_partitions, default=0), folder)
    held = worker.model.state_dict()
    received = shared(held, worker.sharing.downloads)
    worker.load_received(views(pack(received)), 0)  # some answer probes by the tensors they received

    def victim() -> VictimModel:
        with initialising(experiment.seed, "attacker"):
            model = method.build_model(task.build_net(), settings)
        return method.victim_model(model, received, task.inputs, settings)

    trained = any(experiment.audited)  # before training the private tensors are known, and nothing was uploaded
    common = not trained and method.common_start(settings)
    start = {name: value for name, value in held.items() if name not in received} if common else None
    uploaded = shared(held, worker.sharing.uploads) if trained else None
    target = target_probe_set(experiment.points[0], 0)
    attacked = TimedTarget(victim, target.batch, worker.gradient, start=start, uploaded=uploaded)
    costs["probes_s"] = _probes_s(run_plan, attacked, remaining)
    costs["uploads_s"] = _uploads_s(run_plan, attacked, remaining)
    if hiding(run_plan.client, experiment.adaptation, target, "server", bool(experiment.defended_partitions)).adapts:
        costs["probes_s"] *= 3  # the adaptive attack, and the same on the rung `told`
    costs["game_s"] = membership_seconds(
        run_plan, task, lambda _: victim(), received, shared(held, worker.sharing.uploads)
    )
    costs |= {"probe_file": file_bytes(experiment, _probe(task, worker.gradient, target.batch), received)}
    costs |= {"easy_probe_file": file_bytes(experiment, _probe(task, answer, 1), easy.known)}
    attacks = run_plan.audit.reconstructions
    costs["probed"] = float(bool(attacks or experiment.record))
    uses = any("uploads" in attack.uses for attack in attacks.values())
    recorded = experiment.record or experiment.audit_source != "probe" or uses or bool(run_plan.audit.memberships)
    costs["uploads"] = experiment.per_round * recorded
    costs["beside"] = len(list(tickets_beside(run_plan.client, attacks.values(), experiment.adaptation, target)))
    costs["peak_gib"] = peak_gib()


def _probe(task: Task, answer: Callable[..., Tensors], batch: int) -> Tensors:
    """Return a client's message for the first examples there are."""
    return answer(*task.examples("train", np.arange(batch)))


def _probes_s(run_plan: RunPlan, attacked: TimedTarget, remaining: _Remaining) -> float:
    """Measure the attacks on a round's probes: on the smallest and the largest, between which they follow a line."""
    tickets = sorted(round_probe_sets(run_plan.audit.probes, run_plan.audit.record, 0), key=_examples)

    def seconds(probe_set: ProbeSet) -> float:
        local = partial(unrolled, run_plan.client, probe_set, operator=None)
        asked = replace(attacked, batch=probe_set.batch, images=run_plan.experiment.images, local=local)
        return remaining.measured(asked).total

    if not tickets:
        return 0.0
    least, most = (_examples(probe_set) for probe_set in (tickets[0], tickets[-1]))
    low = seconds(tickets[0])
    if most == least:
        return len(tickets) * low
    slope = (seconds(tickets[-1]) - low) / (most - least)
    return sum(low + slope * (_examples(probe_set) - least) for probe_set in tickets)


def _examples(probe_set: ProbeSet) -> int:
    """Return the number of examples in all steps of a probe."""
    return probe_set.batch * probe_set.steps


def _uploads_s(run_plan: RunPlan, attacked: TimedTarget, remaining: _Remaining) -> float:
    """Measure the attacks on a round's uploads, each of which is searched for alone; 0 where a search is refused."""
    experiment, examples = run_plan.experiment, _in_an_upload(run_plan.experiment)
    if not examples:
        return 0.0
    batches = LocalSteps(experiment.lr, -(-examples // experiment.batch_size), batch_size=experiment.batch_size)
    order = experiment.local_epochs * batches.batches(examples)
    probe_set = ProbeSet("target", 1, "", examples, len(order), UPLOAD)
    local = partial(unrolled, run_plan.client, probe_set, operator=None, order=order)
    one = remaining.measured(replace(attacked, batch=examples, local=local))
    return one.searched * min(experiment.images, experiment.per_round) + one.prepared


def _in_an_upload(experiment: Experiment) -> int:
    """Return the examples behind an attacked upload; 0: none is attacked, or a search is refused."""
    if experiment.audit_source == "probe":
        return 0
    examples = round(fmean(lazy_parts.sizes(plan(experiment).task.load(experiment.data_root).split.train)))
    return examples if examples <= MOST_SEARCHED else 0


@final
class _Remaining:
    """Count of the measurements that are still to come, each of which is taken to last as long as those before."""

    def __init__(self, run_plan: RunPlan) -> None:
        self._resolved, self._done, self._spent_s = run_plan, 0, 0.0
        sizes = {
            _examples(probe_set) for probe_set in round_probe_sets(run_plan.audit.probes, run_plan.audit.record, 0)
        }
        self._all = 1 + min(2, len(sizes)) + bool(_in_an_upload(run_plan.experiment))

    def measured(self, target: TimedTarget) -> AttackSeconds:
        """Measure the attacks on a target."""
        began = time.monotonic()
        result = attack_seconds(self._resolved, target)
        self._spent_s, self._done = self._spent_s + time.monotonic() - began, self._done + 1
        announce(self._spent_s / self._done * (self._all - self._done))
        return result
