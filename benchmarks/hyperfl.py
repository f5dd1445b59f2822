"""Cost of a client of HyperFL: ``python -m benchmarks.hyperfl [--json] [--quick] [--only P3 P4] [--threads 1]``.

A client of the paper: 600 images in batches of 50, an epoch on the classifier, five on hypernetwork and embedding;
CNN 1 on Fashion-MNIST, CNN 2 on CIFAR-10 (from $FLFW_DATA, else random pixels), without augmentation.

- P3: the 60 steps on the hypernetwork, with the work done once before and after them, over 60 steps of FedAvg on the
  same network.
- P4: a client's whole round in straightforward code (`straightforward`) over ours. That is autograd through the whole
  hypernetwork, ``torch.optim.SGD`` and ``clip_grad_norm_``, with the extractor generated in every forward pass.

First a round of both sides of P4 in float64 is compared, tensor by tensor: a change further than 1e-10 of its norm from
the other side's ends this with exit code 1, and nothing is timed. Then the sides take turns, A B A B, so that a busy
machine hurts both alike, and are timed in seconds of the processor; a ratio is the median of the turns'. The last line
of the output is one JSON object.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import output
from flfw import nets
from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.clients.hyperfl import HyperFLClient
from flfw.data import Dataset
from flfw.data.splits.partition import Split
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.hypernetwork import GeneratedNet
from flfw.plans.run_plan import plan
from flfw.rng import numpy_generator, torch_generator
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task

_EXACT = 1e-10
_IMAGES = 600
_CLIP, _MOMENTUM, _WEIGHT_DECAY, _CLASSIFIER_LR = 50.0, 0.5, 5e-4, 0.1


@dataclass(frozen=True)
class HyperFLCase:
    """A network, and the data and step size that the paper gives it."""

    net: str
    dataset: str
    shape: tuple[int, int, int]
    lr: float
    epochs: int = dataclasses.field(default=5, compare=False)  # the images are the same

    @property
    def experiment(self) -> Experiment:
        """Experiment of the paper; one of its clients is timed."""
        return Experiment(
            dataset=self.dataset,
            net=self.net,
            split="dominant",
            augment="none",
            clients=20,
            lr=self.lr,
            local_epochs=self.epochs,
        )


CASES = {
    "cnn1": HyperFLCase("cnn1", "fmnist", (1, 28, 28), 0.01),
    "cnn2": HyperFLCase("cnn2", "cifar10", (3, 32, 32), 0.02),
}


@cache
def images(case: HyperFLCase) -> Dataset:
    """Return the training images of the first client; random ones if the files are missing."""
    try:
        task = plan(case.experiment).task.load(None)
    except InputError:
        rng = numpy_generator(0, "pictures")
        x = rng.integers(0, 256, (_IMAGES, *case.shape), dtype=np.uint8)
        y, mean, title = rng.integers(0, 10, _IMAGES), (0.5,) * case.shape[0], "random pixels"
        return Dataset(title, x, y, x, y, 10, mean, mean, title, None)
    indices = task.split.train[0]
    x, y = np.asarray(task.dataset.train_x[indices]), np.asarray(task.dataset.train_y[indices])
    return dataclasses.replace(task.dataset, train_x=x, train_y=y, test_x=x, test_y=y)


def client(
    case: HyperFLCase, method: str, precision: torch.dtype = torch.float32, count: int = _IMAGES, epochs: int = 0
) -> FederatedClient:
    """Return a client that holds the first ``count`` of these images, with a fresh model; 0 epochs: the case's."""
    dataset, nobody = images(case), np.zeros(0, np.int64)
    if precision == torch.float64:
        x = dataset.train_x / 255  # floats are not converted to float32
        dataset = dataclasses.replace(dataset, train_x=x, test_x=x)
    everything = (np.arange(min(count, len(dataset.train_y))),)
    task = Task(dataset, Split(everything, everything, (nobody,), nobody, nobody, nobody), NetworkPlan(case.net))
    experiment = dataclasses.replace(case.experiment, method=method, local_epochs=epochs or case.epochs)
    made = plan(experiment).client_class(ClientContext(plan(experiment).client, task, 0, 1, None, None))
    made.model.to(precision)
    return made


def straightforward(net: GeneratedNet, x: Tensor, y: Tensor, case: HyperFLCase) -> None:
    """Do a client's round in straightforward code.

    Args:
        net: trained in place.
        x: normalised images (N, C, H, W).
        y: labels (N,).
        case: with the step size.
    """

    def batches(purpose: str, epochs: int) -> Iterator[Tensor]:
        rng = torch_generator(case.experiment.seed, purpose, 1, 0)  # the order of ours
        for _ in range(epochs):
            yield from torch.randperm(len(x), generator=rng).split(case.experiment.batch_size)

    classifier, hypernet = list(net.classifier.parameters()), list(net.hypernet.parameters())
    sgd = partial(torch.optim.SGD, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    frozen = [*hypernet, net.embedding]
    for parameter in frozen:
        parameter.requires_grad_(False)
    optimiser = sgd(classifier, lr=_CLASSIFIER_LR)
    for chosen in batches("classifier", 1):
        optimiser.zero_grad()
        cross_entropy(net(x[chosen]), y[chosen]).backward()
        optimiser.step()
    for parameter in frozen:
        parameter.requires_grad_(True)
    optimiser = sgd(frozen, lr=case.lr)
    for chosen in batches("hypernetwork", case.experiment.local_epochs):
        optimiser.zero_grad()
        cross_entropy(net(x[chosen]), y[chosen]).backward()
        nn.utils.clip_grad_norm_(hypernet, _CLIP)
        nn.utils.clip_grad_norm_([net.embedding], _CLIP)
        optimiser.step()


def by_hand(made: FederatedClient, case: HyperFLCase) -> None:
    """Do the straightforward round on a client's own model and images."""
    assert isinstance(made.model, GeneratedNet)
    x, y = made.ctx.task.examples("train", np.arange(_IMAGES))
    straightforward(made.model, made.ctx.task.inputs.normalise(x), y, case)


def seconds(work: Callable[[], object]) -> float:
    """Measure seconds of the processor, on all threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


def apart(case: HyperFLCase) -> float:
    """Return the distance of our round from a straightforward one in float64, over its change; the worst tensor's."""
    ours, other = (client(case, "hyperfl", torch.float64) for _ in range(2))
    start = {name: value.clone() for name, value in nets.tensors(other.model).items()}
    ours.train()
    by_hand(other, case)
    trained, expected = nets.tensors(ours.model), nets.tensors(other.model)
    errors = [(trained[n] - value).norm() / (value - start[n]).norm() for n, value in expected.items()]
    return float(torch.stack(errors).max())  # NaN if one is


def gate(cases: Iterable[HyperFLCase]) -> dict[str, float]:
    """Return the errors; exit with 1 if the two sides do not compute the same (NaN is not the same)."""
    exact = {case.net: apart(case) for case in cases}
    if far := {name: error for name, error in exact.items() if not error <= _EXACT}:
        got = ", ".join(f"{name}={error:.2g}" for name, error in far.items())
        sys.exit(
            f"Expected the same change of every tensor on both sides (<= {_EXACT:g}), got {got}; nothing was timed."
        )
    return exact


def steps(case: HyperFLCase) -> tuple[float, float]:
    """Measure the seconds of our steps on the hypernetwork, and of FedAvg's."""
    ours, plain = client(case, "hyperfl"), client(case, "fedavg")
    assert isinstance(ours, HyperFLClient)
    ours.train_classifier()
    return seconds(ours.train_hypernetwork), seconds(plain.train)


def rounds(case: HyperFLCase) -> tuple[float, float]:
    """Measure the seconds of a straightforward round, and of ours."""
    other, ours = client(case, "hyperfl"), client(case, "hyperfl")
    return seconds(partial(by_hand, other, case)), seconds(ours.train)


@dataclass(frozen=True)
class HyperFLSection:
    """Figures of one claim.

    Attributes:
        title: in words.
        figures: by network.
        goals: by network.
        at_most: whether a goal is an upper bound; else a lower one.
        beside: further figures, by network.
    """

    title: str
    figures: Mapping[str, float]
    goals: Mapping[str, float]
    at_most: bool
    beside: Mapping[str, Mapping[str, float]]

    @property
    def met(self) -> dict[str, bool]:
        """Outcome of each goal: whether it is reached."""
        return {
            n: value <= self.goals[n] if self.at_most else value >= self.goals[n] for n, value in self.figures.items()
        }

    def lines(self, name: str) -> list[str]:
        """Return a title and a line for each network."""
        wanted = "<=" if self.at_most else ">="
        text = [f"{name}, {self.title}:"]
        for net, value in self.figures.items():
            more = ", ".join(f"{key} {number:.4g}" for key, number in self.beside[net].items())
            outcome = "met" if self.met[net] else "missed"
            text.append(f"  {net}  {value:5.2f}  (goal {wanted} {self.goals[net]:.2f}: {outcome}); {more}")
        return text


def ratios(
    title: str,
    measure: Callable[[HyperFLCase], tuple[float, float]],
    sides: tuple[str, str],
    goals: Mapping[str, float],
    at_most: bool,
    turns: int,
    cases: Mapping[str, HyperFLCase] = CASES,
) -> HyperFLSection:
    """Measure the ratio of two sides; `measure` times both in one turn."""
    times = {name: [measure(case) for _ in range(turns)] for name, case in cases.items()}
    figures = {name: statistics.median(a / b for a, b in rows) for name, rows in times.items()}
    beside = {
        name: {
            f"{side}_s": statistics.median(column) for side, column in zip(sides, zip(*rows, strict=True), strict=True)
        }
        for name, rows in times.items()
    }
    return HyperFLSection(title, figures, goals, at_most, beside)


def chosen(quick: bool) -> dict[str, HyperFLCase]:
    """Return both cases; quick: with one epoch on the hypernetwork."""
    return {name: dataclasses.replace(case, epochs=1) for name, case in CASES.items()} if quick else CASES


def p3(quick: bool) -> HyperFLSection:
    """Measure a client's step over FedAvg's."""
    title, goals = "steps on the hypernetwork over steps of FedAvg", {"cnn1": 1.40, "cnn2": 1.25}
    return ratios(title, steps, ("ours", "fedavg"), goals, at_most=True, turns=1 if quick else 9, cases=chosen(quick))


def p4(quick: bool) -> HyperFLSection:
    """Measure a straightforward round of a client over ours."""
    title, goals = "a straightforward round of a client over ours", {"cnn1": 8.0, "cnn2": 4.0}
    return ratios(
        title, rounds, ("straightforward", "ours"), goals, at_most=False, turns=1 if quick else 3, cases=chosen(quick)
    )


_SECTIONS: dict[str, Callable[[bool], HyperFLSection]] = {"P3": p3, "P4": p4}
GATE = output.BenchmarkPart("both sides of P4 compared in float64: the same change of every tensor", 35, 8)
PARTS = {
    "P3": output.BenchmarkPart("steps on the hypernetwork over steps of FedAvg", 45, 3),
    "P4": output.BenchmarkPart("a straightforward round of a client over ours", 45, 4),
}


def main() -> None:
    """Check, measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--threads", type=output.whole(), default=1, help="of both sides (1)")
    run = output.start(flags, PARTS, GATE)
    torch.set_num_threads(run.asked.threads)
    run.begin_gate()
    exact = gate(chosen(run.asked.quick).values())
    sections = {name: _SECTIONS[name](run.asked.quick) for name in run.parts()}
    results: dict[str, Any] = {name: dict(section.figures) for name, section in sections.items()}
    for part in ("goals", "met", "beside"):
        results[part.removesuffix("s")] = {name: dict(getattr(section, part)) for name, section in sections.items()}
    results |= {"exact": exact, "threads": run.asked.threads}
    results["images"] = {name: images(case).name for name, case in CASES.items()}
    lines = [f"exact: {', '.join(f'{name} {error:.1e}' for name, error in exact.items())} (goal <= {_EXACT:g})"]
    lines += [line for name, section in sections.items() for line in section.lines(name)]
    run.report(results, lines)


if __name__ == "__main__":
    main()
