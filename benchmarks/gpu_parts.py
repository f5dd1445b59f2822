"""Parts of `benchmarks.gpu`: each measures one thing on a device, beside the processor or beside breaching.

A part that cannot be finished says why under ``missing``; what it did measure stands beside that.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.func import grad_and_value

from benchmarks import breaching_env, local_steps
from benchmarks.attack_victims import Victims, victims
from benchmarks.our_search import Ours, errors, objective_of, wait
from benchmarks.their_search import Theirs
from benchmarks.turns import in_turns, ratio, timed
from flfw.experiment import Experiment
from flfw.inversion.compute import Compute
from flfw.inversion.evaluation import stacked, stacked_given
from flfw.inversion.graph import Graph
from flfw.nets import Tensors
from flfw.papers.evidence.priorities import Item, items
from flfw.papers.evidence.records import FOLDER, file_of, read
from flfw.papers.timing import Trainee

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
_QUICK_CELL = "fed_cdp.5/Cancer/0.5/accuracy"
_NETWORKS = {False: ("lenet", "convnet64", "resnet18"), True: ("lenet",)}
_EXAMPLES, _BATCH = 50, 10
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Amount:
    """Amount of work.

    Attributes:
        device: ``cuda`` or ``cpu``.
        quick: whether it is the least of everything.
        minutes: most of them for the cell.
        runs: folder of the cell's run, which goes on from there.
        threads: of the processor, on both sides.
        turns: of each side.
    """

    device: torch.device
    quick: bool
    minutes: float
    runs: Path
    threads: int
    turns: int


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
    for method in _methods(amount):
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
    slope, (value, _) = grad_and_value(objective, has_aux=True)(problem.guess, objective.given(problem))
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


# --- a client's steps ---


def _methods(amount: Amount) -> tuple[str, ...]:
    return ("fedavg",) if amount.quick else ("fedavg", "hyperfl", "fed_cdp")


def _trainee(method: str, device: torch.device) -> Trainee:
    experiment = Experiment(
        method=method,
        dataset="fmnist",
        net="cnn1",
        clients=2,
        attack=("none",),
        batch_size=_BATCH,
        gpus_per_client=1.0 if device.type == "cuda" else 0.0,
    )
    return Trainee(experiment, local_steps.task("FMNIST", experiment, _EXAMPLES))


def _epoch(method: str, device: torch.device) -> Tensors:
    trainee = _trainee(method, device)
    trainee.turn()
    return trainee.update()


def steps(amount: Amount) -> dict[str, Any]:
    """Measure P8: milliseconds of a client's local step on the processor and on the device, and their ratio."""
    rows = {}
    for method in _methods(amount):
        devices = {"cpu": torch.device("cpu"), "device": amount.device}
        trainees = {name: _trainee(method, device) for name, device in devices.items()}
        for trainee in trainees.values():
            trainee.turn()  # the first steps set things up
        sides = {name: partial(_elapsed, trainee, devices[name]) for name, trainee in trainees.items()}
        times = in_turns(sides, amount.turns)
        ms = {f"{name}_ms": round(1000 * statistics.median(column), 3) for name, column in times.items()}
        rows[method] = {**ms, "cpu_over_device": ratio(times["cpu"], times["device"])}
    return {"batch": _BATCH, "examples": _EXAMPLES, "methods": rows}


def _elapsed(trainee: Trainee, device: torch.device) -> float:
    """Measure the seconds of a local step, mean over a round, until the device is done."""
    wait(device)
    started = time.perf_counter()
    trainee.turn()
    wait(device)
    return (time.perf_counter() - started) / trainee.steps


# --- clients together ---


def cohort(amount: Amount) -> dict[str, Any]:
    """Measure clients a second in whole rounds, one by one and together, by ``sim.py --cohort``."""
    clients, rounds = (4, 2) if amount.quick else (64, 4)
    rows = {str(size): _rounds(amount, size, clients, rounds) for size in ((1, 4) if amount.quick else (1, 8, 64))}
    return {"clients": clients, "clients_per_second": rows}


def _rounds(amount: Amount, size: int, clients: int, rounds: int) -> float:
    """Return clients a second: the median over the rounds after the first."""
    gpu = "1" if amount.device.type == "cuda" else "0"
    with tempfile.TemporaryDirectory() as folder:
        words = f"--method fedavg --dataset digits --clients {clients} --rounds {rounds} --batch-size {_BATCH} "
        words += f"--attack none --engine inproc --gpus-per-client {gpu} --cohort {size} --out {folder}/run"
        command = [sys.executable, "sim.py", *words.split()]
        subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)
        result = json.loads(Path(folder, "run", "result.json").read_text())
    return clients / statistics.median(one["seconds"] for one in result["rounds"][1:])


# --- attacks ---


def attack(batch: int, compiled: bool, amount: Amount) -> dict[str, Any]:
    """Measure image-iterations a second of one victim with a batch, ours and breaching's, on the device.

    Raises:
        SystemExit: the two do not compute the same at the first guess.
    """
    network, iterations, warmup = ("lenet", 5, 0) if amount.quick else ("resnet18", 100, 10)
    attacked = victims(network, 1, batch=batch)
    ours = Ours(attacked.to(amount.device), compiled=compiled)
    ours.seconds(3)  # the first iterations set things up
    known = {"network": network, "batch": batch, "iterations": iterations, "compile_s": ours.built_s}
    sides: dict[str, Callable[[], float]] = {"ours": partial(ours.rate, iterations)}
    python = breaching_env.installed()
    if python is None:
        rates = in_turns(sides, amount.turns)
        why = "no environment of breaching; `python -m benchmarks.breaching_env` installs it"
        return {**known, "ours": statistics.median(rates["ours"]), "missing": why}
    theirs = Theirs(python, amount.threads, amount.device.type)
    with tempfile.TemporaryDirectory() as folder:
        _, answer = theirs(attacked, Path(folder), "objective", 3)
        exact = {kind: float(value.max()) for kind, value in errors(ours, answer).items()}
        if far := {kind: value for kind, value in exact.items() if not value <= SAME[kind]}:
            sys.exit(f"Expected the numbers of breaching at the first guess within {dict(SAME)}, got {far}.")
        sides["theirs"] = partial(theirs.rate, attacked, Path(folder), iterations, warmup)
        rates = in_turns(sides, amount.turns)
    medians = {side: statistics.median(column) for side, column in rates.items()}
    return {**known, **medians, "ours_over_theirs": ratio(rates["ours"], rates["theirs"]), "exact": exact}


# --- memory ---


def memory(amount: Amount) -> dict[str, Any]:
    """Measure the peak memory of a search's step in MB, beside the peak that the search foresees."""
    rows: dict[str, Any] = {}
    for network, batch in (("lenet", 1),) if amount.quick else (("lenet", 1), ("convnet64", 1), ("resnet18", 8)):
        objective, (problem,) = objective_of(victims(network, 1, batch=batch).to(amount.device))
        given = objective.given(problem)
        graph = Graph(grad_and_value(objective, has_aux=True), (problem.guess, given), Compute())
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


def cell(path: str, amount: Amount) -> dict[str, Any]:
    """Measure a cell of the papers at full scale; an unfinished one goes on at the next call."""
    records = amount.runs / "records"
    item = next(items(_QUICK_CELL if amount.quick else path))
    key = json.dumps([item.cell.path, item.variant, item.seed, item.choice])
    words = ["--item", key, "--runs", amount.runs, "--folder", records, "--gpus", int(amount.device.type == "cuda")]
    worker = subprocess.Popen([sys.executable, "-m", "flfw.papers.evidence", *map(str, words)], cwd=_ROOT)
    known = {"cell": item.name, "rounds": item.run.rounds, "published": item.cell.value, **_on_processor(item)}
    try:
        code = worker.wait(60 * amount.minutes)
    except subprocess.TimeoutExpired:
        return {**known, "missing": f"not finished after {amount.minutes:g} minutes; call again"}
    finally:
        worker.terminate()
        worker.wait()
    if code:
        return {**known, "missing": f"not measured: python -m flfw.papers.evidence ended with exit code {code}"}
    (record,) = (one for one in read(records) if one.cell == item.cell.path)
    return {**known, "value": record.value, "seconds": record.seconds}


def _on_processor(item: Item) -> dict[str, Any]:
    """Return the value and the seconds of the record that the project has of this item, if it has one."""
    kept = file_of(FOLDER, item.cell.path, item.variant, item.seed, item.choice)
    if not kept.exists():
        return {}
    stored = json.loads(kept.read_text())
    return {"recorded": stored["value"], "recorded_seconds": stored["seconds"], "recorded_on": stored["hardware"]}
