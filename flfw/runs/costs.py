"""Costs of a client's round and of the attacks on one round on this machine, measured in separate processes.

As many clients are measured at a time as will work at a time, because they share the memory bandwidth. Attacks are
measured in one more process, with all cores. So the caller's process does not change, and the peaks of memory are real.
Time is linear in a client's local epochs and in an attack's iterations, so two measurements give each line.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from flwr.app import ArrayRecord
from safetensors.torch import save

from flfw.audit.adaptation import hiding
from flfw.audit.jobs import UPLOAD, Ticket, ticket_of, tickets_of
from flfw.audit.knowledge import MOST_SEARCHED, unrolled
from flfw.audit.probe import RUNGS, ladder_net
from flfw.audit.rungs import tickets_beside
from flfw.client.federated_client import FederatedClient
from flfw.client.phases import side_by_side
from flfw.client.store import ClientStore
from flfw.client.workplace import Workplace
from flfw.data.splits import on_demand
from flfw.engines import machine
from flfw.errors import RunFailed
from flfw.experiment import Experiment
from flfw.messages.factored_upload import expand
from flfw.messages.sharing import shared
from flfw.messages.wire import nbytes, pack, unpack, views
from flfw.resolve import Resolved, resolve
from flfw.rng import initialising
from flfw.runs import timing
from flfw.runs.attack_costs import TimedTarget, attack_seconds
from flfw.runs.timing import at_length, fastest_s
from flfw.server.aggregation import Update
from flfw.server.cohorts import in_turn
from flfw.server.distillation import ServerTraining
from flfw.server.place import ServerPlace
from flfw.task import Task
from flfw.victims.local_steps import LocalSteps
from flfw.victims.victim import PlainVictim, VictimModel

LONG_S = 20.0
"""Seconds; a client's round that takes longer is measured once."""
_GIB = 1024**3

Costs = dict[str, float]
"""Seconds (``_s``), GiB (``_gib``) and bytes by name."""


def measured(kind: str, experiment: Experiment, copies: int) -> list[Costs]:
    """Measure costs in some processes at a time.

    Args:
        kind: ``client``, ``server`` (of a method whose server trains) or ``audit``.
        experiment: resolved and checked.
        copies: number of processes.

    Raises:
        RunFailed: a measurement failed, as the run would.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    variables |= machine.ALLOCATOR if kind == "client" and experiment.engine != "inproc" else {}

    def measure(folder: str) -> Costs:
        arguments = [kind, json.dumps(experiment.to_run_config()), folder, str(time.time())]
        command = [sys.executable, "-m", __name__, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=variables)
        if done.returncode:
            raise RunFailed(f"The measurement of the {kind} failed: {done.stderr.strip().rpartition(chr(10))[2]}")
        return json.loads(done.stdout.splitlines()[-1])

    with tempfile.TemporaryDirectory(prefix="flfw-estimate-") as folder, ThreadPoolExecutor(copies) as pool:
        return list(pool.map(measure, [f"{folder}/{i}" for i in range(copies)]))


def _client_costs(resolved: Resolved, folder: Path, costs: Costs) -> None:
    """Measure a client of about the mean size, on one thread as in an actor, and the server's work on its reply.

    Where clients compute together, it is one of a whole cohort. The round is in the middle of the run, since the first
    rounds of some methods have less work.
    """
    torch.set_num_threads(1)
    experiment, method, settings = resolved.experiment, resolved.method, resolved.settings
    sizes = on_demand.sizes(Task.load(experiment, experiment.data_root).split.train)
    together, usual = min(experiment.together, experiment.per_round), fmean(sizes)
    alike = len(sizes) == 1  # all clients have as many examples
    cohort = range(together) if alike else nsmallest(together, range(len(sizes)), key=lambda p: abs(sizes[p] - usual))
    partition = cohort[0]
    fresh = _client(resolved, partition, folder)
    arrays = pack(shared(fresh.model.state_dict(), fresh.sharing.downloads))
    costs["private"] = sum(value.nbytes for value in fresh.private().values())
    del fresh  # an actor has no second client

    def work(epochs: int) -> tuple[ArrayRecord, dict[str, Any]]:
        workers = [_client(resolved.replaced(local_epochs=epochs), each, folder) for each in cohort]
        result, *_ = side_by_side(workers, [worker.round(views(arrays), 0) for worker in workers])
        if isinstance(result, Exception):
            raise result
        return pack(result[0]), result[1]

    started = time.process_time()
    (record, metrics), epoch = work(1), time.process_time() - started  # slower than later calls, which reuse its memory
    if (one := epoch) <= LONG_S:
        more = max(2, min(experiment.local_epochs, int(timing.ENOUGH_S / one)))
        calls = timing.CALLS if one <= timing.ENOUGH_S else 1
        one = fastest_s(lambda: work(1), calls)
        epoch = max(fastest_s(lambda: work(more), calls) - one, 0.0) / (more - 1)
    scale = fmean(sizes) / sizes[partition] / together
    costs |= {"epoch_s": scale * epoch, "fixed_s": scale * max(one - epoch, 0.0), "peak_gib": _peak_gib()}
    sent = expand(unpack(record), views(arrays))  # the upload as the server decodes it, and as probes send it
    costs |= {"largest": max(sizes) / fmean(sizes), "up": nbytes(pack(sent)), "down": nbytes(arrays)}
    costs["message"] = nbytes(record)
    costs["reply_s"] = fastest_s(lambda: expand(unpack(record), views(arrays)))
    if not isinstance(settings, ServerTraining):  # the server's training is measured separately
        updates = [Update(partition, sizes[partition], sent, metrics)] * 4
        place = ServerPlace(experiment, method, settings)

        def combine() -> None:
            server = method(settings, sample=len(updates))
            server.at = place
            server.combined(arrays, iter(updates), 1)
            costs["kept"] = sum(value.nbytes for value in server.state.values())

        summed = fastest_s(combine)
        costs["reply_s"] += summed / len(updates)
    costs["write_s"] = fastest_s(lambda: (folder / hashlib.sha256(data := save(sent)).hexdigest()).write_bytes(data))


def _server_costs(resolved: Resolved, folder: Path, costs: Costs) -> None:
    """Measure a round's training on the server, with uploads of a whole cohort; their values do not matter."""
    experiment, method, settings = resolved.experiment, resolved.method, resolved.settings
    place = ServerPlace(experiment, method, settings)
    state, sharing = place.model().state_dict(), place.sharing
    arrays, sent = pack(shared(state, sharing.downloads)), shared(state, sharing.uploads)
    uploads = [Update(p, 1, {n: v.clone() for n, v in sent.items()}) for p in range(experiment.per_round)]

    def seconds(iterations: int) -> float:
        server = method(replace(settings, iterations=iterations), sample=len(uploads))
        server.at = place
        started = time.process_time()
        server.combined(arrays, iter(uploads), 1)
        return time.process_time() - started

    costs |= {"server_s": at_length(seconds, settings.iterations), "peak_gib": _peak_gib()}


def _client(resolved: Resolved, partition: int, folder: Path) -> FederatedClient:
    experiment = resolved.experiment
    task, store = Task.load(experiment, experiment.data_root), ClientStore(folder, "estimate", partition)
    middle, apart = (1 + experiment.rounds) // 2, resolved.method.rounds_apart(resolved.settings)
    turn = next(r for r in range(middle, middle + apart) if in_turn([partition], apart, r))
    return resolved.client(
        Workplace(
            experiment=experiment,
            task=task,
            method=resolved.method,
            settings=resolved.settings,
            partition=partition,
            round=turn,
            defence=resolved.defence_of(partition),
            store=store,
            run="estimate",
        )
    )


def _audit_costs(resolved: Resolved, folder: Path, costs: Costs) -> None:
    """Measure all attacks on the easy rung and on one round's target, and the imports for scores and reports."""
    # torch imports the last one with the first trace.
    needed = ("flfw.audit.auditor", "flfw.report.report", "skimage.metrics", "scipy.stats", "torch._dynamo")
    costs["imports_s"] = timeit.timeit(lambda: [importlib.import_module(name) for name in needed], number=1)
    experiment, method, settings = resolved.experiment, resolved.method, resolved.settings
    task = Task.load(experiment, experiment.data_root)

    def plain() -> PlainVictim:
        fresh = ladder_net(RUNGS[1], experiment, task.build_net)
        return PlainVictim(fresh, fresh.state_dict(), ("*",), task.inputs)

    easy = plain()
    costs["easy"] = sum(v.nbytes for v in easy.known.values())
    answer = partial(easy.gradient, unknown={}, constants={})
    ladder = TimedTarget(plain, 1, answer, first=True, images=experiment.images)
    costs["easy_s"] = attack_seconds(resolved, ladder).total
    worker = _client(resolved, min(experiment.defended_partitions, default=0), folder)
    held = worker.model.state_dict()
    received = shared(held, worker.sharing.downloads)
    worker.install(views(pack(received)), 0)  # some answer probes by the tensors they received

    def victim() -> VictimModel:
        with initialising(experiment.seed, "attacker"):
            model = method.build_model(task.build_net(), settings)
        return method.victim_model(model, received, task.inputs, settings)

    trained = any(experiment.audited)  # before training the private tensors are known, and nothing was uploaded
    common = not trained and method.common_start(settings)
    start = {name: value for name, value in held.items() if name not in received} if common else None
    uploaded = shared(held, worker.sharing.uploads) if trained else None
    target = ticket_of(experiment.points[0], 0)
    attacked = TimedTarget(victim, target.batch, worker.gradient, start=start, uploaded=uploaded)
    costs["probes_s"] = _probes_s(resolved, attacked)
    costs["uploads_s"] = _uploads_s(resolved, attacked, task)
    if hiding(resolved, target, "server", bool(experiment.defended_partitions)).adapts:
        costs["probes_s"] *= 3  # the adaptive attack, and the same on the rung `told`
    costs["beside"] = len(list(tickets_beside(resolved, target)))
    costs["peak_gib"] = _peak_gib()


def _probes_s(resolved: Resolved, attacked: TimedTarget) -> float:
    """Measure the attacks on a round's probes: on the smallest and the largest, between which they follow a line."""
    tickets = sorted(tickets_of(resolved.experiment, 0), key=_examples)

    def seconds(ticket: Ticket) -> float:
        local = partial(unrolled, resolved, ticket, operator=None)
        asked = replace(attacked, batch=ticket.batch, images=resolved.experiment.images, local=local)
        return attack_seconds(resolved, asked).total

    if not tickets:
        return 0.0
    least, most = (_examples(ticket) for ticket in (tickets[0], tickets[-1]))
    low = seconds(tickets[0])
    if most == least:
        return len(tickets) * low
    slope = (seconds(tickets[-1]) - low) / (most - least)
    return sum(low + slope * (_examples(ticket) - least) for ticket in tickets)


def _examples(ticket: Ticket) -> int:
    """Return the number of examples in all steps of a probe."""
    return ticket.batch * ticket.steps


def _uploads_s(resolved: Resolved, attacked: TimedTarget, task: Task) -> float:
    """Measure the attacks on a round's uploads, each of which is searched for alone; 0 where a search is refused."""
    experiment = resolved.experiment
    examples = round(fmean(on_demand.sizes(task.split.train)))
    if experiment.audit_source == "probe" or examples > MOST_SEARCHED:
        return 0.0
    batches = LocalSteps(experiment.lr, -(-examples // experiment.batch_size), batch_size=experiment.batch_size)
    order = experiment.local_epochs * batches.batches(examples)
    ticket = Ticket("target", 1, "", examples, len(order), UPLOAD)
    local = partial(unrolled, resolved, ticket, operator=None, order=order)
    one = attack_seconds(resolved, replace(attacked, batch=examples, local=local))
    return one.searched * min(experiment.images, experiment.per_round) + one.prepared


def _peak_gib() -> float:
    """Return the peak memory of this process alone; `resource` would give that of the process it was forked from."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / _GIB


if __name__ == "__main__":
    importlib.import_module("flfw.apps")  # the modules that clients and server import
    costs: Costs = {"ready_s": time.time() - float(sys.argv[4]), "base_gib": _peak_gib()}
    Path(sys.argv[3]).mkdir()
    asked = resolve(Experiment.from_run_config(json.loads(sys.argv[2])))
    {"client": _client_costs, "server": _server_costs, "audit": _audit_costs}[sys.argv[1]](
        asked, Path(sys.argv[3]), costs
    )
    print(json.dumps(costs))
