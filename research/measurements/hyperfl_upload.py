"""Size of HyperFL's upload as factors.

``python -m research.measurements.hyperfl_upload [--json] [--quick] [--only cnn1 cnn2]``.

P5: the first four clients of the paper's twenty (600 images each, batches of 50, five epochs; CNN 1 on Fashion-MNIST,
CNN 2 on CIFAR-10) train for some rounds. Each client's message in the next round is measured: the bytes of the dense
message over those of the message with factors, for the client with the smallest ratio. First the server's reading of
each message is compared with the client's tensors: an error above 1e-3 of the change of all tensors sent ends this with
exit code 1.

Further figures: the rank; and seconds of the processor: of the client's round without factors, of making them, and of
reading them. Real data only, below $FLFW_DATA. The last line of the output is one JSON object.
"""

import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks import output
from flfw import data
from flfw.client.context import ClientContext
from flfw.client.store import ClientStore
from flfw.experiment import Experiment
from flfw.messages.factored_upload import FactoredUpload, FactorReader, NamedArrays, square
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import broadcast, nbytes, pack, views
from flfw.nets import Tensors
from flfw.nets.training.low_rank import HypernetworkTraining
from flfw.plans.run_plan import plan, without_auto
from flfw.server.aggregation import Update
from flfw.strategies.hyperfl import HyperFL

_GOAL = 10.0
_ERROR = 1e-3
_CLIENTS = 4


@dataclass(frozen=True)
class UploadCase:
    """A network, and the data and step size that the paper gives it."""

    net: str
    dataset: str
    lr: float

    @property
    def experiment(self) -> Experiment:
        """Experiment of the paper."""
        requested = Experiment(dataset=self.dataset, net=self.net, split="dominant", clients=20, lr=self.lr)
        return without_auto(requested)


_CASES = {"cnn1": UploadCase("cnn1", "fmnist", 0.01), "cnn2": UploadCase("cnn2", "cifar10", 0.02)}
PARTS = {
    "cnn1": output.BenchmarkPart("CNN 1 on Fashion-MNIST, dense and factored uploads of four clients", 30, 8),
    "cnn2": output.BenchmarkPart("CNN 2 on CIFAR-10, dense and factored uploads of four clients", 40, 10),
}


@dataclass(frozen=True)
class Trained:
    """A client after local training: the tensors received, those of a dense upload, and the seconds of its round."""

    received: NamedArrays
    sent: Tensors
    examples: int
    seconds: float


def trained(case: UploadCase, rounds: int) -> list[Trained]:
    """Train the first clients for so many rounds; return each client after one more."""
    run_plan, clients = plan(case.experiment), []
    task, method, settings = run_plan.task.load(None), run_plan.client.method, run_plan.client.settings
    with tempfile.TemporaryDirectory() as folder:
        stores = [ClientStore(Path(folder), "upload", partition) for partition in range(_CLIENTS)]
        client = ClientContext(run_plan.client, task, 0, 1, None, stores[0])
        model = run_plan.client_class(client).model
        arrays = broadcast(model, method.shared(model, settings).downloads)
        for server_round in range(1, rounds + 2):
            received, clients = views(arrays), []
            for partition, store in enumerate(stores):
                ctx = ClientContext(run_plan.client, task, partition, server_round, None, store)
                worker, started = run_plan.client_class(ctx), time.process_time()
                sent, metrics = worker.fit_named(received, server_round - 1)
                clients.append(Trained(received, sent, metrics["num-examples"], time.process_time() - started))
            updates = (Update(p, one.examples, one.sent) for p, one in enumerate(clients))
            arrays = pack(run_plan.strategy(settings).aggregate(updates))
    return clients


def as_factors(one: Trained, form: FactoredUpload) -> dict[str, float]:
    """Measure one client's upload both ways; exit with 1 if the server would not read the client's tensors."""
    started = time.process_time()
    sent = pack(form.compress(one.sent, one.received))
    made = time.process_time() - started
    reply = Message(RecordDict({"arrays": sent, "metrics": MetricRecord({"num-examples": one.examples})}), 1, "train")
    reader = FactorReader(form, HyperFL.uploads, pack({n: torch.tensor(v) for n, v in one.received.items()}))
    started = time.process_time()
    tensors, _, size = reader(reply)
    read = time.process_time() - started
    whole = sum(square(value - torch.tensor(one.received[name])) for name, value in one.sent.items())
    error = (sum(square(tensors[name] - value) for name, value in one.sent.items()) / whole) ** 0.5
    if not error <= form.error:
        sys.exit(f"the server would read an update that is {error:.1e} off; nothing is claimed")
    axes = views(sent)[f"{form.pattern}/axes"]
    return {
        "ratio": nbytes(pack(one.sent)) / size,
        "error": error,
        "rank": axes.shape[1],
        "round_s": one.seconds,
        "make_s": made,
        "read_s": read,
    }


def p5(case: UploadCase, rounds: int) -> dict[str, float]:
    """Return the figures of the client with the smallest ratio; seconds are medians over the clients."""
    form = HyperFL.factored_upload(HypernetworkTraining(upload="factors", upload_error=_ERROR))
    assert form is not None
    rows = [as_factors(one, form) for one in trained(case, rounds)]
    worst = min(rows, key=lambda row: row["ratio"])
    seconds = {name: statistics.median(row[name] for row in rows) for name in ("round_s", "make_s", "read_s")}
    return {name: float(f"{value:.4g}") for name, value in {**worst, **seconds}.items()}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--rounds", type=output.whole(0), help="before the one that is measured (4; quick: 0)")
    flags.add_argument("--threads", type=output.whole(), default=1)
    run = output.start(flags, PARTS)
    torch.set_num_threads(run.asked.threads)
    InProcessGrid(ClientApp(), 1, {})  # messages are written by a node
    rounds = run.amount(4, 0, run.asked.rounds)
    rows: dict[str, dict[str, float]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # re-encoded pixels are not the published ones
        for name in run.names:  # before the plan: without data there is none
            output.or_refused(partial(data.load, _CASES[name].dataset, None))
        for name in run.parts():
            rows[name] = p5(_CASES[name], rounds)
    lines = [
        f"{name}: {one['ratio']:.1f} times smaller (goal >= {_GOAL:g}), "
        f"rank {one['rank']:.0f}, error {one['error']:.1e}; "
        f"round {one['round_s']:.2f} s, making {one['make_s']:.2f} s, reading {one['read_s']:.2f} s"
        for name, one in rows.items()
    ]
    results: dict[str, Any] = {"P5": {name: one["ratio"] for name, one in rows.items()}, **rows}
    results |= {"goal": {"P5": _GOAL}, "met": {name: one["ratio"] >= _GOAL for name, one in rows.items()}}
    run.report({**results, "rounds": rounds, "threads": run.asked.threads}, lines)


if __name__ == "__main__":
    main()
