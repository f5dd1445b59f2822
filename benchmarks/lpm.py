"""Cost of training adapters: ``python -m benchmarks.lpm [--json] [--quick] [--only P11 hypernetwork] [--threads 1]``.

A client with 160 images of 32 pixels in batches of 16, an epoch on the adapters and the classifier: ResNet-18 with an
adapter behind each stage, and a small transformer with one in each block. The bodies have random weights, as only time
is measured; images are those of CIFAR-10 (from $FLFW_DATA, else random pixels), without augmentation.

- P11: FedAvg's steps with ``--trainable adapter`` over plain ones of the same trained tensors: torchvision's or timm's
  own module with ``requires_grad_(False)``, the same adapters, ``torch.optim.SGD``.
- hypernetwork: HyperFL-LPM's steps, with the work done once before and after them, over FedAvg's on the same adapters.

First both are compared in float64, tensor by tensor: our steps with the plain ones, and a whole round of HyperFL-LPM
with one in straightforward code, see `benchmarks.hyperfl`. A change further than 1e-10 of its norm from the other
side's ends this with exit code 1, and nothing is timed. Then the sides take turns, and are timed in seconds of the
processor; a ratio is the median of the turns'. The last line of the output is one JSON object.
"""

import dataclasses
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks import hyperfl, output
from flfw import nets
from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.clients.hyperfl import HyperFLClient
from flfw.data import Dataset
from flfw.data.splits.partition import Split
from flfw.experiment import Experiment
from flfw.nets.backbones.adapters import insert
from flfw.nets.backbones.freezing import frozen
from flfw.nets.hypernetwork import GeneratedNet
from flfw.plans.run_plan import plan
from flfw.rng import torch_generator
from flfw.task.task import Task

_IMAGES, _BATCH, _LR = 160, 16, 0.01
_GATE_IMAGES = 32
_EXACT, _UNMOVED = 1e-10, 1e-6


@dataclass(frozen=True)
class AdapterCase:
    """A pretrained network whose adapters are trained."""

    net: str
    goal: float = 1.15

    def experiment(self, method: str) -> Experiment:
        """Return the experiment of whose clients one is timed."""
        return Experiment(
            method=method,
            net=self.net,
            trainable="adapter",
            dataset="cifar10",
            split="dominant",
            augment="none",
            clients=20,
            batch_size=_BATCH,
            lr=_LR,
            local_epochs=1,
        )


CASES = {"resnet18": AdapterCase("resnet18_imagenet"), "vit_tiny": AdapterCase("vit_tiny")}


@cache
def images(count: int) -> Dataset:
    """Return some training images of the first client; random ones if the files are missing."""
    dataset = hyperfl.images(hyperfl.CASES["cnn2"])
    x, y = dataset.train_x[:count], dataset.train_y[:count]
    return dataclasses.replace(dataset, train_x=x, train_y=y, test_x=x, test_y=y)


def client(case: AdapterCase, method: str, precision: torch.dtype = torch.float32) -> FederatedClient:
    """Return a client with a fresh model, and with fewer images in float64."""
    exact, nobody = precision == torch.float64, np.zeros(0, np.int64)
    dataset = images(_GATE_IMAGES if exact else _IMAGES)
    if exact:  # floats are not converted to float32
        dataset = dataclasses.replace(dataset, train_x=dataset.train_x / 255, test_x=dataset.test_x / 255)
    everything = (np.arange(len(dataset.train_y)),)
    run_plan = plan(case.experiment(method))
    split = Split(everything, everything, (nobody,), nobody, nobody, nobody)
    task = Task(dataset, split, run_plan.task.network)
    made = run_plan.client_class(ClientContext(run_plan.client, task, 0, 1, None, None))
    made.model.to(precision)
    return made


def plain(made: FederatedClient, case: AdapterCase) -> nn.Module:
    """Build the network of a client of FedAvg from the libraries' own modules, with the client's numbers."""
    architecture = nets.card(case.net).architecture
    assert architecture is not None
    settings = nets.AdapterSettings()
    body = architecture.body(settings).requires_grad_(False)
    insert(body, architecture.places(body, settings.places), lambda layer: architecture.adapter(layer, settings))
    net = nn.Sequential(body, architecture.head(10)).to(next(made.model.parameters()).dtype)
    numbers = {**made.model.state_dict(), **frozen(made.model)}
    named = {_plain_name(name): value for name, value in numbers.items()}
    net.load_state_dict({name: named[name].clone() for name in net.state_dict()})
    net.train()
    for name, layer in net.named_modules():
        if isinstance(layer, _BatchNorm) and ".adapter." not in name:
            layer.eval()
    return net


def plain_steps(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """Do an epoch in straightforward code, in the order of a client's.

    Args:
        net: trained in place.
        x: normalised images (N, C, H, W).
        y: labels (N,).
    """
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=_LR, momentum=0.5, weight_decay=5e-4)
    for rows in torch.randperm(len(x), generator=torch_generator(0, "batches", 1, 0)).split(_BATCH):
        optimiser.zero_grad()
        cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


def inputs_of(made: FederatedClient) -> tuple[Tensor, Tensor]:
    """Return a client's images, normalised, and their labels."""
    x, y = made.ctx.task.examples("train", made.indices("train"))
    return made.ctx.task.inputs.normalise(x), y


def apart(case: AdapterCase) -> float:
    """Return the worst tensor's distance of our change from the other side's in float64, over that change."""
    ours = client(case, "fedavg", torch.float64)
    other = plain(ours, case)
    start = {name: value.clone() for name, value in ours.model.state_dict().items()}
    plain_steps(other, *inputs_of(ours))
    ours.train()
    steps = _worst(ours.model.state_dict(), {n: other.state_dict()[_plain_name(n)] for n in start}, start)
    generated, by_hand = (client(case, "hyperfl_lpm", torch.float64) for _ in range(2))
    begun = {name: value.clone() for name, value in by_hand.model.state_dict().items()}
    generated.train()
    assert isinstance(by_hand.model, GeneratedNet)
    hyperfl.straightforward(by_hand.model, *inputs_of(by_hand), _as_hyperfl(case))
    return max(steps, _worst(generated.model.state_dict(), by_hand.model.state_dict(), begun))


def _plain_name(name: str) -> str:
    return name.replace("extractor.body.", "0.").replace("classifier.", "1.")


def _worst(ours: Mapping[str, Tensor], other: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    """Return the largest distance over a tensor's change.

    Where that is less than a millionth of the whole change, the millionth counts: the shift of an adapter's first
    BatchNorm has the gradient 0 but for rounding, as the second one takes it away.
    """
    moved = {n: (value - start[n]).norm() for n, value in other.items() if value.is_floating_point()}
    minimum = _UNMOVED * torch.stack(list(moved.values())).norm()
    errors = [(ours[n] - other[n]).norm() / torch.maximum(change, minimum) for n, change in moved.items()]
    return float(torch.stack(errors).max())  # NaN if one is


@dataclass(frozen=True)
class _Straightforward(hyperfl.HyperFLCase):
    """The case in the words of `benchmarks.hyperfl`."""

    tuned: AdapterCase = AdapterCase("")

    @property
    def experiment(self) -> Experiment:
        """Experiment of the client."""
        return self.tuned.experiment("hyperfl_lpm")


def _as_hyperfl(case: AdapterCase) -> hyperfl.HyperFLCase:
    return _Straightforward(case.net, "cifar10", (3, 32, 32), _LR, 1, case)


def adapter_steps(case: AdapterCase) -> tuple[float, float]:
    """Measure the seconds of our steps, and of plain ones."""
    ours = client(case, "fedavg")
    other, given = plain(ours, case), inputs_of(ours)
    return hyperfl.seconds(ours.train), hyperfl.seconds(partial(plain_steps, other, *given))


def hypernetwork_steps(case: AdapterCase) -> tuple[float, float]:
    """Measure the seconds of HyperFL-LPM's steps on the hypernetwork, and of FedAvg's on the adapters."""
    ours, other = client(case, "hyperfl_lpm"), client(case, "fedavg")
    assert isinstance(ours, HyperFLClient)
    return hyperfl.seconds(ours.train_hypernetwork), hyperfl.seconds(other.train)


_MEASURES: Mapping[str, tuple[Callable[[AdapterCase], tuple[float, float]], tuple[str, str]]] = {
    "P11": (adapter_steps, ("ours", "plain")),
    "hypernetwork": (hypernetwork_steps, ("hyperfl_lpm", "fedavg")),
}
GATE = output.BenchmarkPart("our steps and plain ones compared in float64: the same change of every tensor", 40, 30)
PARTS = {
    "P11": output.BenchmarkPart("steps on adapters over plain ones of the same tensors", 60, 10),
    "hypernetwork": output.BenchmarkPart("steps of HyperFL-LPM over steps on adapters", 60, 10),
}


def main() -> None:
    """Check, measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--threads", type=output.whole(), default=1, help="of both sides (1)")
    run = output.start(flags, PARTS, GATE)
    torch.set_num_threads(run.asked.threads)
    nets.look_in("random")
    run.begin_gate()
    exact = {name: apart(case) for name, case in CASES.items()}
    if far := [f"{name}={error:.2g}" for name, error in exact.items() if not error <= _EXACT]:
        sys.exit(f"Expected the same change of every tensor on both sides (<= {_EXACT:g}), got {', '.join(far)}.")
    results: dict[str, Any] = {"exact": exact, "goal": {"P11": {n: case.goal for n, case in CASES.items()}}}
    lines = [f"exact: {', '.join(f'{name} {error:.1e}' for name, error in exact.items())} (goal <= {_EXACT:g})"]
    for part in run.parts():
        measure, sides = _MEASURES[part]
        times = {n: [measure(case) for _ in range(1 if run.asked.quick else 7)] for n, case in CASES.items()}
        results[part] = {name: statistics.median(a / b for a, b in rows) for name, rows in times.items()}
        lines.append(f"{part}, {PARTS[part].description}:")
        for name, value in results[part].items():
            step = {
                s: statistics.median(column) for s, column in zip(sides, zip(*times[name], strict=True), strict=True)
            }
            steps = ", ".join(f"{side} {1000 * total * _BATCH / _IMAGES:.1f} ms a step" for side, total in step.items())
            goal = CASES[name].goal
            met = f"(goal <= {goal}: {'met' if value <= goal else 'missed'}); " if part == "P11" else ""
            lines.append(f"  {name}  {value:.2f}  {met}{steps}")
    if "P11" in results:
        results["met"] = {"P11": {name: value <= CASES[name].goal for name, value in results["P11"].items()}}
    run.report({**results, "threads": run.asked.threads, "images": images(_IMAGES).name}, lines)


if __name__ == "__main__":
    main()
