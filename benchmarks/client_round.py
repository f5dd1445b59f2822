"""Cost of a client's round in one process: ``python -m benchmarks.client_round [--json] [--quick] [--only small]``.

Clients that compute nothing (`benchmarks.still_method`) take part in rounds of a whole run: messages, client app,
checks, mean and checkpoint. Each figure is the processor time of a round over its clients, in milliseconds, the median
over the rounds after the first; one thread.

- small: CNN 1, 117 thousand numbers a message.
- large: HyperFL's hypernetwork for CNN 1, 14.9 million numbers.

The parts of a round: ``model``, the client half with its model is built; ``fit``, weights are installed and the upload
is chosen; ``app``, the rest of the client app; ``read``, the server reads and checks; ``mean``; ``rest``, messages and
the checkpoint. The gate comes first: the weights of a run are still those of its start. The last line of the output is
one JSON object.
"""

import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast, final

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

from benchmarks import output
from benchmarks.still_method import WATCH
from flfw.engines import apps
from flfw.engines.federation import federate
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.nets import Tensors
from flfw.plans.run_plan import plan
from flfw.server.context import ServerContext

_METHODS = {"small": "StillMean", "large": "StillHypernetwork"}
_CLIENTS = {"small": 20, "large": 10}
PARTS = {
    "small": output.BenchmarkPart("CNN 1, 20 clients", 10, 5),
    "large": output.BenchmarkPart("HyperFL's hypernetwork, 10 clients", 60, 25),
}


@final
class MarkingGrid(InProcessGrid):
    """Grid in this process that keeps the processor time of the parts of each round.

    Attributes:
        rounds: the seconds of each part, by name, of each complete round; ``whole`` is all of it.
    """

    def __init__(self, app: ClientApp, clients: int, run_config: dict[str, Any]) -> None:
        super().__init__(app, clients, run_config)
        self.rounds: list[dict[str, float]] = []
        self._since: float | None = None

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """End a round where the messages of the next step begin."""
        requests, now = list(messages), time.process_time()
        if not requests:  # of Flower's evaluation after each round, which asks nobody here
            return []
        if self._since is not None:
            self.rounds.append({**WATCH.seconds, "whole": now - self._since})
        WATCH.reset()
        self._since = time.process_time() if requests[0].metadata.message_type == "train" else None
        return super().push_messages(requests)


def measure(size: str, rounds: int) -> dict[str, float]:
    """Measure the parts of a round in milliseconds for each client: the median of all rounds but the first.

    Raises:
        SystemExit: the weights changed.
    """
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    clients = _CLIENTS[size]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLFW_STATE"] = f"{folder}/state"
        method = f"benchmarks.still_method:{_METHODS[size]}"
        requested = {"clients": clients, "rounds": rounds, "net": "cnn1", "attack": ("none",), "engine": "inproc"}
        run_plan = plan(Experiment(method=method, out=Path(folder, "run"), **requested))
        run_config = run_plan.experiment.to_run_config()
        grid = MarkingGrid(cast(ClientApp, WATCH.app("client", apps.client)), clients, run_config)
        federate(grid, run_plan)
        begun = ServerContext(run_plan.client).model().state_dict()
        _require_still(begun, load_file(next(Path(folder, "run", "checkpoint").glob("round-*"))))
    each = [{name: 1000 * value / clients for name, value in row.items()} for row in map(_parts, grid.rounds[1:])]
    return {name: round(statistics.median(row[name] for row in each), 3) for name in each[0]}


def _parts(row: dict[str, float]) -> dict[str, float]:
    """Return the seconds of the parts of a round that do not overlap, and of all of it."""
    model, fit, client = row["model"], row["fit"], row["client"]
    read, mean = row["updates"] - client, row["aggregate"] - row["updates"]
    parts = {"model": model, "fit": fit, "app": client - model - fit, "read": read, "mean": mean}
    return {**parts, "rest": row["whole"] - sum(parts.values()), "whole": row["whole"]}


def _require_still(begun: Tensors, stored: Tensors) -> None:
    """Refuse figures of a run whose weights are others than at its start; a mean of equal weights rounds nothing."""
    for name, value in stored.items():
        if not name.startswith("model/"):
            continue
        if not torch.equal(value, begun[name.removeprefix("model/")]):
            output.refuse(f"Expected {name} as at the start of the run, got other weights; nothing was measured.")


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--rounds", type=output.whole(2), help="12; quick: 4")
    run = output.start(flags, PARTS)
    rounds = run.amount(12, 4, run.asked.rounds)
    results = {size: measure(size, rounds) for size in run.parts()}
    lines = [f"{size}: {', '.join(f'{n} {v:.3g} ms' for n, v in row.items())}" for size, row in results.items()]
    run.report(results, lines)


if __name__ == "__main__":
    main()
