"""What data cost while clients train: ``python -m benchmarks.data [--json]``.

Two claims, measured in one run with CIFAR-10 shared out to 100 clients (its own files below ``$FLFW_DATA``, else as
many random pixels in its layout, which cost the same):

- feeding a batch of 50 (choosing, shifting, mirroring, floats) against a plain training step of CNN 2 on it, both with
  one thread, in turns; the ratio is the median of the turns';
- the pixels resident in all processes of a Ray simulation (each page divided by the processes that map it) against
  their size as bytes. That can only exceed 1 if files are mapped twice; copies would be a process's own memory, so that
  of the largest actor is compared with an actor's on a tenth as many images, and of a process that feeds every client
  what it grew by is counted.

The last line of the output is one JSON object.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks import output
from benchmarks.startup import actors_below
from flfw import data
from flfw.experiment import Experiment
from flfw.resolve import resolve
from flfw.rng import numpy_generator, torch_generator
from flfw.task import Task

_ROOT = Path(__file__).parent.parent
_CLIENTS, _BATCH, _TURNS = 100, 50, 200
_GOALS = {"feed_ratio": 0.10, "resident_ratio": 1.0, "private_mib": 20.0, "actor_private_mib": 20.0}
_EXPERIMENT = Experiment(dataset="cifar10", clients=_CLIENTS, attack=("none",))
_MIB = 1024**2


def random_cifar10(root: Path, images: int = 10_000) -> None:
    """CIFAR-10's files with so many images of random pixels each."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rng = numpy_generator(0, "pixels")
    for file in data.describe("cifar10").files:
        pixels = rng.integers(0, 256, (images, 3072), dtype=np.uint8)
        (root / file).write_bytes(pickle.dumps({"data": pixels, "labels": [i % 10 for i in range(images)]}))


def feeding(task: Task) -> dict[str, float]:
    """Milliseconds of feeding a batch and of a training step on it, medians; and the median of their ratios."""
    torch.set_num_threads(1)
    net, rng = task.build_net(), torch_generator(0, "batches")
    weights = list(net.parameters())

    def feed(turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        own = task.split.train[turn % _CLIENTS]
        return task.examples("train", own[torch.randperm(len(own), generator=rng).numpy()[:_BATCH]], vary=rng)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        loss = cross_entropy(net(task.inputs.normalise(x)), y)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=0.01)

    times: list[tuple[float, float]] = []
    for turn in range(_TURNS):
        started = time.perf_counter()
        x, y = feed(turn)
        fed = time.perf_counter()
        step(x, y)
        times.append((fed - started, time.perf_counter() - fed))
    fed, stepped = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    return {"feed_ms": round(fed, 3), "step_ms": round(stepped, 3), "feed_ratio": round(ratio, 4)}


def private_mib(task: Task) -> float:
    """What feeding each client's data once adds to the memory that is this process's alone."""
    before = _own_mib(os.getpid())
    for client, own in enumerate(task.split.train):
        for start in range(0, len(own), _BATCH):
            task.examples("train", own[start : start + _BATCH], vary=torch_generator(0, "batches", client))
    return round(_own_mib(os.getpid()) - before, 1)


def _own_mib(pid: int) -> float:
    """Memory of a process that is no page of a file and not shared."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return int((status.partition("RssAnon:")[2].split() or ["0"])[0]) / 1024


def simulated(root: Path, clients: int) -> dict[str, float]:
    """A round of all clients under Ray, at the worst moments, in MiB.

    Returns:
        ``proportional``: pixels resident in the driver and its actors, each page divided by who shares it;
        ``added_up``: undivided; ``own``: the largest actor's own memory.
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
    """Processes stopped for a moment: else a page would count in full here, and by halves there a little later."""
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
    """MiB of a process's mapped pixel files that are resident: each page divided by who shares it; and undivided."""
    try:
        text = Path(f"/proc/{pid}/smaps").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0, 0.0
    found = re.findall(r"/pixels/\S*_x\.npy\n(?:.*\n)*?Rss:\s+(\d+) kB\nPss:\s+(\d+) kB", text)
    return sum(int(pss) for _, pss in found) / 1024, sum(int(rss) for rss, _ in found) / 1024


def measure(root: Path) -> dict[str, Any]:
    """All of it."""
    many = simulated(root, _CLIENTS)  # before this process touches a page of the same files
    with tempfile.TemporaryDirectory() as small:
        random_cifar10(Path(small), images=1000)
        few = simulated(Path(small), 6)
    task = Task.of(resolve(_EXPERIMENT), root)
    size = (task.dataset.train_x.nbytes + task.dataset.test_x.nbytes) / _MIB
    found: dict[str, Any] = {"private_mib": private_mib(task), **feeding(task)}
    found |= {f"{name}_mib": round(many[name], 1) for name in ("proportional", "added_up")}
    found |= {"pixels_mib": round(size, 1), "resident_ratio": round(many["proportional"] / size, 3)}
    found["actor_private_mib"] = round(many["own"] - few["own"], 1)
    return {**found, "goal": _GOALS, "met": {name: found[name] <= goal for name, goal in _GOALS.items()}}


def main() -> None:
    """Measure and print."""
    chosen = output.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # random or re-encoded pixels are not the published ones
        os.environ.setdefault("XDG_CACHE_HOME", scratch)
        root = Path(os.environ.get("FLFW_DATA", scratch))
        if not (root / "cifar-10-batches-py").exists():
            root = Path(scratch)
            random_cifar10(root)
        found = measure(root)
    lines = [f"{name:17} {json.dumps(found[name]):>8}   goal <= {goal}" for name, goal in _GOALS.items()]
    output.say(found, lines, only_json=chosen.json)


if __name__ == "__main__":
    main()
