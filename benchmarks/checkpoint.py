"""Cost of a checkpoint: ``python -m benchmarks.checkpoint [--json] [--quick]``.

HyperFL with CNN 1 runs on the embedded digits under Ray, as in `sim.py`. Each checkpoint is timed against the round
before it, in the same run. A client saves its embedding and classifier within its round; that time counts there. The
last line of the output is one JSON object.
"""

import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import output
from flfw.experiment import Experiment
from flfw.runs import run as runs
from flfw.server.checkpoint import Checkpoints, Snapshot

_GOAL = 0.05
PARTS = {"checkpoint": output.BenchmarkPart("HyperFL under Ray, a checkpoint after each round", 70, 20)}


def measure(rounds: int, **work: int) -> dict[str, Any]:
    """Measure the seconds of each round and of its checkpoint; the ratio is that of their medians.

    Args:
        rounds: of the run.
        work: fields of the experiment, if not the usual ones.
    """
    spent: list[float] = []
    save = Checkpoints.save

    def timed(self: Checkpoints, snapshot: Snapshot, rows: dict[str, Any]) -> None:
        started = time.monotonic()
        save(self, snapshot, rows)
        if snapshot.round:
            spent.append(time.monotonic() - started)

    Checkpoints.save = timed
    try:
        with tempfile.TemporaryDirectory() as folder:
            usual = Experiment(method="hyperfl", net="cnn1", rounds=rounds, attack=("none",), out=Path(folder, "run"))
            out = runs.run(dataclasses.replace(usual, **work))
            rows = json.loads((out / "result.json").read_text())["rounds"]
            size = next((out / "checkpoint").glob("round-*")).stat().st_size
    finally:
        Checkpoints.save = save
    seconds = [row["seconds"] for row in rows]
    ratio = statistics.median(spent) / statistics.median(seconds)
    return {
        "checkpoint_s": round(statistics.median(spent), 3),
        "round_s": round(statistics.median(seconds), 3),
        "ratio": round(ratio, 4),
        "worst_ratio": round(max(c / r for c, r in zip(spent, seconds, strict=True)), 4),
        "bytes": size,
        "goal": {"ratio": _GOAL},
        "met": {"ratio": ratio < _GOAL},
    }


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--rounds", type=output.whole(), help="4; quick: 1")
    run = output.start(flags, PARTS)
    results: dict[str, Any] = {}
    for _ in run.parts():
        rounds = run.amount(4, 1, run.asked.rounds)
        results = measure(rounds, clients=run.amount(10, 2), local_epochs=run.amount(5, 1))
    share = f"{results['ratio']:.1%} (goal < 5%)"
    run.report(results, [f"checkpoint {results['checkpoint_s']} s of a round of {results['round_s']} s: {share}"])


if __name__ == "__main__":
    main()
