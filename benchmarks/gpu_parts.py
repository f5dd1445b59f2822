"""Parts of `benchmarks.gpu`: each measures one thing on a device, beside the processor or beside breaching.

A part that cannot be finished says why under ``missing``; what it did measure stands beside that.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.func import grad_and_value

from benchmarks import absent, breaching_env, quickstart
from benchmarks.attack_victims import Victims, victims
from benchmarks.direct_rounds import DirectRounds, on
from benchmarks.our_search import Ours, errors, objective_of, wait
from benchmarks.their_search import Theirs
from benchmarks.turns import in_turns, ratio, timed
from flfw.comparisons.figures.norms import Trainee
from flfw.errors import RunError
from flfw.files.provenance import code_hash
from flfw.files.sealed import write_atomic
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.evaluation import stacked, stacked_given
from flfw.inversion.graph import Graph
from flfw.nets import Tensors
from flfw.papers import hyperfl, published
from flfw.papers.evidence.records import FOLDER, file_of
from flfw.papers.preset import varied
from flfw.task.task import Task

CLOSE: Mapping[str, float] = {
    "float64_gradient": 1e-10,
    "float64_objective": 1e-12,
    "float64_slope": 1e-8,
    "float32_gradient": 1e-4,
    "float32_objective": 1e-5,
    "float32_slope": 1e-2,
    "float32_update": 1e-2,
}
"""Largest differences of the device from the processor, relative to the norm but for the objective.

A slope is the objective's gradient by the guess: a second derivative, which magnifies rounding where a unit is near its
kink. An update is of a client's epoch, over which differences grow.
"""
SAME: Mapping[str, float] = {"objective": 1e-6, "gradient": 1e-5}
"""Largest differences of the search from breaching's at the first guess; beyond them nothing is timed."""
_SAME_STEP = 1e-4
_CELL = "hyperfl.1/FedAvg/Fashion-MNIST/20/accuracy"
_RESNET = "benchmarks.residual:resnet18"
_NETWORKS = {False: ("lenet", "convnet64", _RESNET), True: ("lenet",)}
_CLIENTS = 64
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Amount:
    """Amount of work.

    Attributes:
        device: ``cuda`` or ``cpu``.
        quick: whether it is the least of everything.
        state: file of an unfinished cell, which goes on from there.
        threads: of the processor, on both sides.
        turns: of each side.
        ends: reading of `time.monotonic` before which the cell is to end.
    """

    device: torch.device
    quick: bool
    state: Path
    threads: int
    turns: int
    ends: float = inf


# --- the same numbers on both ---


def agreement(amount: Amount) -> dict[str, Any]:
    """Compute the differences of the device from the processor, and name those beyond `CLOSE`.

    For a network with such differences they are computed again without cuDNN, to tell whose they are.
    """
    rows: dict[str, dict[str, float]] = {}
    plain: dict[str, dict[str, float]] = {}
    for network in _NETWORKS[amount.quick]:
        rows[network] = _differences(network, amount.device)
        if too_far({network: rows[network]}):
            with torch.backends.cudnn.flags(enabled=False):
                plain[network] = _differences(network, amount.device)
    for method in ("fedavg",) if amount.quick else ("fedavg", "hyperfl", "fed_cdp"):
        here, there = (_epoch(method, device) for device in (torch.device("cpu"), amount.device))
        rows[method] = {"float32_update": relative(here, there)}
    return {"apart": rows, "without_cudnn": plain, "at_most": dict(CLOSE), "too_far": too_far(rows)}


def _differences(network: str, device: torch.device) -> dict[str, float]:
    """Return the differences of a victim's numbers on the device, by precision and kind."""
    attacked, differences = victims(network, 1, batch=2), dict[str, float]()
    for name, precision in {"float32": torch.float32, "float64": torch.float64}.items():
        here, there = (_computed(attacked.to(d, precision)) for d in (torch.device("cpu"), device))
        differences |= {f"{name}_{kind}": value for kind, value in apart(here, there).items()}
    return differences


def too_far(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the differences beyond `CLOSE`, each as ``ROW: KIND``; NaN is beyond."""
    every = [(row, kind, value) for row, kinds in rows.items() for kind, value in kinds.items()]
    return [f"{row}: {kind}" for row, kind, value in every if not value <= CLOSE[kind]]


def _computed(attacked: Victims) -> dict[str, Tensors]:
    """Return a victim's gradient for its first guess, and the objective there with its slope, on the processor."""
    model = attacked.model()
    gradient = model.gradient(attacked.start[0], attacked.labels[0], {}, {})
    objective, (problem,) = objective_of(attacked)
    slope, (value, _) = grad_and_value(objective, has_aux=True)(problem.guess, objective.constants(problem))
    on_processor = lambda tensors: {name: value.detach().cpu() for name, value in tensors.items()}  # noqa: E731
    return {"gradient": on_processor(gradient), "slope": on_processor(slope), "objective": on_processor({"": value})}


def apart(here: Mapping[str, Tensors], there: Mapping[str, Tensors]) -> dict[str, float]:
    """Return the difference of each kind of numbers: of the objective as it is, of others relative to the norm."""
    kinds = {kind: relative(here[kind], there[kind]) for kind in here if kind != "objective"}
    return {**kinds, "objective": float((here["objective"][""] - there["objective"][""]).abs())}


def relative(here: Tensors, there: Tensors) -> float:
    """Return the norm of the difference over the norm of the first.

    >>> relative({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([3.0, 3.0])})
    0.2
    """
    norm = lambda values: torch.cat([value.flatten().double() for value in values]).norm()  # noqa: E731
    return float(norm([here[name] - there[name] for name in here]) / norm(list(here.values())))


def _epoch(method: str, device: torch.device) -> Tensors:
    """Return the update of a client's epoch."""
    trainee = Trainee(on(quickstart.experiment(method, 1), device), quickstart.task(1))
    trainee.turn()
    return trainee.update()


# --- whole rounds of clients ---


def client_rounds(amount: Amount) -> dict[str, Any]:
    """Measure P8: client-rounds a second, over Flower's and over those of the plain loop of its quickstart.

    Raises:
        RunError: ours and the plain loop do not train the same.
    """
    clients = 4 if amount.quick else _CLIENTS
    work = quickstart.task(clients)
    ours, plain = _rounds(amount.device, work, clients), _rounds(amount.device, work, clients).tensors
    sides = {
        "ours": partial(_rate, clients, amount.device, ours.round),
        "plain": partial(
            _rate, clients, amount.device, partial(quickstart.plain_round, plain, work, quickstart.BATCH, amount.device)
        ),
    }
    if not (exact := _same_step(amount.device, quickstart.task(2))) <= _SAME_STEP:
        raise RunError(f"Expected a step as the plain loop's within {_SAME_STEP:g}, got {exact:g}.")
    in_turns(sides, 1)  # the first rounds set things up
    rates = in_turns(sides, amount.turns)
    figures: dict[str, Any] = {side: statistics.median(column) for side, column in rates.items()}
    figures |= {"clients": clients, "examples": quickstart.EXAMPLES, "batch": quickstart.BATCH, "exact": exact}
    figures["ours_over_plain"] = ratio(rates["ours"], rates["plain"])
    if absent.is_absent("flwr") or absent.is_absent("ray"):
        return {**figures, "without": "Flower or Ray is not installed: ours over Flower is not measurable here"}
    words = [sys.executable, "-m", "benchmarks.quickstart", str(clients), str(amount.turns), amount.device.type]
    done = subprocess.run(words, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {**figures, "without": f"Flower's simulation ended with exit code {done.returncode}"}
    flower = float(done.stdout.splitlines()[-1])
    return {**figures, "flower": flower, "ours_without_messages_over_flower": figures["ours"] / flower}


def batched(amount: Amount) -> dict[str, Any]:
    """Measure client-rounds a second, one by one and together."""
    clients = 4 if amount.quick else _CLIENTS
    sizes, work = (1, 4) if amount.quick else (1, 8, clients), quickstart.task(clients)
    each = {str(size): _rounds(amount.device, work, size) for size in sizes}
    sides = {size: partial(_rate, clients, amount.device, one.round) for size, one in each.items()}
    in_turns(sides, 1)
    rates = in_turns(sides, amount.turns)
    return {"clients": clients, "clients_per_second": {size: statistics.median(row) for size, row in rates.items()}}


def _rounds(device: torch.device, work: Task, together: int, batch: int = quickstart.BATCH) -> DirectRounds:
    experiment = quickstart.experiment("fedavg", len(work.split.train), batch)
    return DirectRounds(on(experiment, device), work, together)


def _rate(clients: int, device: torch.device, work: Callable[[], object]) -> float:
    """Measure client-rounds a second of a round, until the device is done."""
    started = time.perf_counter()
    work()
    wait(device)
    return clients / (time.perf_counter() - started)


def _same_step(device: torch.device, work: Task) -> float:
    """Return the distance of a round of one step, on all examples, from the plain loop's, over its change."""
    ours = _rounds(device, work, len(work.split.train), quickstart.EXAMPLES)
    before = dict(ours.tensors)
    plain = quickstart.plain_round(before, work, quickstart.EXAMPLES, device)
    ours.round()
    changes = ({n: after[n].cpu() - before[n] for n in before} for after in (plain, ours.tensors))
    return relative(*changes)


# --- attacks ---


def inversion(amount: Amount) -> dict[str, Any]:
    """Measure image-iterations a second of one victim with a batch, ours and breaching's, on the device.

    Raises:
        RunError: the two do not compute the same at the first guess.
    """
    network, batch, iterations, warmup = ("lenet", 2, 5, 0) if amount.quick else (_RESNET, 8, 100, 10)
    attacked = victims(network, 1, batch=batch)
    ours = Ours(attacked.to(amount.device), compiled=False)
    ours.seconds(3)  # the first iterations set things up
    known = {"network": network, "batch": batch, "iterations": iterations, "trace_s": ours.built_s}
    sides: dict[str, Callable[[], float]] = {"ours": partial(ours.rate, iterations)}
    python = breaching_env.installed()
    if python is None:
        rates = in_turns(sides, amount.turns)
        why = "no environment of breaching: ours over theirs is not measurable here"
        return {**known, "ours": statistics.median(rates["ours"]), "without": why}
    theirs = Theirs(python, amount.threads, amount.device.type)
    with tempfile.TemporaryDirectory() as folder:
        _, answer = theirs(attacked, Path(folder), "objective", 3)
        exact = {kind: float(value.max()) for kind, value in errors(ours, answer).items()}
        if far := {kind: value for kind, value in exact.items() if not value <= SAME[kind]}:
            raise RunError(f"Expected breaching's numbers at the first guess within {dict(SAME)}, got {far}.")
        sides["theirs"] = partial(theirs.rate, attacked, Path(folder), iterations, warmup)
        rates = in_turns(sides, amount.turns)
    medians = {side: statistics.median(column) for side, column in rates.items()}
    return {**known, **medians, "ours_over_theirs": ratio(rates["ours"], rates["theirs"]), "exact": exact}


# --- memory ---


def memory(amount: Amount) -> dict[str, Any]:
    """Measure the peak memory of a search's step in MB, beside the peak that the search foresees."""
    rows: dict[str, Any] = {}
    for network, batch in (("lenet", 1),) if amount.quick else (("lenet", 1), ("convnet64", 1), (_RESNET, 8)):
        objective, (problem,) = objective_of(victims(network, 1, batch=batch).to(amount.device))
        given = objective.constants(problem)
        graph = Graph(grad_and_value(objective, has_aux=True), (problem.guess, given), ComputeLimits())
        step = partial(graph, stacked([problem.guess]), stacked_given([given]))
        timed(step, 2)
        rows[network] = {"batch": batch, "foreseen_mb": graph.bytes / 1e6, "peak_mb": peak(step, amount.device) / 1e6}
    return rows


def peak(work: Callable[[], object], device: torch.device) -> int:
    """Measure the bytes that some work has at once beside those before it.

    On the processor these are resident pages, which the allocator may have kept from earlier work: a lower bound.
    """
    if device.type == "cuda":
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    Path("/proc/self/clear_refs").write_text("5")  # the largest size is that of now
    before = _resident("VmRSS")
    work()
    return max(0, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


# --- a published cell ---


def cell(amount: Amount) -> dict[str, Any]:
    """Measure a cell of the papers at full scale, clients together; an unfinished one goes on at the next call."""
    (published_cell,) = published.table("hyperfl.1").select(_CELL)
    preset = varied(hyperfl.accuracies(published_cell, "full"), published_cell.table, "authors")
    name, experiment = f"{_CELL} authors seed 0", on(preset.choices[0][0], amount.device)
    if amount.quick:
        experiment = replace(experiment, rounds=2, local_epochs=1, clients=4)
    rounds = DirectRounds(experiment, None, experiment.clients if amount.device.type == "cuda" else 1)
    key = json.dumps([name, code_hash(), amount.device.type, amount.quick])
    seconds = restore(rounds, amount.state, key)
    known = {"cell": name, "rounds": experiment.rounds, "published": published_cell.value, **_on_processor()}
    longest = 0.0
    while rounds.done < experiment.rounds and time.monotonic() + longest < amount.ends:
        started = time.monotonic()
        rounds.round(evaluated=True)
        wait(amount.device)
        longest = max(longest, took := time.monotonic() - started)
        seconds += took
        keep(rounds, amount.state, key, seconds)
    if rounds.done < experiment.rounds:
        done = f"{rounds.done} of {experiment.rounds} rounds are done; call again"
        return {**known, "seconds": seconds, "missing": done}
    return {**known, "seconds": seconds, "value": preset.figure.factor * rounds.accuracy()}


def keep(rounds: DirectRounds, state: Path, key: str, seconds: float) -> None:
    """Write the state after a round."""
    held, packed = BytesIO(), {f"tensors/{name}": value.cpu().numpy() for name, value in rounds.tensors.items()}
    np.savez(held, allow_pickle=False, key=key, done=rounds.done, seconds=seconds, **packed)
    state.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(state, held.getvalue())


def restore(rounds: DirectRounds, state: Path, key: str) -> float:
    """Go on after the round that was kept with the same key; return the seconds of the rounds so far."""
    if not state.exists():
        return 0.0
    with np.load(state) as held:
        if str(held["key"]) != key:  # of other code, or of another device
            return 0.0
        rounds.tensors = {name: torch.from_numpy(held[f"tensors/{name}"]) for name in rounds.tensors}
        rounds.done = int(held["done"])
        return float(held["seconds"])


def _on_processor() -> dict[str, Any]:
    """Return the value and the seconds of the record that the project has of this cell, if it has one."""
    kept = file_of(FOLDER, _CELL, "authors", seed=0, choice=0)
    if not kept.exists():
        return {}
    stored = json.loads(kept.read_text())
    return {"recorded": stored["value"], "recorded_seconds": stored["seconds"], "recorded_on": stored["hardware"]}


MEASURES: Mapping[str, Callable[[Amount], dict[str, Any]]] = {
    "agreement": agreement,
    "client_rounds": client_rounds,
    "inversion": inversion,
    "batched": batched,
    "cell": cell,
    "memory": memory,
}
