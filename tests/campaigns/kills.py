"""Processes killed at random moments: ``python -m tests.campaigns.kills [--json] [--quick] [--only NAME ...]``.

A run is made once without interruption. Then it is begun again and again, and each time one process gets SIGKILL at a
random moment of its life: sim.py, an actor, the raylet, the attack process, a worker node of a Ray cluster that the run
joins, or, in a federation of three sites over gRPC, the SuperLink, a SuperNode, the process of the server's app or a
site's process for one message. What a user does then is done: the federation or the node is started again, and the run
is resumed, or begun again if it has no checkpoint yet. Each
must end with the uninterrupted run's numbers in result.json and the tables, and its tensors of recordings, truth and
checkpoints. Left out: times, paths, hashes of the code, and the number of tries of an attack, which says that its
process was killed; private tensors are compared by what later rounds make of them. On Ray two images are attacked; the
runs over gRPC are not recorded. Exit code 1 if one differs or does not end. The last line of the output is one JSON
object.
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
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from benchmarks import output
from benchmarks.local_federation import ROOT, SITES, deploy, federation
from benchmarks.process_family import command_line, descendants, marked, parents
from flfw.engines import processes
from flfw.engines.layout import FederationLayout
from tests.campaigns.ray_nodes import RayNodes, ray_nodes
from tests.campaigns.same_results import differences, numbers

_COMMON = f"--method hyperfl --set hidden=16 embedding=8 sampled.train=50 --split sampled --clients {SITES} "
_TRAINING = f"{_COMMON} --local-epochs 1 --attack none"
_ATTACKED = f"{_COMMON} --local-epochs 1 --images 2 --attack ig --set ig.iterations=40"
_MARK = "FLFW_KILLS"  # an environment variable that all processes of a run inherit
_LIMIT_S = 300.0
_RESUMED = 6  # at most: a site that was killed is admitted again after it missed its heartbeats


@dataclass(frozen=True)
class KilledProcess:
    """Process to be killed, and the run that it belongs to.

    Attributes:
        flags: of the run.
        words: in the command line of the process; none: the process of sim.py.
        below: part of the federation whose process, or the descendant with these words, is meant; ``node``: of a
            cluster of Ray; empty: sim.py's.
    """

    flags: str
    words: str = ""
    below: str = ""


_RAY = f"{_ATTACKED} --engine ray --rounds 3"
_SITE = f"{_TRAINING} --rounds 4 --expert round_deadline=20"
VICTIMS = {
    "sim": KilledProcess(_RAY),
    "actor": KilledProcess(_RAY, "ray::ClientActor"),
    "raylet": KilledProcess(_RAY, "/raylet/raylet"),
    "attack_server": KilledProcess(
        f"{_ATTACKED} --engine inproc --expert attack_process=concurrent --rounds 3", "flfw.audit.attack_worker"
    ),
    "node": KilledProcess(f"{_TRAINING} --engine ray --rounds 4", "", "node"),
    "superlink": KilledProcess(_SITE, "", "superlink"),
    "supernode": KilledProcess(_SITE, "", "supernode"),
    "server_app": KilledProcess(_SITE, "flwr-serverapp", "superlink"),
    "site_app": KilledProcess(_SITE, "flfw.deploy.executor", "supernode"),
}
PARTS = {
    "sim": output.BenchmarkPart("sim.py on Ray", 900, 50),
    "actor": output.BenchmarkPart("an actor of Ray", 900, 0),
    "raylet": output.BenchmarkPart("the raylet", 900, 0),
    "attack_server": output.BenchmarkPart("the attack process", 400, 0),
    "node": output.BenchmarkPart("a worker node of a Ray cluster", 900, 0),
    "superlink": output.BenchmarkPart("the SuperLink", 1200, 0),
    "supernode": output.BenchmarkPart("a SuperNode", 1800, 0),
    "server_app": output.BenchmarkPart("the process of the server's app", 900, 0),
    "site_app": output.BenchmarkPart("a site's process for one message", 900, 0),
}


@final
@dataclass
class Tally:
    """Outcomes of the kills of one process.

    Attributes:
        life: seconds for which the process was there in the uninterrupted run; all its successors count as one.
        ends: count of what became of the runs: ``went on``, ``resumed``, ``begun again``.
        equal: number of runs with the uninterrupted run's numbers.
        bad: description of each run that differs or did not end, with its moment.
        left: number of kills after which processes of the run were still there two minutes later.
    """

    life: float
    ends: Counter[str] = field(default_factory=Counter)
    equal: int = 0
    bad: list[str] = field(default_factory=list)
    left: int = 0

    def row(self) -> dict[str, Any]:
        """Return the numbers for the report."""
        return {**vars(self), "ends": dict(self.ends), "moments": self.ends.total()}


@final
class Runs:
    """Runs of a victim's flags, in a folder of their own.

    Args:
        victim: the process.
        folder: where the runs are kept.
        layout: the federation; None: the run starts its own processes.
        nodes: the cluster that the run joins; None: it joins none.
    """

    def __init__(
        self, victim: KilledProcess, folder: Path, layout: FederationLayout | None, nodes: RayNodes | None = None
    ) -> None:
        self._victim, self._folder, self._layout, self._nodes = victim, folder, layout, nodes
        folder.mkdir()

    def begin(self, *text: str) -> subprocess.Popen[str]:
        """Start sim.py with some words."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), _MARK: str(self._folder)}
        with (self._folder / "log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "sim.py", *text], cwd=ROOT, env=variables, stdout=log, stderr=log, text=True
            )

    def flags(self, out: Path) -> list[str]:
        """Return the words of a new run."""
        at = ["--federation", str(self._layout.folder)] if self._layout else []
        at += ["--ray-address", self._nodes.address] if self._nodes else []
        return [*shlex.split(self._victim.flags), *at, "--out", str(out)]

    def last_line(self) -> str:
        """Return the last line of the last program, or the mark of a traceback."""
        text = (self._folder / "log").read_text(errors="replace")
        return "Traceback" if "Traceback" in text else (text.strip().splitlines() or ["nothing"])[-1]

    def whole(self) -> tuple[Path, float]:
        """Make the run without interruption; return its folder and the seconds for which the process was there.

        Raises:
            RuntimeError: it failed, or there was no such process.
        """
        self._up()
        out, began, seen = self._folder / "whole", time.monotonic(), list[float]()
        process = self.begin(*self.flags(out))
        while process.poll() is None:
            if self._find(process.pid) is not None:
                seen.append(time.monotonic() - began)
            time.sleep(0.05)
        if process.returncode or not seen:
            raise RuntimeError(f"Expected a run with the process {self._victim}, got {self.last_line()}")
        return out, seen[-1] - seen[0]

    def _up(self) -> None:
        if self._nodes is not None:
            self._nodes.up()
        if self._layout is not None:
            deploy("up", str(self._layout.folder))

    def killed(self, out: Path, moment: float) -> bool:
        """Begin a run and kill the process so many seconds after it was first there; False: the run was over.

        Raises:
            RuntimeError: the run failed before, or ended with a traceback.
        """
        self._up()
        process = self.begin(*self.flags(out))
        try:
            while process.poll() is None and self._find(process.pid) is None:
                time.sleep(0.01)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            while process.poll() is None:
                if (pid := self._find(process.pid)) is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        break
                time.sleep(0.01)
            else:
                if process.returncode:
                    raise RuntimeError(f"sim.py failed before the kill: {self.last_line()}")
                return False
            if process.wait(_LIMIT_S) > 0 and self.last_line() == "Traceback":
                raise RuntimeError("sim.py ended with a traceback")
            return True
        finally:
            process.kill()
            process.wait()

    def _find(self, program: int) -> int | None:
        """Return the process that is to be killed, if it is there."""
        victim, layout = self._victim, self._layout
        if self._nodes is not None:
            return self._nodes.raylet(0)
        if layout is not None:
            place = layout.superlink if victim.below == "superlink" else layout.site(0)
            alive = processes.alive(place, victim.below)
            if alive is None:
                return None
            program = alive
        if not victim.words:
            return program
        having = [pid for pid in descendants(program) if victim.words in command_line(pid)]
        if victim.below == "supernode":  # the forks of the executor, not the executor
            having = [pid for pid in having if parents().get(pid) in having]
        return having[0] if having else None

    def finished(self, out: Path) -> str:
        """Start the federation again and resume, as a user does, until a run is complete; return the kind of its end.

        Raises:
            RuntimeError: it does not become complete.
        """
        if (out / "result.json").exists():
            return "went on"
        again = not any((out / "checkpoint").glob("round-*"))
        for _ in range(_RESUMED):
            self._up()
            if again:
                shutil.rmtree(out, ignore_errors=True)
            words = self.flags(out) if again else ["--resume", str(out)]
            if self.begin(*words).wait(_LIMIT_S) == 0:
                return "begun again" if again else "resumed"
            if self._layout is None:
                break
            time.sleep(10)
        raise RuntimeError(self.last_line())

    def clear(self) -> int:
        """Wait for the processes of the run to end; kill those that do not, and return their number."""
        deadline = time.monotonic() + 120  # Ray's agents take a minute to notice that they are alone
        while (left := marked(_MARK, str(self._folder))) and time.monotonic() < deadline:
            time.sleep(0.2)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)


def kills(runs: Runs, moments: int, rng: random.Random) -> Tally:
    """Kill a process at so many random moments, and compare each run with the uninterrupted one."""
    whole, life = runs.whole()
    expected, tally, out = _compared(whole), Tally(life), whole.parent / "killed"
    for number in range(moments):
        moment = rng.uniform(0, life)
        try:
            while not runs.killed(out, moment):  # it was over: this run was faster than the first
                shutil.rmtree(out)
                moment *= 0.9
            tally.left += bool(runs.clear())
            tally.ends[runs.finished(out)] += 1
            unequal = differences(expected, _compared(out))
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            tally.ends["did not end"] += 1
            unequal = [str(error)]
        tally.equal += not unequal
        if unequal:
            tally.bad.append(f"kill {number} at {moment:.2f} s: {'; '.join(unequal[:3])}")
        print(f"  {number + 1} of {moments} at {moment:.2f} s: {tally.row()}", file=sys.stderr, flush=True)
        shutil.rmtree(out, ignore_errors=True)
    return tally


def _compared(folder: Path) -> dict[str, Any]:
    kept = numbers(folder)
    for entry in kept["result.json"]["audit"]:
        entry.pop("attempts", None)
    return kept


def main() -> None:
    """Kill, compare and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--moments", type=output.whole(), help="kills of each process (30; quick: 1)")
    flags.add_argument("--seed", type=output.whole(0), default=0, help="of the moments (0)")
    run = output.start(flags, PARTS)
    moments, results = run.amount(30, 1, run.asked.moments), dict[str, dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="flfw-kills-") as temporary, ExitStack() as stack:
        layout = None
        for name in run.parts():
            victim = VICTIMS[name]
            on_nodes, deployed, nodes = victim.below == "node", victim.below not in ("", "node"), None
            if deployed and layout is None:
                layout = stack.enter_context(federation(Path(temporary) / "federation", "--methods", "hyperfl"))
            if on_nodes:
                short = stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-"))
                nodes = stack.enter_context(ray_nodes(Path(short), [(1, 0), (1, 0)]))
            runs = Runs(victim, Path(temporary) / name, layout if deployed else None, nodes)
            results[name] = kills(runs, moments, random.Random(f"{run.asked.seed} {name}")).row()
    lines = [
        f"{name}: {row['equal']} of {row['moments']} equal; {row['ends']}; {row['bad']}"
        for name, row in results.items()
    ]
    run.report({"kills": results}, lines)
    sys.exit(0 if all(row["equal"] == row["moments"] for row in results.values()) else 1)


if __name__ == "__main__":
    main()
