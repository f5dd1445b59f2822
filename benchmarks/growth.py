"""Part ``growth`` of `benchmarks.scale`: what a round costs as the number of clients grows, with 100 of them a round.

The clients compute nothing, their data are drawn on demand, and each keeps a small private state on disk. For each
number of clients a process of its own runs check, enrolment, rounds, final evaluation of 100 clients and report.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, final

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from benchmarks.scale_apps import MARKS, dense
from flfw.client.federated_client import FederatedClient
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.inprocess import representatives
from flfw.nets.net import Net, Tensors
from flfw.runs import run
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.client_directory import ClientDirectory, Failure, FailurePolicy, NodeAssignment, Requirements
from flfw.server.strategy import FederatedStrategy

COHORT = 100
_ROOT = Path(__file__).parent.parent
_NOT_COUNTED = 2
_FROM, _TO = 1000, 100_000
GOAL = {"overhead": 1.3, "memory_mb": 200.0}
"""Goals for 100,000 clients: the processor's time for a round over that with 1,000, and more memory than with these."""
_RUN = "import sys; from benchmarks import growth; growth.side(*sys.argv[1:])"


def tiny(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network of two thousand numbers."""
    return dense(shape, classes, 2000)


@final
class StillWithMemory(FederatedClient):
    """Client that trains nothing, and keeps its private tensors."""

    def train(self) -> dict[str, float]:
        """Return a number."""
        return {"loss": 1.0}

    def personalise(self) -> dict[str, float]:
        """Do nothing."""
        return {}

    def accuracy(self, part: str = "test") -> float:
        """Return a number."""
        return 0.5


@final
class StillHeads(FederatedStrategy):
    """Average of the classifiers that notes the processor's seconds after each round and in the final evaluation."""

    client = "benchmarks.growth:StillWithMemory"
    downloads = ("classifier.*",)
    uploads = ("classifier.*",)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average, and note."""
        result = weighted_mean(updates)
        MARKS.note()
        return result

    def evaluate_all(self, grid: Grid, arrays: ArrayRecord, last: int) -> tuple[list[dict[str, Any]], list[Failure]]:
        """Evaluate, and note before and after."""
        MARKS.note()
        result = super().evaluate_all(grid, arrays, last)
        MARKS.note()
        return result


def side(clients: str, rounds: str, engine: str, folder: str) -> None:
    """Run with so many clients in this process, and print its costs as JSON."""
    torch.set_num_threads(1)
    counted, out = int(rounds), Path(folder) / "run"
    experiment = Experiment(
        method="benchmarks.growth:StillHeads",
        net="benchmarks.growth:tiny",
        clients=int(clients),
        sample=min(COHORT, int(clients)),
        rounds=counted + _NOT_COUNTED,
        final_eval_clients=str(COHORT),
        attack=("none",),
        split="sampled_on_demand",
        set=("sampled_on_demand.train=10", "sampled_on_demand.test=10"),
        keep_state=True,
        engine=engine,  # pyright: ignore[reportArgumentType]
        out=out,
    )
    with _measured() as whole:
        run.run(experiment)
    *marks, before, after = MARKS.seconds
    each = [one - other for one, other in zip(marks[_NOT_COUNTED:], marks[_NOT_COUNTED - 1 :], strict=False)]
    files = [path for path in out.rglob("*") if path.is_file()]
    taken = {
        "round_ms": 1000 * median(each),
        "final_s": after - before,
        "enrolment_s": _enrolment(experiment),
        "whole_s": whole[0],
        "driver_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "files": len(files),
        "disk_mb": sum(path.stat().st_size for path in files) / 1e6,
    }
    print(json.dumps(taken))


def _enrolment(experiment: Experiment) -> float:
    """Return the processor's seconds of an enrolment in this process, of which nothing is known from an earlier one."""
    from flfw.engines import apps
    from flfw.messages.inprocess import InProcessGrid
    from flfw.plans.run_plan import plan

    requested = plan(experiment).experiment
    grid = InProcessGrid(apps.client, requested.clients, requested.to_run_config(), introduced=True)
    required = Requirements(code_hash(), *plan(requested).task.input_space)
    with _measured() as taken:
        assignment = NodeAssignment(
            grid, ClientDirectory(FailurePolicy()), requested.clients, 10.0, required, None, representatives(grid)
        )
        assignment.begin()
    return taken[0]


@contextmanager
def _measured() -> Iterator[list[float]]:
    """Measure the processor's seconds of this process; the list has them after the block."""
    taken: list[float] = []
    began = time.process_time()
    yield taken
    taken.append(time.process_time() - began)


def grown(numbers: Sequence[int], rounds: int, engine: str) -> dict[str, Any]:
    """Measure each number of clients; compare 1,000 with 100,000 if both are among them."""
    rows: dict[str, Any] = {}
    for clients in numbers:
        with tempfile.TemporaryDirectory(prefix="flfw-growth-") as folder:
            done = subprocess.run(
                [sys.executable, "-c", _RUN, str(clients), str(rounds), engine, folder],
                cwd=_ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"},
                capture_output=True,
                text=True,
            )
        if done.returncode:
            sys.exit(f"{clients} clients ended with exit code {done.returncode}: {done.stderr[-2000:]}")
        rows[str(clients)] = {name: round(one, 3) for name, one in json.loads(done.stdout.splitlines()[-1]).items()}
    if {str(_FROM), str(_TO)} <= rows.keys():
        few, many = rows[str(_FROM)], rows[str(_TO)]
        rows["overhead"] = round(many["round_ms"] / few["round_ms"], 3)
        rows["memory_mb"] = round(many["driver_mb"] - few["driver_mb"], 1)
    return rows


def is_met(rows: Mapping[str, Any]) -> bool | None:
    """Return whether the goals are met; None: they were not measured."""
    return all(rows[name] <= maximum for name, maximum in GOAL.items()) if GOAL.keys() <= rows.keys() else None


def in_words(rows: Mapping[str, Any]) -> list[str]:
    """Return a line for each number of clients."""
    return [
        f"{int(clients):,} clients: enrolment {row['enrolment_s']} s, a round {row['round_ms']:.0f} ms, final "
        f"evaluation {row['final_s']} s, the whole run {row['whole_s']} s of the processor; driver "
        f"{row['driver_mb']:.0f} MB; {row['files']} files, {row['disk_mb']} MB"
        for clients, row in rows.items()
        if clients.isdecimal()
    ]
