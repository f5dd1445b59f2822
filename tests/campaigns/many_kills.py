"""Many kills in one run: ``python -m tests.campaigns.many_kills [--json] [--quick] [--only NAME ...]``.

A run is made once in process. Then it is made on a Ray cluster of a head and three workers, on this machine, and every
few seconds something gets SIGKILL, drawn at random: an actor, the raylet of a worker, all processes of a worker, or
sim.py. Dead workers are started again once at most one is left, and a run that ended is resumed, or begun again if it
has no checkpoint yet. A run that is complete before all kills were done is followed by another. Each must end with the
numbers of the run in process: result.json and the tables without times, the tensors of checkpoints; private tensors
are compared by what later rounds make of them. Clients train in cohorts of two; ``sums`` is a method whose actors send
sums of blocks, ``private`` one whose clients keep tensors. Exit code 1 if a run differs or does not end. The last line
of the output is one JSON object.
"""

import contextlib
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from benchmarks import output
from benchmarks.local_federation import ROOT
from benchmarks.process_family import command_line
from tests.campaigns.ray_nodes import RayNodes, ray_nodes
from tests.campaigns.same_results import differences, numbers

_COMMON = "--rounds 40 --batched-clients 2 --local-epochs 2 --attack none"
RUNS = {
    "sums": f"--method fedavg --net linear --clients 20 {_COMMON}",
    "private": f"--method hyperfl --set hidden=16 embedding=8 sampled.train=50 --split sampled --clients 10 {_COMMON}",
}
PARTS = {
    "sums": output.BenchmarkPart("many kills of runs with sums of blocks", 300, 50),
    "private": output.BenchmarkPart("many kills of runs with private tensors", 300, 0),
}
_WORKERS = [(1, 0), (1, 0), (2, 0)]  # cores and GPUs
_KINDS = {"actor": 4, "raylet": 1, "node": 2, "sim.py": 2}  # weights
_PAUSE_S = (0.5, 6.0)
_LIMIT_S = 600.0
_STARTS = 40  # of one run, at most


@final
@dataclass
class KillSeries:
    """Outcomes of many kills.

    Attributes:
        kills: count of each kind.
        starts: count of what was done after an end: ``begun``, ``resumed``, ``begun again``.
        equal: runs with the numbers of the run in process.
        bad: description of each run that differs or did not end.
    """

    kills: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    equal: int = 0
    bad: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Return the numbers for the report."""
        return {"kills": dict(self.kills), "starts": dict(self.starts), "equal": self.equal, "bad": self.bad}


@final
class KilledRuns:
    """Runs of some flags on a cluster whose processes are killed.

    Args:
        flags: of the runs.
        nodes: the cluster.
        folder: where the runs are kept.
        rng: for moments and victims.
        maximum: kills in all.
    """

    def __init__(self, flags: str, nodes: RayNodes, folder: Path, rng: random.Random, maximum: int) -> None:
        self._flags, self._nodes, self._folder, self._rng, self._most = shlex.split(flags), nodes, folder, rng, maximum
        self.series = KillSeries()

    def make(self) -> KillSeries:
        """Make runs until all kills were done, and compare each with the run in process.

        Raises:
            RuntimeError: the run in process failed.
        """
        here, number = self._folder / "here", 0
        if self._begun([*self._flags, "--engine", "inproc", "--out", str(here)]).wait(_LIMIT_S):
            raise RuntimeError(f"Expected a run in process, got {self._last_line()}")
        while self.series.kills.total() < self._most:
            there, number = self._folder / f"there-{number}", number + 1
            try:
                self._finish(there)
                unequal = [line for line in differences(numbers(there), numbers(here)) if "/config/" not in line]
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                unequal = [str(error)]
            self.series.equal += not unequal
            self.series.bad += [f"run {number}: {'; '.join(unequal[:3])}"] if unequal else []
            print(f"  run {number}: {self.series.row()}", file=sys.stderr, flush=True)
            shutil.rmtree(there, ignore_errors=True)
        return self.series

    def _finish(self, out: Path) -> None:
        """Begin a run and resume it until it is complete, while its processes are killed.

        Raises:
            RuntimeError: it does not become complete, or ended with a traceback.
        """
        kind = "begun"
        for _ in range(_STARTS):
            self._nodes.up()
            again = any((out / "checkpoint").glob("round-*"))
            kind = "resumed" if again else kind
            self.series.starts[kind] += 1
            if not again:
                shutil.rmtree(out, ignore_errors=True)
            words = ["--resume", str(out)] if again else [*self._flags, "--out", str(out)]
            process = self._begun([*words, "--ray-address", self._nodes.address])
            try:
                self._kill_until_its_end(process)
            finally:
                process.kill()
                process.wait()
            if "Traceback" in self._log().read_text(errors="replace"):
                raise RuntimeError("sim.py ended with a traceback")
            if (out / "result.json").exists():
                return
            kind = "begun again"
        raise RuntimeError(f"it was not complete after {_STARTS} starts: {self._last_line()}")

    def _kill_until_its_end(self, process: subprocess.Popen[bytes]) -> None:
        while self.series.kills.total() < self._most:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._rng.uniform(*_PAUSE_S))
                return
            self._kill(process.pid)
            if sum(self._nodes.raylet(number) is not None for number in range(len(_WORKERS))) <= 1:
                self._nodes.up()
        process.wait(_LIMIT_S)

    def _kill(self, program: int) -> None:
        """Kill something of a kind that is drawn; nothing, if there is none now."""
        (kind,) = self._rng.choices(list(_KINDS), list(_KINDS.values()))
        there = [number for number in range(len(_WORKERS)) if self._nodes.raylet(number) is not None]
        actors = [pid for n in there for pid in self._nodes.processes(n) if "ray::ClientActor" in command_line(pid)]
        raylets = [pid for number in there if (pid := self._nodes.raylet(number)) is not None]
        if kind == "node" and there:
            self._nodes.kill(self._rng.choice(there))
        elif victims := {"actor": actors, "raylet": raylets, "sim.py": [program]}.get(kind):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rng.choice(victims), signal.SIGKILL)
        else:
            return
        self.series.kills[kind] += 1

    def _begun(self, words: list[str]) -> subprocess.Popen[bytes]:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with self._log().open("wb") as log:
            return subprocess.Popen([sys.executable, "sim.py", *words], cwd=ROOT, env=variables, stdout=log, stderr=log)

    def _log(self) -> Path:
        return self._folder / "log"

    def _last_line(self) -> str:
        return (self._log().read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]


def main() -> None:
    """Kill, compare and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--kills", type=output.whole(), help="kills in each part (30; quick: 1)")
    flags.add_argument("--seed", type=output.whole(0), default=0, help="of moments and victims (0)")
    run = output.start(flags, PARTS)
    kills, results = run.amount(30, 1, run.asked.kills), dict[str, dict[str, Any]]()
    run.begin(f"Ray starts on {len(_WORKERS) + 1} nodes of this machine")
    with (
        tempfile.TemporaryDirectory(prefix="flfw-kills-") as temporary,
        tempfile.TemporaryDirectory(prefix="fl-") as short,
        ray_nodes(Path(short), _WORKERS) as nodes,
    ):
        for name in run.parts():
            folder = Path(temporary) / name
            folder.mkdir()
            rng = random.Random(f"{run.asked.seed} {name}")
            results[name] = KilledRuns(RUNS[name], nodes, folder, rng, kills).make().row()
    run.report({"many_kills": results}, [f"{name}: {row}" for name, row in results.items()])
    sys.exit(1 if any(row["bad"] for row in results.values()) else 0)


if __name__ == "__main__":
    main()
