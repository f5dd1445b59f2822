"""Growth of memory with the rounds: ``python -m benchmarks.memory [--json] [--quick]``.

HyperFL (60 MB a message) runs under Ray for fifty rounds as a user would run it. After each round the resident memory
of the driver and of Ray's client actors is read from outside. Only private memory counts: all processes also touch
pages of Ray's object store, which is shared and has a fixed size. Growth is the slope of a least-squares line from
round 10 on, times the rounds. The last line of the output is one JSON object.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import output
from benchmarks.startup import actors_below, own_memory

_ROOT = Path(__file__).parent.parent
_WARM_UP = 10
_GOAL_MIB = 50.0
_FLAGS = "--method hyperfl --clients 4 --sample 2 --local-epochs 1 --attack none"
PARTS = {"memory": output.BenchmarkPart("HyperFL under Ray, memory after each round", 240, 35)}


def measure(rounds: int, warm_up: int = _WARM_UP) -> dict[str, Any]:
    """Measure the private memory of the driver and of the largest actor after each round, in MiB, and its growth."""
    seen: dict[str, list[float]] = {"driver": [], "actor": []}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "sim.py", *_FLAGS.split(), "--rounds", str(rounds), "--out", f"{folder}/run"]
        with subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, stdout=sys.stderr, text=True) as process:
            assert process.stderr is not None, "it is a pipe"
            for line in process.stderr:
                print(line, end="", file=sys.stderr)
                if re.match(r"round \d+/", line):
                    seen["driver"].append(own_memory(process.pid) / 1024)
                    seen["actor"].append(max(own_memory(pid) for pid in actors_below(process.pid)) / 1024)
    if process.returncode or len(seen["driver"]) != rounds:
        sys.exit(f"sim.py ended with exit code {process.returncode}; nothing was measured")
    results: dict[str, Any] = {}
    for name, sizes in seen.items():
        slope = float(np.polyfit(np.arange(warm_up, rounds), sizes[warm_up:], 1)[0])
        tenth = {"round_10": round(sizes[_WARM_UP - 1])} if rounds >= _WARM_UP else {}
        results[f"{name}_mib"] = {**tenth, "last": round(sizes[-1]), "most": round(max(sizes))}
        results[f"{name}_growth_mib"] = round(slope * (rounds - warm_up), 1)
    goal = {"driver_growth_mib": _GOAL_MIB, "actor_growth_mib": _GOAL_MIB}
    met = {name: results[name] <= maximum for name, maximum in goal.items()}
    return {"rounds": rounds, **results, "goal": goal, "met": met}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--rounds", type=output.whole(), help="50; quick: 3")
    run = output.start(flags, PARTS)
    rounds, warm_up = run.amount(50, 3, run.asked.rounds), run.amount(_WARM_UP, 1)
    if rounds < warm_up + 2:
        output.refuse(f"Expected --rounds >= {warm_up + 2}, got {rounds}.")
    results: dict[str, Any] = {}
    for _ in run.parts():
        results = measure(rounds, warm_up)
    lines = [
        f"{name}: {results[f'{name}_mib']}, growth {results[f'{name}_growth_mib']} MiB (goal <= {_GOAL_MIB:.0f})"
        for name in ("driver", "actor")
    ]
    run.report(results, lines)


if __name__ == "__main__":
    main()
