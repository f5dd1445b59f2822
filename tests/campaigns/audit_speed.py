"""Processor time of audits beside another checkout: ``python -m tests.campaigns.audit_speed --against OTHER``.

Whole small runs of ``sim.py`` with their attacks, in process, with one thread: this checkout, the other one, in turns.
A side's time is what its processes used, user and system, imports included. A ratio is the median of the turns', this
over the other; below 1 this one is faster. The first turn fills caches of both and does not count.

The last line of the output is one JSON object.
"""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import output
from benchmarks.turns import in_turns, ratio, rounded

_ROOT = Path(__file__).parents[2]
_SMALL = "--dataset digits --clients 4 --rounds 1 --local-epochs 1 --engine inproc"
RUNS = {
    "ig": f"--method fedavg --net lenet {_SMALL} --images 4 --attack ig --set ig.iterations=300",
    "hyperfl": f"--method hyperfl --net cnn1 {_SMALL} --images 2 --attack hyperfl --set hyperfl.iterations=100 "
    "--set hidden=32",
    "spear": f"--method fedavg --net mlp {_SMALL} --images 4 --victim-batch 4 --attack analytic spear",
}
PARTS = {
    "ig": output.BenchmarkPart("a search on LeNet", 150, 40),
    "hyperfl": output.BenchmarkPart("HyperFL's own attack", 150, 0),
    "spear": output.BenchmarkPart("closed forms on a dense network", 120, 0),
}


def used(checkout: Path, name: str, folder: Path) -> float:
    """Measure the seconds of the processor that a run takes with the code of a checkout.

    Raises:
        CalledProcessError: the run failed.
    """
    variables = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [sys.executable, str(checkout / "sim.py"), *shlex.split(RUNS[name]), "--out", f"{out}/run"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=checkout, env=variables, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(against: Path, name: str, turns: int) -> dict[str, Any]:
    """Measure a run on both sides, in turns after a first one."""
    with tempfile.TemporaryDirectory() as temporary:
        sides = {
            side: partial(used, checkout, name, Path(temporary))
            for side, checkout in {"this": _ROOT, "other": against}.items()
        }
        in_turns(sides, 1)
        times = in_turns(sides, turns)
    each = [a / b for a, b in zip(times["this"], times["other"], strict=True)]
    medians = {f"{side}_s": statistics.median(column) for side, column in times.items()}
    return {**medians, "this_over_other": ratio(times["this"], times["other"]), "turns": each}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--against", type=Path, help="the other checkout")
    flags.add_argument("--turns", type=output.whole(), help="of each side (5)")
    run = output.start(flags, PARTS)
    against = run.asked.against
    if against is None or not (against / "sim.py").exists():
        output.refuse(f"Expected --against with the folder of another checkout, got {against}.")
    turns = run.amount(5, 1, run.asked.turns)
    results = {name: rounded(measure(against.absolute(), name, turns)) for name in run.parts()}
    lines = [f"{name}: {one['this_over_other']:.2f} of the other's processor time" for name, one in results.items()]
    run.report({**results, "load": round(os.getloadavg()[0], 1)}, lines)


if __name__ == "__main__":
    main()
