"""Cost of messages, batched clients and growth: ``python -m benchmarks.scale [--json] [--quick] [--only P6 growth]``.

- P6: the processor's milliseconds for a client in a round, over all processes of a simulation, with a client that does
  nothing, 117 thousand numbers and 100 clients.
- P7: the same with 14.9 million numbers, as many as a hypernetwork has, and 10 clients.
- batched: clients that take local steps together over one after the other (`benchmarks.batched_speed`), by network and
  number of clients; and for HyperFL the steps of one client over FedAvg's, as P3 of `benchmarks.hyperfl` has them.
- growth: enrolment, a round of 100 clients, final evaluation, memory, files and bytes of ``--clients`` in all; see
  `benchmarks.growth`.

``stock`` is Flower's FedAvg on Flower's simulation engine, ``ray`` and ``inproc`` are this project's averaging on its
engines, with all checks and the checkpoint of each round. Times are read from /proc after each round; the first two
rounds are not counted. Before any time counts, the last aggregates of all sides must be equal but for rounding: Flower
sums in float32. Each side is a process of its own (`benchmarks.scale_apps`). Exit code 1 if they differ. The last line
of the output is one JSON object.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks import batched_speed, growth, output

_ROOT = Path(__file__).parent.parent
SIDES = ("stock", "ray", "inproc")
_NET = {"P6": "small", "P7": "large"}
_CLIENTS = {"P6": (100, 10), "P7": (10, 2)}  # usual, and quick
_GOAL = {"P6": 0.2, "P7": 0.35}
"""Goals: this project's milliseconds on Ray over Flower's."""
SIMULATED = ("P6", "P7")
_NOT_COUNTED = 2
_MANY = (100, 1000, 10_000, 100_000)
_CLOSE = 1e-5
PARTS = {
    "P6": output.BenchmarkPart("117 thousand numbers, 100 clients", 240, 55),
    "P7": output.BenchmarkPart("14.9 million numbers, 10 clients", 240, 0),
    "batched": output.BenchmarkPart("clients that take their steps together", 300, 4),
    "growth": output.BenchmarkPart("100 clients a round of ever more", 90, 0),
}


def measured(side: str, part: str, clients: int, rounds: int, folder: Path) -> tuple[float, dict[str, np.ndarray]]:
    """Run one side; return the processor's milliseconds for a client in a round, and the last aggregate."""
    out = folder / f"{part}-{side}"
    out.mkdir()
    words = [side, _NET[part], str(clients), str(rounds + _NOT_COUNTED), str(out)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale_apps", *words],
        cwd=_ROOT,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{part} {side} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    marks = json.loads((out / "marks.json").read_text())
    return 1000 * (marks[-1] - marks[_NOT_COUNTED - 1]) / (rounds * clients), load_file(out / "aggregate.safetensors")


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Return the largest difference of two aggregates, over the largest number in a tensor; infinite: other tensors."""
    if one.keys() != other.keys() or any(one[n].shape != other[n].shape for n in one):
        return float("inf")
    return max(float(np.abs(one[n] - other[n]).max() / max(1.0, np.abs(one[n]).max())) for n in one)


def compared(part: str, clients: int, rounds: int) -> dict[str, Any]:
    """Measure all sides of a part; refuse times of sides that computed something else."""
    with tempfile.TemporaryDirectory(prefix="flfw-scale-") as folder:
        sides = {side: measured(side, part, clients, rounds, Path(folder)) for side in SIDES}
    differ = {side: apart(sides["stock"][1], aggregate) for side, (_, aggregate) in sides.items()}
    if max(differ.values()) > _CLOSE:
        sys.exit(f"{part}: expected equal aggregates, got differences {differ}")
    if sides["ray"][1].keys() != sides["inproc"][1].keys() or any(
        not np.array_equal(value, sides["inproc"][1][name]) for name, value in sides["ray"][1].items()
    ):
        sys.exit(f"{part}: expected the aggregates of ray and inproc to be equal to the bit, got others")
    times = {side: round(each, 2) for side, (each, _) in sides.items()}
    numbers = sum(value.size for value in sides["ray"][1].values())
    over = round(sides["ray"][0] / sides["stock"][0], 3)
    return {**times, "ray_over_stock": over, "differ": max(differ.values()), "numbers": numbers, "clients": clients}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--rounds", type=output.whole(), help="rounds that are counted (5; quick: 2)")
    flags.add_argument("--clients", type=output.whole(), nargs="+", default=_MANY, help="of growth, in all")
    flags.add_argument("--engine", choices=("inproc", "ray"), default="inproc", help="of growth")
    run = output.start(flags, PARTS)
    rounds, load, rows = run.amount(5, 2, run.asked.rounds), os.getloadavg()[0], dict[str, Any]()
    for part in run.parts(*SIMULATED):
        rows[part] = compared(part, run.amount(*_CLIENTS[part]), rounds)
    lines = [
        f"{part}: stock {row['stock']} ms, ray {row['ray']} ms ({row['ray_over_stock']}; goal <= {_GOAL[part]}), "
        f"in process {row['inproc']} ms"
        for part, row in rows.items()
    ]
    goals: dict[str, Any] = {part: _GOAL[part] for part in rows}
    met: dict[str, Any] = {part: row["ray_over_stock"] <= goals[part] for part, row in rows.items()}
    for part in run.parts("batched"):
        rows[part], more = batched_speed.compared(run.asked.quick)
        lines += more
        if (one := rows[part].get("hyperfl_cnn1")) is not None:
            goals["P3_batched"], figure = batched_speed.P3_GOAL, one[str(batched_speed.P3_CLIENTS)]["over_fedavg"]
            met["P3_batched"] = figure <= batched_speed.P3_GOAL
    for part in run.parts("growth"):
        rows[part] = growth.grown(run.asked.clients, rounds, run.asked.engine)
        goals[part], met[part] = growth.GOAL, growth.is_met(rows[part])
        lines += growth.in_words(rows[part])
    run.report({**rows, "rounds": rounds, "goal": goals, "met": met, "load_before": load}, lines)


if __name__ == "__main__":
    main()
