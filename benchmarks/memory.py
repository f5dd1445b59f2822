"""Whether memory grows with the rounds: ``python -m benchmarks.memory [--json]``.

Runs HyperFL (60 MB a message) under Ray for fifty rounds as a user would, and looks from outside at the resident
memory of the driver and of Ray's client actors whenever a round has ended. What counts is a process's own memory: all
of them also touch pages of Ray's object store, which is shared and has a fixed size. Growth is the slope of a
least-squares line from round 10 on, times the rounds. The last line of the output is one JSON object.
"""

from __future__ import annotations

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


def measure(rounds: int) -> dict[str, Any]:
    """Own memory of the driver and of the largest actor after each round, in MiB, and how much it grew."""
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
    found: dict[str, Any] = {}
    for name, sizes in seen.items():
        slope = float(np.polyfit(np.arange(_WARM_UP, rounds), sizes[_WARM_UP:], 1)[0])
        found[f"{name}_mib"] = {
            "round_10": round(sizes[_WARM_UP - 1]),
            "last": round(sizes[-1]),
            "most": round(max(sizes)),
        }
        found[f"{name}_growth_mib"] = round(slope * (rounds - _WARM_UP), 1)
    goal = {"driver_growth_mib": _GOAL_MIB, "actor_growth_mib": _GOAL_MIB}
    return {"rounds": rounds, **found, "goal": goal, "met": {name: found[name] <= most for name, most in goal.items()}}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--rounds", type=int, default=50)
    chosen = flags.parse_args()
    found = measure(chosen.rounds)
    lines = [
        f"{name}: {found[f'{name}_mib']}, growth {found[f'{name}_growth_mib']} MiB (goal <= {_GOAL_MIB:.0f})"
        for name in ("driver", "actor")
    ]
    output.say(found, lines, only_json=chosen.json)


if __name__ == "__main__":
    main()
