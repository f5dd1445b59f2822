"""Cost of data while clients train: ``python -m benchmarks.data [--json] [--quick] [--only NAME ...]``.

CIFAR-10 is partitioned among 100 clients: its own files below ``$FLFW_DATA``, else as many random pixels in its layout,
which cost the same.

- feed_ratio: feeding a batch of 50 (selection, shifts, mirroring, floats) over a plain training step of CNN 2 on it,
  both with one thread, in turns; the ratio is the median of the turns'.
- resident_ratio: the pixels resident in all processes of a Ray simulation (each page divided by the processes that map
  it) over their size in bytes. The ratio exceeds 1 only if files are mapped twice. Copies would be private memory:
- actor_private_mib: private memory of the largest actor, beyond that of an actor with a tenth of the images;
- private_mib: growth of the private memory of a process that feeds every client.

The last line of the output is one JSON object.
"""

import json
import os
import pickle
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks import output
from benchmarks.startup import actors_below
from flfw import data
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import numpy_generator, torch_generator
from flfw.task.task import Task

_ROOT = Path(__file__).parent.parent
_CLIENTS, _BATCH, _TURNS = 100, 50, 200
_GOALS = {"feed_ratio": 0.10, "resident_ratio": 1.0, "private_mib": 20.0, "actor_private_mib": 20.0}
PARTS = {
    "resident_ratio": output.BenchmarkPart("a simulation with 100 clients, resident pixels", 60, 0),
    "actor_private_mib": output.BenchmarkPart(
        "a simulation with a tenth of the images, private memory of an actor", 30, 0
    ),
    "private_mib": output.BenchmarkPart("each client's data fed once", 10, 10),
    "feed_ratio": output.BenchmarkPart("feeding a batch over a training step", 10, 3),
}
_EXPERIMENT = Experiment(dataset="cifar10", clients=_CLIENTS, attack=("none",))
_MIB = 1024**2


def random_cifar10(root: Path, images: int = 10_000) -> None:
    """Write the files of CIFAR-10, each with so many images of random pixels."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rng = numpy_generator(0, "pixels")
    for file in data.describe("cifar10").files:
        pixels = rng.integers(0, 256, (images, 3072), dtype=np.uint8)
        (root / file).write_bytes(pickle.dumps({"data": pixels, "labels": [i % 10 for i in range(images)]}))


def feeding(task: Task, turns: int) -> dict[str, float]:
    """Measure the median milliseconds of feeding a batch and of a training step on it, and the median ratio."""
    torch.set_num_threads(1)
    net, rng = task.build_net(), torch_generator(0, "batches")
    weights = list(net.parameters())

    def feed(turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        indices = task.split.train[turn % _CLIENTS]
        chosen = torch.randperm(len(indices), generator=rng).numpy()[:_BATCH]
        return task.examples("train", indices[chosen], vary=rng)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        loss = cross_entropy(net(task.inputs.normalise(x)), y)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=0.01)

    times: list[tuple[float, float]] = []
    for turn in range(turns):
        started = time.perf_counter()
        x, y = feed(turn)
        fed = time.perf_counter()
        step(x, y)
        times.append((fed - started, time.perf_counter() - fed))
    fed, stepped = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    return {"feed_ms": round(fed, 3), "step_ms": round(stepped, 3), "feed_ratio": round(ratio, 4)}


def private_mib(task: Task) -> float:
    """Measure the growth of this process's private memory when each client's data are fed once."""
    before = _own_mib(os.getpid())
    for client, indices in enumerate(task.split.train):
        for start in range(0, len(indices), _BATCH):
            task.examples("train", indices[start : start + _BATCH], vary=torch_generator(0, "batches", client))
    return round(_own_mib(os.getpid()) - before, 1)


def _own_mib(pid: int) -> float:
    """Return the private memory of a process: no pages of files, nothing shared."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return int((status.partition("RssAnon:")[2].split() or ["0"])[0]) / 1024


def simulated(root: Path, clients: int) -> dict[str, float]:
    """Run a round of all clients under Ray and return the peaks of its memory, in MiB.

    Returns:
        ``proportional``: pixels resident in the driver and its actors, each page divided by its processes;
        ``added_up``: undivided; ``own``: private memory of the largest actor.
    """
    worst = {"proportional": 0.0, "added_up": 0.0, "own": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--method fedavg --dataset cifar10 --split iid --clients {clients} --rounds 1 --local-epochs 1"
        command = [sys.executable, "sim.py", *flags.split(), "--attack", "none"]
        command += ["--data-root", str(root), "--out", f"{folder}/run"]
        with subprocess.Popen(command, cwd=_ROOT, stdout=sys.stderr) as process:
            while process.poll() is None:
                time.sleep(0.5)
                actors = actors_below(process.pid)
                with _standing_still([process.pid, *actors]):
                    shares, wholes = zip(*map(_pixels, (process.pid, *actors)), strict=True)
                now = {
                    "proportional": sum(shares),
                    "added_up": sum(wholes),
                    "own": max(map(_own_mib, actors), default=0),
                }
                worst = {name: max(value, now[name]) for name, value in worst.items()}
    if process.returncode:
        sys.exit(f"sim.py ended with exit code {process.returncode}; nothing was measured")
    return worst


@contextmanager
def _standing_still(pids: list[int]) -> Iterator[None]:
    """Stop processes for a moment: else a page would count in full in one, and by halves in another a little later."""
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _pixels(pid: int) -> tuple[float, float]:
    """Return the resident MiB of a process's mapped pixel files: each page divided by its processes, and undivided."""
    try:
        text = Path(f"/proc/{pid}/smaps").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0, 0.0
    matches = re.findall(r"/pixels/\S*_x\.npy\n(?:.*\n)*?Rss:\s+(\d+) kB\nPss:\s+(\d+) kB", text)
    return sum(int(pss) for _, pss in matches) / 1024, sum(int(rss) for rss, _ in matches) / 1024


def measure(run: output.BenchmarkRun, root: Path) -> dict[str, Any]:
    """Measure the chosen parts; the simulations come first, before this process touches a page of the same files."""
    results: dict[str, Any] = {}
    simulate = cache(lambda: simulated(root, _CLIENTS))  # two parts need it
    for _ in run.parts("resident_ratio"):
        peaks = simulate()
        results |= {f"{key}_mib": round(peaks[key], 1) for key in ("proportional", "added_up")}
    for name in run.parts("actor_private_mib"):
        largest = simulate()["own"]
        with tempfile.TemporaryDirectory() as small:
            random_cifar10(Path(small), images=1000)
            results[name] = round(largest - simulated(Path(small), 6)["own"], 1)
    task = plan(without_auto(_EXPERIMENT)).task.load(root)
    if "resident_ratio" in run.names:
        size = (task.dataset.train_x.nbytes + task.dataset.test_x.nbytes) / _MIB
        results |= {"pixels_mib": round(size, 1), "resident_ratio": round(simulate()["proportional"] / size, 3)}
    for name in run.parts("private_mib"):
        results[name] = private_mib(task)
    for _ in run.parts("feed_ratio"):
        results |= feeding(task, run.amount(_TURNS, 20))
    goals = {name: goal for name, goal in _GOALS.items() if name in results}
    return {**results, "goal": goals, "met": {name: results[name] <= goal for name, goal in goals.items()}}


def main() -> None:
    """Measure and print."""
    run = output.start(output.parser(__doc__), PARTS)
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # random or re-encoded pixels are not the published ones
        os.environ.setdefault("XDG_CACHE_HOME", scratch)
        root = Path(os.environ.get("FLFW_DATA", scratch))
        if not (root / "cifar-10-batches-py").exists():
            root = Path(scratch)
            run.begin("random pixels in the layout of CIFAR-10")
            random_cifar10(root)
        results = measure(run, root)
    lines = [f"{name:17} {json.dumps(results[name]):>8}   goal <= {goal}" for name, goal in results["goal"].items()]
    run.report(results, lines)


if __name__ == "__main__":
    main()
