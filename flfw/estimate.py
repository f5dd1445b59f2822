"""What a run will cost, before it is started: short measurements on this machine, extrapolated.

Clients are measured in processes of their own, as many at a time as will be at work, because they share the memory's
bandwidth; attacks in one more, with all cores. So the caller's process stays as it is, and peaks of memory are real.
A client with one local epoch and with more gives the line on which all of them lie; so do an attack's iterations.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from flwr.app import ArrayRecord
from safetensors.torch import save

from flfw import machine, parts
from flfw.audit.attack import NotApplicable
from flfw.audit.observation import Knowledge, Observation, Vantage
from flfw.audit.probe import RUNGS, ladder_net
from flfw.client import FederatedClient, Workplace
from flfw.errors import RunFailed
from flfw.experiment import Experiment
from flfw.inversion.victim import PlainVictim, VictimModel
from flfw.nets import Tensors
from flfw.provenance import hardware
from flfw.rng import initialising, torch_generator
from flfw.store import ClientStore
from flfw.strategy import Update
from flfw.task import Task
from flfw.wire import nbytes, pack, shared, unpack, views

# Measured on 2 cores of an AMD EPYC with ray 2.55.1, as nothing short of starting Ray would show them.
_RAY_S = 20.0  # starting and ending Ray, beside the imports of its processes
_RAY_EXCHANGE_S = 0.3  # Flower's threads look for messages every 0.1 s, ours every 0.05 s
_RAY_MESSAGE_S = 0.005  # 1,000 tiny messages take 5 to 6 s
_RAY_WRITES = 6  # of a client's reply to a file take as long as its messages' way through Ray, there and back
_RAY_GIB = 0.2  # Ray's own code and buffers in the driver and in an actor
_RAY_DAEMONS_GIB = 0.6  # raylet, control store and agents
_MOST = 8  # processes or images in a measurement; more images take time in proportion
_CALLS, _ENOUGH_S = 3, 3.0  # of what is measured the fastest call counts; epochs in one are chosen to take so long
_LONG_S = 20.0  # a client's round that takes longer is measured once
_GIB = 1024**3

Costs = dict[str, float]


@dataclass(frozen=True)
class Seconds:
    """``start`` (and end) of the engine; one ``round``; ``training``: rounds, probes, final evaluation; ``audit``."""

    start: float
    round: float
    training: float
    audit: float
    total: float


@dataclass(frozen=True)
class Memory:
    """Peaks of resident memory; ``total_gib`` counts once what processes share. In process the actor is the driver."""

    driver_gib: float
    actor_gib: float
    actors: int
    total_gib: float


@dataclass(frozen=True)
class Estimate:
    """What a run will cost; ``disk_bytes``: recordings, checkpoint, the clients' private state."""

    experiment: Experiment
    seconds: Seconds
    memory: Memory
    disk_bytes: int
    measured_on: str


def estimate(experiment: Experiment) -> Estimate:
    """Measure a resolved and checked experiment for some seconds, and extrapolate; `RunFailed` where it fails."""
    started, load, actors = time.monotonic(), os.getloadavg()[0], _actors(experiment)
    several = _measured("client", experiment, min(actors, experiment.cohort, _MOST))
    client = {name: fmean(costs[name] for costs in several) for name in several[0]}
    audit = _measured("audit", experiment, 1)[0] if experiment.audited and parts.method(experiment)[0].uploads else {}
    said = f"{hardware()}, in {time.monotonic() - started:.0f} s at a load of {load:.1f}; others at work add to it"
    said += "; from one local epoch only, which takes long" if client["epoch_s"] > _LONG_S else ""
    costs = (experiment, actors, client, audit)
    return Estimate(experiment, _seconds(*costs), _memory(*costs), _disk(*costs), said)


def lines(found: Estimate) -> str:
    """An estimate for the terminal: time, memory, disk and where it comes from, a line each."""
    time, memory, rounds = found.seconds, found.memory, found.experiment.rounds
    spent = f"training {_time(time.training)} ({rounds} rounds of {_time(time.round)}), audit {_time(time.audit)}"
    clients = f"clients {memory.actors} x {memory.actor_gib:.1f} GiB"
    return (
        f"time    about {_time(time.total)}: start {_time(time.start)}, {spent}\n"
        f"memory  about {memory.total_gib:.1f} GiB: driver {memory.driver_gib:.1f} GiB, {clients}\n"
        f"disk    about {found.disk_bytes / 1e6:,.0f} MB\nfrom    {found.measured_on}"
    )


def _time(seconds: float) -> str:
    size, unit = next(u for u in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= 1.5 * u[0] or u[0] == 1)
    return f"{seconds / size:.1f} {unit}"


def _actors(experiment: Experiment) -> int:
    """How many clients are at work at a time, on this machine alone."""
    return 1 if experiment.engine == "inproc" else max(1, machine.at_once(experiment, machine.resources("")))


def _seconds(experiment: Experiment, actors: int, client: Costs, audit: Costs) -> Seconds:
    ray, cores = experiment.engine != "inproc", len(os.sched_getaffinity(0))

    def exchange(messages: int, each: float, server: float, loaded: float = 1.0) -> float:
        """Ask clients: they and the server share the cores; no client works on two; the largest may be among them."""
        if not ray:
            return messages * (each + server)
        each += _RAY_MESSAGE_S + loaded * _RAY_WRITES * client["write_s"]
        alone = max(ceil(messages / actors) * each, each * client["largest"])
        return max(messages * (each + server) / cores, alone) + _RAY_EXCHANGE_S

    working = client["fixed_s"] + experiment.local_epochs * client["epoch_s"]
    one_round = exchange(experiment.cohort, working, client["reply_s"]) + client["write_s"]
    whole = experiment.rounds * one_round + exchange(experiment.clients, working, 0.0)
    attacks, audited, images = 0.0, len(experiment.audited), experiment.images
    if audit:  # the ladder's networks are small; a probe's step is about what a round does beside its epochs
        whole += 2 * exchange(images, 0.0, 0.0, 0.0)
        whole += audited * exchange(images, client["fixed_s"], 2 * client["write_s"])
        attacks = audit["imports_s"] + audit["easy_s"] + audited * audit["target_s"]
    start = client["ready_s"] + (client["ready_s"] + _RAY_S if ray else 0.0)  # the driver's imports, then the actors'
    return Seconds(start, one_round, whole, attacks, start + whole + attacks)


def _memory(experiment: Experiment, actors: int, client: Costs, audit: Costs) -> Memory:
    up, down, own = client["up"] / _GIB, client["down"] / _GIB, client["peak_gib"]
    # The broadcast and its successor, the sum in float64; of each reply at hand the message and its tensors.
    averaging = client["base_gib"] + 2 * down + 2 * up + 2 * up * (1 + actors)
    # Of each image beyond those measured what was seen, and its copy among those that are attacked together.
    attacking = audit["peak_gib"] + 2 * up * max(0, experiment.images - _MOST) if audit else 0.0
    if experiment.engine == "inproc":
        driver = max(averaging + own - client["base_gib"], attacking)
        return Memory(driver, own, actors, driver)
    driver, actor = max(averaging, attacking) + _RAY_GIB, own + _RAY_GIB
    shared = machine._object_store_bytes(experiment) / _GIB + _RAY_DAEMONS_GIB
    return Memory(driver, actor, actors, driver + actors * actor + shared)


def _disk(experiment: Experiment, actors: int, client: Costs, audit: Costs) -> int:
    """What many clients were sent is recorded once; of private state each client keeps two versions."""
    seen = len(experiment.audited) * (client["down"] + experiment.images * client["up"]) if audit else 0
    ladder = (1 + experiment.images) * audit.get("easy", 0)
    return int(client["down"] + 2 * experiment.clients * client["private"] + seen + ladder)


def _measured(kind: str, experiment: Experiment, copies: int) -> list[Costs]:
    """What so many processes find out at a time."""
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


def _client_costs(experiment: Experiment, folder: Path, costs: Costs) -> None:
    """Of a client of about the mean size, on one thread as in an actor; and of the server's dealing with its reply."""
    torch.set_num_threads(1)
    method, settings = parts.method(experiment)
    sizes = [len(own) for own in Task.of(experiment, experiment.data_root).split.train]
    partition = min(range(len(sizes)), key=lambda p: abs(sizes[p] - fmean(sizes)))
    state = _client(experiment, partition, folder).model.state_dict()
    arrays = pack(shared(state, method.downloads))
    costs["private"] = sum(value.nbytes for name, value in state.items() if name not in arrays)
    del state  # an actor has no second model

    def work(epochs: int) -> ArrayRecord:
        worker = _client(replace(experiment, local_epochs=epochs), partition, folder)
        return pack(worker.fit_named(views(arrays), 0)[0])

    started = time.process_time()
    record, epoch = work(1), time.process_time() - started  # slower than the next ones, whose memory is at hand
    if (one := epoch) <= _LONG_S:
        more = max(2, min(experiment.local_epochs, int(_ENOUGH_S / one)))
        one = _fastest_s(lambda: work(1))
        epoch = max(_fastest_s(lambda: work(more)) - one, 0.0) / (more - 1)
    scale = fmean(sizes) / sizes[partition]
    costs |= {"epoch_s": scale * epoch, "fixed_s": scale * max(one - epoch, 0.0), "peak_gib": _peak_gib()}
    costs |= {"largest": max(sizes) / fmean(sizes), "up": nbytes(record), "down": nbytes(arrays)}
    sent = unpack(record)
    updates = [Update(partition, sizes[partition], sent)] * 4
    summed = _fastest_s(lambda: method(settings).aggregate(iter(updates)))
    costs["reply_s"] = summed / len(updates) + _fastest_s(lambda: unpack(record))
    costs["write_s"] = _fastest_s(lambda: (folder / hashlib.sha256(data := save(sent)).hexdigest()).write_bytes(data))


def _client(experiment: Experiment, partition: int, folder: Path) -> FederatedClient:
    task, store = Task.of(experiment, experiment.data_root), ClientStore(folder, "estimate", partition)
    defence = parts.defence(experiment) if partition in experiment.defended_partitions else None
    return parts.client(experiment)(
        Workplace(experiment, task, *parts.method(experiment), partition, 1, defence, store)
    )


def _audit_costs(experiment: Experiment, folder: Path, costs: Costs) -> None:
    """Of all attacks on the easy rung and on the target of one round, and of importing what scores and reports need."""
    # The last one is what torch imports with the first optimiser.
    needed = ("flfw.audit.server", "flfw.audit.report", "skimage.metrics", "scipy.stats", "torch._dynamo")
    costs["imports_s"] = timeit.timeit(lambda: [importlib.import_module(name) for name in needed], number=1)
    task, (method, settings) = Task.of(experiment, experiment.data_root), parts.method(experiment)
    fresh = ladder_net(RUNGS[1], experiment, task.build_net)
    plain = PlainVictim(fresh, fresh.state_dict(), ("*",), task.inputs)
    costs["easy"] = sum(v.nbytes for v in plain.known.values())
    costs["easy_s"] = _attacks_s(experiment, plain, 1, lambda x, y: plain.gradient(x, y, {}, {}))
    worker = _client(experiment, min(experiment.defended_partitions, default=0), folder)
    with initialising(experiment.seed, "attacker"):
        model = method.build_model(task.build_net(), settings)
    victim = method.victim_model(model, shared(worker.model.state_dict(), method.downloads), task.inputs)
    costs["target_s"] = _attacks_s(experiment, victim, experiment.victim_batch, worker.gradient)
    costs["peak_gib"] = _peak_gib()


def _attacks_s(experiment: Experiment, victim: VictimModel, batch: int, answer: Callable[..., Tensors]) -> float:
    """Seconds of all attacks on one rung of one round; any examples do."""
    task, images, seen, granted = Task.of(experiment, experiment.data_root), min(experiment.images, _MOST), [], []
    for slot in range(images):
        x, y = task.examples("train", np.arange(slot * batch, (slot + 1) * batch))
        sent = {name: value.detach() for name, value in answer(x, y).items()}
        seen.append(Observation(Vantage.SERVER, "probe", RUNGS[-1], 0, slot, slot, sent, victim.known))
        granted.append(Knowledge(victim, batch, y))
    return sum(_attack_s(experiment, name, seen, granted) for name in experiment.attacks) * experiment.images / images


def _attack_s(experiment: Experiment, name: str, seen: list[Observation], granted: list[Knowledge]) -> float:
    """Seconds of one attack with all its iterations; one that has none is run as it is."""

    def seconds(iterations: int) -> float:
        lowered = [f"{parts.short_name(name)}.iterations={iterations}"] if iterations else []
        attack = parts.attacks(replace(experiment, set=(*experiment.set, *lowered)))[name]
        rngs = [torch_generator(experiment.seed, "estimate", o.slot) for o in seen]
        started, before = time.monotonic(), time.process_time()
        with suppress(NotApplicable):
            attack.run(seen, granted, rngs)
        return min(time.monotonic() - started, time.process_time() - before)  # wall clock, unless others are at work

    whole = getattr(parts.attacks(experiment)[name].settings, "iterations", 0)
    if whole < 2:
        return seconds(whole)
    once, few = min(seconds(1) for _ in range(_CALLS)), min(4, whole)
    while (more := seconds(few)) - once < _ENOUGH_S / _CALLS and few < whole:
        few = min(4 * few, whole)
    more = min(more, seconds(few))
    return once + (whole - 1) * max(more - once, 0.0) / (few - 1)


def _fastest_s(work: Callable[[], object]) -> float:
    """Of the processor's time: for one thread that of the clock on the wall, but for what else runs here."""
    return min(timeit.repeat(work, number=1, repeat=_CALLS, timer=time.process_time))


def _peak_gib() -> float:
    """The peak of this process alone; `resource` would tell that of the process it was forked from."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / _GIB


if __name__ == "__main__":
    importlib.import_module("flfw.apps")  # what clients and server import
    about: Costs = {"ready_s": time.time() - float(sys.argv[4]), "base_gib": _peak_gib()}
    Path(sys.argv[3]).mkdir()
    asked = Experiment.from_run_config(json.loads(sys.argv[2]))
    {"client": _client_costs, "audit": _audit_costs}[sys.argv[1]](asked, Path(sys.argv[3]), about)
    print(json.dumps(about))
