"""Cost of FedCG's server and clients: ``python -m benchmarks.fedcg [--json] [--quick] [--only P9 client]``.

LeNet5 on images of 1x32x32, features of 16x5x5, ten classes, batches of 16; random clients and random images.

- P9: the server's distillation of so many clients in straightforward code, over ours. In each iteration the
  straightforward code runs every client's generator and classifier in evaluation mode on the batch, takes the weighted
  mean of their scores, and does a step of ``torch.optim.Adam`` on the divergence. Ours is all of `FedCG.aggregate`.
- client: an epoch of a client's local training, by stage, in straightforward code over ours. Without a goal.

First both sides are compared: an update further than 1e-5 of its norm from the other side's ends this with exit code
1, and nothing is timed. In float64 that is 40 iterations of the server, and both stages of a client. In float32 it is
four iterations in each of seven rounds, of which the median counts: about once in a hundred iterations an entry lies so
near to the kink of a LeakyReLU that two orders of summation take different slopes, which moves an update by up to a
hundredth. The straightforward loop does so, too, if another library adds up. The worst round stands beside the median.

Then the sides take turns, A B A B, so that a busy machine hurts both alike, and are timed in seconds of the processor
on one thread; a ratio is the median of the turns'. The last line of the output is one JSON object.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, cross_entropy, kl_div, log_softmax, mse_loss, softmax

from benchmarks import output
from flfw.client.context import ClientContext
from flfw.client.store import ClientStore
from flfw.clients.fedcg import FedCGClient
from flfw.data import Dataset
from flfw.data.splits.partition import Split
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.nets.conditional_gan import GeneratingNet, generator_and_classifier, noise
from flfw.plans.run_plan import plan
from flfw.rng import numpy_generator, torch_generator
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.context import ServerContext
from flfw.strategies.fedcg import FedCG, FedCGSettings
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task

_EXACT = 1e-5
_ROUNDS = 7  # that are compared in float32
_CLIENTS = {"clients_4": 4, "clients_10": 10}
_GOAL = {"clients_4": 1.5}
_COMPARED, _TIMED, _QUICK, _TURNS = 40, 128, 16, 9
_BATCH, _CLASSES, _LR, _GAN_LR, _WEIGHT_DECAY, _DIVERSITY = 16, 10, 3e-4, 3e-4, 1e-4, 0.2
_IMAGES, _LATE = 160, 51  # a round in which gamma has its last value
PARTS = {
    "P9": output.BenchmarkPart("the server's distillation, straightforward over ours", 120, 4),
    "client": output.BenchmarkPart("a client's local training, straightforward over ours", 30, 4),
}
GATE = output.BenchmarkPart("both sides compared: the same updates", 60, 20)
Ratios = Mapping[str, Mapping[str, float]]
Times = Mapping[str, Mapping[str, Sequence[float]]]
_GAMMA = 2 / (1 + np.exp(-10)) - 1
_EXPERIMENT = Experiment(
    method="fedcg", dataset="fmnist", net="lenet5", augment="none", clients=1, local_epochs=1, batch_size=_BATCH, lr=_LR
)


def _place(experiment: Experiment) -> ServerContext:
    return ServerContext(plan(experiment).client)


@contextmanager
def precision(kind: torch.dtype) -> Iterator[None]:
    """Make networks and noise of this type inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@cache
def uploads(clients: int, kind: torch.dtype = torch.float32) -> list[Update]:
    """Draw untrained generators and classifiers of clients of unlike sizes; the values are those of float32."""
    if kind != torch.float32:
        return [replace(update, tensors=_as(update.tensors, kind)) for update in uploads(clients)]
    updates = []
    with precision(torch.float32):
        for client in range(clients):
            model = generator_and_classifier(_place(replace(_EXPERIMENT, seed=client)).model())
            rng = torch_generator(client, "warm")
            for _ in range(20):  # so that the statistics of evaluation mode are those of the generator
                model(noise(64, rng), torch.randint(_CLASSES, (64,), generator=rng))
            for parameter in model.classifier.parameters():
                parameter.data.mul_(3.0)  # so that the clients' scores differ
            updates.append(Update(client, 100 + client, model.state_dict()))
    return updates


def _as(tensors: Mapping[str, Tensor], kind: torch.dtype) -> Tensors:
    """Convert floats; keep counters as they are."""
    return {name: value.to(kind) if value.is_floating_point() else value for name, value in tensors.items()}


def distilled(sent: Sequence[Update], iterations: int, server_round: int = 1) -> Tensors:
    """Distil these uploads as flfw's server does."""
    strategy = FedCG(FedCGSettings(iterations=iterations, server_batch=_BATCH, server_lr=_LR))
    strategy.ctx, strategy.round = _place(_EXPERIMENT), server_round
    return strategy.aggregate(sent)


def straightforward(sent: Sequence[Update], iterations: int, server_round: int = 1) -> Tensors:
    """Distil these uploads in straightforward code."""
    student, *teachers = (generator_and_classifier(_place(_EXPERIMENT).model()) for _ in range(1 + len(sent)))
    student.load_state_dict(weighted_mean(sent))
    for teacher, update in zip(teachers, sent, strict=True):
        teacher.load_state_dict(update.tensors)
        teacher.eval()
    shares = [update.examples / sum(u.examples for u in sent) for update in sent]
    optimiser = torch.optim.Adam(student.parameters(), _LR)
    rng = torch_generator(_EXPERIMENT.seed, "server training", server_round)  # so that the draws are ours
    for _ in range(iterations):
        y = torch.randint(_CLASSES, (_BATCH,), generator=rng)
        z = noise(_BATCH, rng)
        with torch.no_grad():
            scores = sum(share * teacher(z, y) for share, teacher in zip(shares, teachers, strict=True))
        assert isinstance(scores, Tensor), "at least one client"
        descend(optimiser, kl_div(log_softmax(student(z, y), 1), softmax(scores, 1), reduction="batchmean"))
    return student.state_dict()


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Do a step of the optimiser."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def client(folder: Path) -> FedCGClient:
    """Return a client that holds random pixels."""
    rng, kind = numpy_generator(0, "pictures"), torch.get_default_dtype()
    x = rng.integers(0, 256, (_IMAGES, 1, 32, 32), dtype=np.uint8)
    pixels = x / 255 if kind == torch.float64 else x  # floats are not converted to float32
    y, nobody, everything = rng.integers(0, _CLASSES, _IMAGES), np.zeros(0, np.int64), (np.arange(_IMAGES),)
    dataset = Dataset("random", pixels, y, pixels, y, _CLASSES, (0.5,), (0.5,), "random", None)
    task = Task(dataset, Split(everything, everything, (nobody,), nobody, nobody, nobody), NetworkPlan("lenet5"))
    made = plan(_EXPERIMENT).client_class(
        ClientContext(plan(_EXPERIMENT).client, task, 0, _LATE, None, ClientStore(folder, "benchmark", 0))
    )
    assert isinstance(made, FedCGClient)
    return made


@dataclass(frozen=True)
class Party:
    """A client in straightforward code, with the images and the draws of ours."""

    ours: FedCGClient
    net: GeneratingNet

    def batches(self, purpose: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch, normalised."""
        for x, y in self.ours.batches(self.ours.generator(purpose)):
            yield self.ours.ctx.task.inputs.normalise(x), y

    def train_classifier(self) -> None:
        """Train the extractor and the classifier: stage 1."""
        net, rng = self.net, self.ours.generator("generated features")
        moved = [*net.extractor.parameters(), *net.classifier.parameters()]
        optimiser = torch.optim.Adam(moved, _LR, weight_decay=_WEIGHT_DECAY)
        net.generator.eval()
        for x, y in self.batches("batches"):
            features = net.extractor(x)
            with torch.no_grad():
                generated = net.generator(noise(len(y), rng), y)
            descend(optimiser, cross_entropy(net.classifier(features), y) + _GAMMA * mse_loss(features, generated))

    def train_generator(self) -> None:
        """Train the discriminator and the generator: stage 2."""
        net, rng = self.net, self.ours.generator("noise")
        judging, generating = (
            torch.optim.Adam(part.parameters(), _GAN_LR, betas=(0.5, 0.999))
            for part in (net.discriminator, net.generator)
        )
        net.extractor.eval()
        net.generator.train()
        for x, y in self.batches("generator"):
            z, (one, zero) = noise(len(y), rng), (torch.ones(len(y)), torch.zeros(len(y)))
            generated = net.generator(z, y)
            with torch.no_grad():
                real = net.extractor(x)
            judged = binary_cross_entropy(net.discriminator(real, y), one)
            descend(judging, judged + binary_cross_entropy(net.discriminator(generated.detach(), y), zero))
            half = len(y) // 2
            first, other = z[:half], noise(half, rng)
            both = net.generator(torch.cat([first, other]), y[:half].repeat(2))
            ratio = (both[:half] - both[half:]).abs().mean() / (first - other).abs().mean()
            diversity = _DIVERSITY / (ratio + 1e-5)
            descend(generating, binary_cross_entropy(net.discriminator(generated, y), one) + diversity)
        net.extractor.train()


def party(folder: Path) -> Party:
    """Return a straightforward client with the same first model as ours."""
    ours = client(folder)
    net = ours.ctx.fresh_model()
    assert isinstance(net, GeneratingNet)
    return Party(ours, net)


def apart(trained: Mapping[str, Tensor], expected: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    """Return the distance of an update from the expected one, over the norm of the expected one."""
    moved = {name: value for name, value in expected.items() if value.is_floating_point()}
    error = torch.cat([(trained[name] - value).flatten() for name, value in moved.items()]).norm()
    return float(error / torch.cat([(value - start[name]).flatten() for name, value in moved.items()]).norm())


def server_apart(clients: int, kind: torch.dtype, iterations: int, server_round: int = 1) -> float:
    """Return the distance of the server's two sides."""
    with precision(kind):
        sent = uploads(clients, kind)
        ours, other = (side(sent, iterations, server_round) for side in (distilled, straightforward))
        return apart(ours, other, weighted_mean(sent))


def client_apart(folder: Path) -> float:
    """Return the distance of a client's two sides after both stages, in float64."""
    with precision(torch.float64):
        ours, other = client(folder), party(folder)
        start = {name: value.clone() for name, value in other.net.state_dict().items()}
        for side in (ours, other):
            side.train_classifier()
            side.train_generator()
        return apart(ours.model.state_dict(), other.net.state_dict(), start)


def gate(
    folder: Path, names: Collection[str] = ("P9", "client"), *, quick: bool = False
) -> tuple[dict[str, float], float]:
    """Return the errors, and that of the worst round in float32; exit with 1 if an error is too large or NaN.

    Args:
        folder: for the client's state.
        names: the parts whose sides are compared.
        quick: whether fewer iterations and rounds are enough.
    """
    compared, rounds = (_COMPARED // 10, 3) if quick else (_COMPARED, _ROUNDS)
    exact = {"client": client_apart(folder)} if "client" in names else {}
    single: dict[str, list[float]] = {}
    for name, clients in _CLIENTS.items() if "P9" in names else ():
        exact[name] = server_apart(clients, torch.float64, compared)
        single[name] = [server_apart(clients, torch.float32, 4, now) for now in range(1, 1 + rounds)]
        exact[f"{name}_float32"] = median(single[name])
    if far := {name: error for name, error in exact.items() if not error <= _EXACT}:
        got = ", ".join(f"{name}={error:.2g}" for name, error in far.items())
        sys.exit(f"Expected the same on both sides (<= {_EXACT:g}), got {got}; nothing was timed.")
    return exact, max((error for errors in single.values() for error in errors), default=0.0)


def seconds(work: Callable[[], object]) -> float:
    """Measure seconds of the processor."""
    started = time.process_time()
    work()
    return time.process_time() - started


def server_turns(clients: int, turns: int, iterations: int) -> list[tuple[float, float]]:
    """Measure the milliseconds of an iteration, straightforward and ours, in each turn."""
    sent = uploads(clients)
    distilled(sent, 8)  # first steps set things up
    sides = (straightforward, distilled)
    return [
        tuple(1000 * seconds(partial(side, sent, iterations)) / iterations for side in sides)  # type: ignore[misc]
        for _ in range(turns)
    ]


def client_turns(folder: Path, stage: str, turns: int) -> list[tuple[float, float]]:
    """Measure the milliseconds of a batch in a stage, straightforward and ours, in each turn."""
    sides = (party(folder), client(folder))
    batches = -(-_IMAGES // _BATCH)
    rows = [
        tuple(1000 * seconds(getattr(side, f"train_{stage}")) / batches for side in sides)  # type: ignore[misc]
        for _ in range(turns + 1)
    ]
    return rows[1:]  # type: ignore[return-value]


def lines(ratios: Ratios, times: Times, met: Mapping[str, bool]) -> Iterator[str]:
    """Yield a line for each ratio."""
    for part, row in ratios.items():
        for name, ratio in row.items():
            outcome = f" (goal >= {_GOAL[name]}: {'met' if met[name] else 'missed'})" if name in _GOAL else ""
            upper, lower = times[part][name]
            yield f"  {part} {name:10}  {ratio:5.2f}{outcome}; {upper:.2f} ms over {lower:.2f} ms"


def main() -> None:
    """Check, measure and print."""
    run = output.start(output.parser(__doc__), PARTS, GATE)
    torch.set_num_threads(1)
    turns, iterations = run.amount(_TURNS, 1), run.amount(_TIMED, _QUICK)
    measured: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="flfw-fedcg-") as path:
        folder = Path(path)
        run.begin_gate()
        exact, worst = gate(folder, run.names, quick=run.asked.quick)
        for name in run.parts("P9"):
            measured[name] = {key: server_turns(clients, turns, iterations) for key, clients in _CLIENTS.items()}
        for name in run.parts("client"):
            measured[name] = {stage: client_turns(folder, stage, turns) for stage in ("classifier", "generator")}
    ratios = {
        part: {name: median(a / b for a, b in rows) for name, rows in table.items()} for part, table in measured.items()
    }
    times = {
        part: {name: [median(side) for side in zip(*rows, strict=True)] for name, rows in table.items()}
        for part, table in measured.items()
    }
    report: dict[str, Any] = {**ratios, "milliseconds": times, "exact": exact, "load": os.getloadavg()[0]}
    text = [f"exact: {', '.join(f'{name} {error:.1e}' for name, error in exact.items())} (goal <= {_EXACT:g})"]
    met: dict[str, bool] = {}
    if "P9" in ratios:
        met = {name: ratios["P9"][name] >= minimum for name, minimum in _GOAL.items()}
        report |= {"goal": {"P9": _GOAL}, "met": {"P9": met}, "float32_worst": worst}
        text.append(f"the worst round in float32: {worst:.1e}")
    run.report(report, [*text, *lines(ratios, times, met)])


if __name__ == "__main__":
    main()
