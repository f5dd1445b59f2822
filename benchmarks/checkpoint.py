"""What a checkpoint costs: ``python -m benchmarks.checkpoint [--json]``.

Runs HyperFL with CNN 1 on the embedded digits under Ray, as `sim.py` does, and times each checkpoint against the round
before it, in the same run. A client's own saving of its embedding and classifier is part of its round and is timed
there. The last line of the output is one JSON object.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import output
from flfw.experiment import Experiment
from flfw.runs import run
from flfw.storage.checkpoint import Checkpoints, Snapshot

_GOAL = 0.05


def measure(rounds: int) -> dict[str, Any]:
    """Seconds of each round and of the checkpoint behind it; the ratio of their medians."""
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
            experiment = Experiment(
                method="hyperfl", net="cnn1", rounds=rounds, attack=("none",), out=Path(folder, "run")
            )
            out = run.run(experiment)
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
    flags.add_argument("--rounds", type=int, default=4)
    chosen = flags.parse_args()
    found = measure(chosen.rounds)
    line = f"checkpoint {found['checkpoint_s']} s of a round of {found['round_s']} s: {found['ratio']:.1%} (goal < 5%)"
    output.say(found, [line], only_json=chosen.json)


if __name__ == "__main__":
    main()
