"""How much smaller HyperFL's upload is as factors: ``python -m benchmarks.hyperfl_upload [--json] [--only cnn1 cnn2]``.

P5: the first four clients of the paper's twenty (600 images each, batches of 50, five epochs; CNN 1 on Fashion-MNIST,
CNN 2 on CIFAR-10) train for some rounds, and what each sends in the round after them is measured: the bytes of the
dense message over those of the message with factors, for the client with the smallest ratio. First the server's reading
of each message is compared with what the client trained: an error above 1e-3 of the change of all that is sent ends
this with exit code 1.

Beside it stand the rank; what factors would give in float32, as they are, of the lowest rank with the same error; and
seconds of the processor: of the client's round without them, of making them, and of reading them. Real data only,
below $FLFW_DATA. The last line of the output is one JSON object.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks import output
from flfw import resolve as parts
from flfw.client.store import ClientStore
from flfw.client.workplace import Workplace
from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.messages.factored_upload import FactoredUpload, FactorReader
from flfw.messages.factors import Layers, NamedArrays, square
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import broadcast, nbytes, pack, views
from flfw.nets import Tensors
from flfw.resolve import resolve
from flfw.server.aggregation import Update
from flfw.task import Task
from strategies.hyperfl import HyperFL, HyperFLSettings

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
        """The paper's."""
        asked = Experiment(dataset=self.dataset, net=self.net, split="dominant", clients=20, lr=self.lr)
        return resolve(asked)


_CASES = {"cnn1": UploadCase("cnn1", "fmnist", 0.01), "cnn2": UploadCase("cnn2", "cifar10", 0.02)}


@dataclass(frozen=True)
class Trained:
    """A client after local training: what it received, what it would send whole, and the seconds its round took."""

    received: NamedArrays
    sent: Tensors
    examples: int
    seconds: float


def trained(case: UploadCase, rounds: int) -> list[Trained]:
    """What the first clients make of the aggregate after so many rounds of theirs."""
    experiment, found = case.experiment, []
    task, (method, settings) = Task.of(experiment, None), parts.method(experiment)
    with tempfile.TemporaryDirectory() as folder:
        stores = [ClientStore(Path(folder), "upload", partition) for partition in range(_CLIENTS)]
        client = Workplace(experiment, task, method, settings, 0, 1, None, stores[0])
        model = parts.client(experiment)(client).model
        arrays = broadcast(model, method.shared(model, settings).downloads)
        for server_round in range(1, rounds + 2):
            received, found = views(arrays), []
            for partition, store in enumerate(stores):
                at = Workplace(experiment, task, method, settings, partition, server_round, None, store)
                worker, started = parts.client(experiment)(at), time.process_time()
                sent, metrics = worker.fit_named(received, server_round - 1)
                found.append(Trained(received, sent, metrics["num-examples"], time.process_time() - started))
            updates = (Update(p, one.examples, one.sent) for p, one in enumerate(found))
            arrays = pack(method(settings).aggregate(updates))
    return found


def as_factors(one: Trained, form: FactoredUpload) -> dict[str, float]:
    """One client's upload both ways; ends this if the server would read something else than was trained."""
    started = time.process_time()
    sent = pack(form.compress(one.sent, one.received))
    made = time.process_time() - started
    reply = Message(RecordDict({"arrays": sent, "metrics": MetricRecord({"num-examples": one.examples})}), 1, "train")
    reader = FactorReader(form, HyperFL.uploads, pack({n: torch.tensor(v) for n, v in one.received.items()}))
    started = time.process_time()
    found, _, size = reader(reply)
    read = time.process_time() - started
    whole = sum(square(value - torch.tensor(one.received[name])) for name, value in one.sent.items())
    error = (sum(square(found[name] - value) for name, value in one.sent.items()) / whole) ** 0.5
    if not error <= form.error:
        sys.exit(f"the server would read an update that is {error:.1e} off; nothing is claimed")
    scales, axes = (views(sent)[f"{form.pattern}/{part}"] for part in ("scales", "axes"))
    dense = nbytes(pack(one.sent))
    return {
        "ratio": dense / size,
        "error": error,
        "rank": axes.shape[1],
        "float32": dense / float32_bytes(one, form, float(scales[0]), whole),
        "round_s": one.seconds,
        "make_s": made,
        "read_s": read,
    }


def float32_bytes(one: Trained, form: FactoredUpload, kept: float, whole: float) -> float:
    """Bytes of U and V in float32 and of all else: the lowest rank with the same error, decay taken out as well."""
    layers = Layers.matching(form.pattern, one.received)
    assert layers is not None
    rows, columns = layers.shape
    change = layers.matrix({n: one.sent[n].numpy() for n in layers.names}).double()
    change -= kept * layers.matrix(one.received).double()
    energies = torch.linalg.eigvalsh(change.T @ change).clamp(min=0)  # the smallest first
    rank = columns - int((energies.cumsum(0) <= form.error**2 * whole).sum())
    beside = sum(value.nbytes for name, value in one.sent.items() if name not in layers.names)
    return 4 * rank * (rows + columns) + beside


def p5(case: UploadCase, rounds: int) -> dict[str, float]:
    """The client with the smallest ratio; seconds are medians over the clients."""
    form = HyperFL.factored_upload(HyperFLSettings(upload="factors", upload_error=_ERROR))
    assert form is not None
    found = [as_factors(one, form) for one in trained(case, rounds)]
    worst = min(found, key=lambda one: one["ratio"])
    seconds = {name: statistics.median(one[name] for one in found) for name in ("round_s", "make_s", "read_s")}
    best = {"best": max(one["ratio"] for one in found)}
    return {name: float(f"{value:.4g}") for name, value in {**worst, **best, **seconds}.items()}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--rounds", type=int, default=4, help="before the one that is measured")
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--only", nargs="+", choices=list(_CASES), default=list(_CASES))
    chosen = flags.parse_args()
    torch.set_num_threads(chosen.threads)
    InProcessGrid(ClientApp(), 1, {})  # messages are written by a node
    found: dict[str, dict[str, float]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # re-encoded pixels are not the published ones
        for name in chosen.only:
            try:
                found[name] = p5(_CASES[name], chosen.rounds)
            except BadInput as error:
                sys.exit(str(error))
    lines = [
        f"{name}: {one['ratio']:.1f} times smaller (goal >= {_GOAL:g}; best client {one['best']:.1f}), "
        f"rank {one['rank']:.0f}, error {one['error']:.1e}; in float32 {one['float32']:.1f}; "
        f"round {one['round_s']:.2f} s, making {one['make_s']:.2f} s, reading {one['read_s']:.2f} s"
        for name, one in found.items()
    ]
    about: dict[str, Any] = {"P5": {name: one["ratio"] for name, one in found.items()}, **found}
    about |= {"goal": {"P5": _GOAL}, "met": {name: one["ratio"] >= _GOAL for name, one in found.items()}}
    output.say({**about, "rounds": chosen.rounds, "threads": chosen.threads}, lines, only_json=chosen.json)


if __name__ == "__main__":
    main()
