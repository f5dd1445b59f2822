"""What FedCG's server and its clients cost: ``python -m benchmarks.fedcg [--json] [--only P9 client] [--quick]``.

LeNet5 on images of 1x32x32, features of 16x5x5, ten classes, batches of 16; random clients and random images.

- P9: the server's distillation of so many clients as one would write it first, over ours. That is, in each iteration,
  every client's generator and classifier in evaluation mode on the batch, the weighted mean of their scores, and a step
  of ``torch.optim.Adam`` on the divergence. Ours is `FedCG.aggregate`, with all that it does besides.
- client: an epoch of a client's local training, by stage, as one would write it first over ours. Without a goal.

First both sides are compared: an update further than 1e-5 of its norm from the other side's ends this with exit code
1, and nothing is timed. In float64 that is 40 iterations of the server, and both stages of a client. In float32 it is
four iterations in each of seven rounds, of which the median counts: about once in a hundred iterations an entry lies so
near to the kink of a LeakyReLU that two orders of summation take different slopes, which moves an update by up to a
hundredth; in the straightforward loop, too, when another library adds up. The worst round stands beside the median.

Then the sides take turns, A B A B, so that a busy machine hurts both alike, and are timed in seconds of the processor
on one thread; a ratio is the median of the turns'. The last line of the output is one JSON object.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, cross_entropy, kl_div, log_softmax, mse_loss, softmax

from benchmarks import output
from clients.fedcg import FedCGClient
from flfw import resolve as parts
from flfw.client.store import ClientStore
from flfw.client.workplace import Workplace
from flfw.data import Dataset
from flfw.data.splits.partition import Split
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.nets.conditional_gan import GeneratingNet, imagining, noise
from flfw.rng import numpy_generator, torch_generator
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.place import ServerPlace
from flfw.task import Task
from strategies.fedcg import FedCG, FedCGSettings

_EXACT = 1e-5
_ROUNDS = 7  # that are compared in float32
_CLIENTS = {"clients_4": 4, "clients_10": 10}
_GOAL = {"clients_4": 1.5}
_COMPARED, _TIMED, _QUICK, _TURNS = 40, 128, 16, 9
_BATCH, _CLASSES, _LR, _GAN_LR, _WEIGHT_DECAY, _DIVERSITY = 16, 10, 3e-4, 3e-4, 1e-4, 0.2
_IMAGES, _LATE = 160, 51  # a round in which gamma has its last value
_GAMMA = 2 / (1 + np.exp(-10)) - 1
_EXPERIMENT = Experiment(
    method="fedcg", dataset="fmnist", net="lenet5", augment="none", clients=1, local_epochs=1, batch_size=_BATCH, lr=_LR
)


def _place(experiment: Experiment) -> ServerPlace:
    return ServerPlace(experiment, *parts.method(experiment))


@contextmanager
def precision(kind: torch.dtype) -> Iterator[None]:
    """Inside, networks and noise are of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@cache
def uploads(clients: int, kind: torch.dtype = torch.float32) -> list[Update]:
    """Generators and classifiers that have seen nothing, of clients of unlike sizes."""
    found = []
    for client in range(clients):
        model = imagining(_place(replace(_EXPERIMENT, seed=client)).model())
        rng = torch_generator(client, "warm")
        for _ in range(20):  # so that what evaluation mode goes by is that of the generator
            model(noise(64, rng), torch.randint(_CLASSES, (64,), generator=rng))
        for parameter in model.classifier.parameters():
            parameter.data.mul_(3.0)  # so that clients do not say nearly the same of everything
        found.append(Update(client, 100 + client, model.state_dict()))
    return found


def distilled(sent: Sequence[Update], iterations: int, server_round: int = 1) -> Tensors:
    """What flfw's server makes of these uploads."""
    strategy = FedCG(FedCGSettings(iterations=iterations, server_batch=_BATCH, server_lr=_LR))
    strategy.at, strategy.round = _place(_EXPERIMENT), server_round
    return strategy.aggregate(sent)


def straightforward(sent: Sequence[Update], iterations: int, server_round: int = 1) -> Tensors:
    """The same as one would write it first."""
    student, *teachers = (imagining(_place(_EXPERIMENT).model()) for _ in range(1 + len(sent)))
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
    """A step."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def client(folder: Path) -> FedCGClient:
    """One that holds random pixels."""
    rng, kind = numpy_generator(0, "pictures"), torch.get_default_dtype()
    x = rng.integers(0, 256, (_IMAGES, 1, 32, 32), dtype=np.uint8)
    pixels = x / 255 if kind == torch.float64 else x  # which are not converted to float32 any more
    y, nobody, everything = rng.integers(0, _CLASSES, _IMAGES), np.zeros(0, np.int64), (np.arange(_IMAGES),)
    dataset = Dataset("random", pixels, y, pixels, y, _CLASSES, (0.5,), (0.5,), "random", None)
    task = Task(dataset, Split(everything, everything, (nobody,), nobody, nobody, nobody), "lenet5")
    method, settings = parts.method(_EXPERIMENT)
    made = parts.client(_EXPERIMENT)(
        Workplace(_EXPERIMENT, task, method, settings, 0, _LATE, None, ClientStore(folder, "benchmark", 0))
    )
    assert isinstance(made, FedCGClient)
    return made


@dataclass(frozen=True)
class Party:
    """A client as one would write it first, on ours' images and with its draws."""

    ours: FedCGClient
    net: GeneratingNet

    def batches(self, purpose: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Of an epoch, normalised."""
        for x, y in self.ours.batches(self.ours.generator(purpose)):
            yield self.ours.at.task.inputs.normalise(x), y

    def train_classifier(self) -> None:
        """Stage 1."""
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
        """Stage 2."""
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
    """One with the model that ours begins with."""
    ours = client(folder)
    net = ours.at.fresh_model()
    assert isinstance(net, GeneratingNet)
    return Party(ours, net)


def apart(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    """How far one update is from another, over that one's norm."""
    moved = {name: value for name, value in expected.items() if value.is_floating_point()}
    error = torch.cat([(found[name] - value).flatten() for name, value in moved.items()]).norm()
    return float(error / torch.cat([(value - start[name]).flatten() for name, value in moved.items()]).norm())


def server_apart(clients: int, kind: torch.dtype, iterations: int, server_round: int = 1) -> float:
    """How far the server's two sides are apart."""
    with precision(kind):
        sent = uploads(clients, kind)
        ours, other = (side(sent, iterations, server_round) for side in (distilled, straightforward))
        return apart(ours, other, weighted_mean(sent))


def client_apart(folder: Path) -> float:
    """How far a client's two sides are apart after both stages, in float64."""
    with precision(torch.float64):
        ours, other = client(folder), party(folder)
        start = {name: value.clone() for name, value in other.net.state_dict().items()}
        for side in (ours, other):
            side.train_classifier()
            side.train_generator()
        return apart(ours.model.state_dict(), other.net.state_dict(), start)


def gate(folder: Path) -> tuple[dict[str, float], float]:
    """The errors, and the worst round's in float32; exits with 1 where an error is too large, as NaN is."""
    exact, single = {"client": client_apart(folder)}, {}
    for name, clients in _CLIENTS.items():
        exact[name] = server_apart(clients, torch.float64, _COMPARED)
        single[name] = [server_apart(clients, torch.float32, 4, now) for now in range(1, 1 + _ROUNDS)]
        exact[f"{name}_float32"] = median(single[name])
    if far := {name: error for name, error in exact.items() if not error <= _EXACT}:
        got = ", ".join(f"{name}={error:.2g}" for name, error in far.items())
        sys.exit(f"Expected the same on both sides (<= {_EXACT:g}), got {got}; nothing was timed.")
    return exact, max(map(max, single.values()))


def seconds(work: Callable[[], object]) -> float:
    """Of the processor."""
    started = time.process_time()
    work()
    return time.process_time() - started


def server_turns(clients: int, turns: int, iterations: int) -> list[tuple[float, float]]:
    """Milliseconds of an iteration, straightforward and ours, in each turn."""
    sent = uploads(clients)
    distilled(sent, 8)  # first steps set things up
    sides = (straightforward, distilled)
    return [
        tuple(1000 * seconds(partial(side, sent, iterations)) / iterations for side in sides)  # type: ignore[misc]
        for _ in range(turns)
    ]


def client_turns(folder: Path, stage: str, turns: int) -> list[tuple[float, float]]:
    """Milliseconds of a batch in a stage, straightforward and ours, in each turn."""
    sides = (party(folder), client(folder))
    batches = -(-_IMAGES // _BATCH)
    found = [
        tuple(1000 * seconds(getattr(side, f"train_{stage}")) / batches for side in sides)  # type: ignore[misc]
        for _ in range(turns + 1)
    ]
    return found[1:]  # type: ignore[return-value]


def main() -> None:
    """Check, measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--only", nargs="+", choices=("P9", "client"), default=("P9", "client"))
    flags.add_argument("--quick", action="store_true", help="one short turn each: does it work at all?")
    asked = flags.parse_args()
    torch.set_num_threads(1)
    turns, iterations = (1, _QUICK) if asked.quick else (_TURNS, _TIMED)
    with tempfile.TemporaryDirectory(prefix="flfw-fedcg-") as path:
        folder, measured = Path(path), {}
        exact, worst = gate(folder)
        if "P9" in asked.only:
            measured["P9"] = {name: server_turns(clients, turns, iterations) for name, clients in _CLIENTS.items()}
        if "client" in asked.only:
            stages = ("classifier", "generator")
            measured["client"] = {stage: client_turns(folder, stage, turns) for stage in stages}
    ratios = {
        part: {n: median(a / b for a, b in of) for n, of in several.items()} for part, several in measured.items()
    }
    times = {
        part: {n: [median(side) for side in zip(*of, strict=True)] for n, of in several.items()}
        for part, several in measured.items()
    }
    met = {name: ratios["P9"][name] >= least for name, least in _GOAL.items()} if "P9" in ratios else {}
    rest = {"goal": {"P9": _GOAL}, "met": {"P9": met}, "milliseconds": times, "exact": exact}
    report = {**ratios, **rest, "float32_worst": worst, "load": os.getloadavg()[0], "quick": asked.quick}
    lines = [f"exact: {', '.join(f'{name} {error:.1e}' for name, error in exact.items())} (goal <= {_EXACT:g})"]
    lines += [f"the worst of {len(_CLIENTS) * _ROUNDS} rounds in float32: {worst:.1e}"]
    for part, several in ratios.items():
        for name, ratio in several.items():
            outcome = f" (goal >= {_GOAL[name]}: {'met' if met[name] else 'missed'})" if name in _GOAL else ""
            upper, lower = times[part][name]
            lines.append(f"  {part} {name:10}  {ratio:5.2f}{outcome}; {upper:.2f} ms over {lower:.2f} ms")
    output.say(report, lines, only_json=asked.json)


if __name__ == "__main__":
    main()
