"""Constants of ``--estimate`` for engines on Ray.

``python -m tests.campaigns.exchange [--json] [--quick] [--engine ...]``.

The clients do nothing (`benchmarks.scale_apps`); each run is a process of its own. `flfw.runs.estimate` holds the
constants in `EXCHANGES`; renew them there after changes of an engine. All are seconds of the processor, over all
processes of a run and less those in process, so that other programs hardly change them.

- start: of Ray until the end of the first round, less the imports of each actor.
- exchange, message: of a round, and of each client in it; from rounds of 2 and of 100 clients, with 117 thousand
  numbers.
- writes: what 14.9 million numbers add to a message with 10 clients, over the time of writing such a reply to a file
  and hashing it, which an estimate measures.

The last line of the output is one JSON object.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from benchmarks import output
from benchmarks.output import BenchmarkPart
from flfw.runs.timed_phases import fastest_s

_ROOT = Path(__file__).parents[2]
_LARGE = 14_900_000
_FEW, _MANY, _LARGE_CLIENTS = 2, 100, 10
_NOT_COUNTED = 2
_INPROC = "inproc"
_IMPORTS = "import time, flfw.engines.apps; print(time.process_time())"
PARTS = {
    "messages": BenchmarkPart("117 thousand numbers, 2 and 100 clients", 100, 50),
    "writes": BenchmarkPart("14.9 million numbers, 10 clients", 80, 0),
}


@dataclass(frozen=True)
class RoundSpent:
    """Seconds of the processor until the end of the first round, and in each later one."""

    first: float
    round: float


def printed(*text: str) -> str:
    """Run a Python process in the environment of an estimate's measurements, and return its output."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run([sys.executable, *text], cwd=_ROOT, env=variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(text)} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def spent(engine: str, net: str, clients: int, rounds: int) -> RoundSpent:
    """Run clients that do nothing on an engine."""
    with tempfile.TemporaryDirectory(prefix="flfw-exchange-") as folder:
        printed("-m", "benchmarks.scale_apps", engine, net, str(clients), str(rounds + _NOT_COUNTED), folder)
        marks = json.loads((Path(folder) / "marks.json").read_text())
    return RoundSpent(marks[0], (marks[-1] - marks[_NOT_COUNTED - 1]) / rounds)


def messages(engine: str, rounds: int) -> dict[str, float]:
    """Measure start, exchange and message."""
    few, alone = (spent(side, "small", _FEW, 4 * rounds) for side in (engine, _INPROC))
    many, all_alone = (spent(side, "small", _MANY, rounds) for side in (engine, _INPROC))
    actors = min(_FEW, len(os.sched_getaffinity(0)))
    start = few.first - alone.first - actors * float(printed("-c", _IMPORTS))
    two, hundred = few.round - alone.round, many.round - all_alone.round
    message = (hundred - two) / (_MANY - _FEW)
    return {"start_s": round(start, 2), "exchange_s": round(two - _FEW * message, 4), "message_s": round(message, 5)}


def writes(engine: str, rounds: int, message_s: float) -> dict[str, float]:
    """Measure the additional cost of large messages, over writing and hashing a reply."""
    sides = [spent(side, "large", _LARGE_CLIENTS, rounds).round / _LARGE_CLIENTS for side in (engine, _INPROC)]
    sent = {"value": torch.zeros(_LARGE)}
    with tempfile.TemporaryDirectory(prefix="flfw-exchange-") as folder:
        written = fastest_s(lambda: (Path(folder) / hashlib.sha256(data := save(sent)).hexdigest()).write_bytes(data))
    return {"writes": round((sides[0] - sides[1] - message_s) / written, 2), "write_s": round(written, 4)}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--engine", choices=("ray", "flwr-sim"), default="ray")
    flags.add_argument("--rounds", type=output.whole(), help="rounds that are counted (5; quick: 2)")
    run = output.start(flags, PARTS)
    engine, rounds, load = run.asked.engine, run.amount(5, 2, run.asked.rounds), os.getloadavg()[0]
    row = dict[str, Any]()
    for _ in run.parts("messages"):
        row |= messages(engine, rounds)
    for _ in run.parts("writes"):
        row |= writes(engine, rounds, row.get("message_s", 0.0))
    lines = [f"{engine}: {', '.join(f'{name} {value}' for name, value in row.items())}"]
    run.report({**row, "engine": engine, "rounds": rounds, "load_before": load}, lines)


if __name__ == "__main__":
    main()
