"""Batches that SPEAR reads off: ``python -m research.measurements.spear [--json] [--quick] [--only mlp_fresh]``.

Parts are a network and its state: the project's ``mlp`` (64 units) or one hidden layer of 300, fresh or after three
epochs on 3,000 images by SGD (batches of 50, step size 0.1). For each batch size and seed, a new network sends the
gradient of MNIST images that it was not trained on, in float32, or computed in float64 throughout. Reported for
each size: the share of batches that are read off whole, the share of examples, the share of examples that the
reconstruction has wrong beside proof, the median and the largest root mean square error of examples read off, in units
of the range of pixels, and the median seconds. An example counts as read off below an error of 0.01, and as wrong where
a reconstructed image that is not grey has no example that near. Real data only, below $FLFW_DATA.
"""

import statistics
import time
from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import output
from flfw import data, nets
from flfw.attacks.spear import SPEAR
from flfw.data import Dataset
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import loss_and_grad
from flfw.recording.observation import Knowledge, Observation, Vantage
from flfw.rng import initialising, torch_generator

SIZES = (2, 4, 8, 12, 14, 16)
_SEEDS = 5
_TRAINED_ON, _EPOCHS, _BATCH, _LR = 3000, 3, 50, 0.1
_READ_OFF = 0.01

PARTS = {
    "mlp_fresh": output.BenchmarkPart("two hidden layers of 64 units, random weights", 60, 8),
    "mlp_trained": output.BenchmarkPart("two hidden layers of 64 units, trained", 100, 12),
    "wide_fresh": output.BenchmarkPart("one hidden layer of 300 units, random weights", 120, 8),
    "wide_trained": output.BenchmarkPart("one hidden layer of 300 units, trained", 240, 12),
}


def network(part: str, seed: int, dataset: Dataset) -> nets.Net:
    """Build a part's network, and train it where the part says so."""
    with initialising(seed, "spear"):
        if part.startswith("mlp"):
            net = nets.build("mlp", dataset.shape, dataset.classes)
        else:
            hidden = nn.Sequential(nn.Flatten(), nn.Linear(prod(dataset.shape), 300), nn.ReLU())
            net = nets.Net(hidden, nn.Linear(300, dataset.classes))
    if part.endswith("trained"):
        inputs = InputSpec.from_constants(dataset.shape, dataset.mean, dataset.std)
        for step in range(_EPOCHS * _TRAINED_ON // _BATCH):
            x, y = examples(dataset, step * _BATCH % _TRAINED_ON, _BATCH)
            for parameter, gradient in zip(net.parameters(), _gradient(net, inputs, x, y).values(), strict=True):
                parameter.data -= _LR * gradient
    return net


def examples(dataset: Dataset, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return raw images in [0, 1] and labels."""
    indices = range(first, first + count)
    return torch.from_numpy(dataset.train_x[indices]).float() / 255, torch.from_numpy(dataset.train_y[indices])


def _gradient(net: nn.Module, inputs: InputSpec, x: Tensor, y: Tensor) -> nets.Tensors:
    return loss_and_grad(cross_entropy(net(inputs.normalise(x)), y), dict(net.named_parameters()))[1]


def attack(net: nets.Net, dataset: Dataset, x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, float]:
    """Attack the gradient of a batch; return the reconstructed images and the seconds."""
    inputs = InputSpec.from_constants(dataset.shape, dataset.mean, dataset.std)
    inputs = InputSpec(inputs.shape, inputs.mean.to(x), inputs.std.to(x))
    received = nets.tensors(net)
    observation = Observation(Vantage.SERVER, "probe", "target", 0, 0, 0, _gradient(net, inputs, x, y), received)
    knowledge = Knowledge(PlainVictim(net, received, ("*",), inputs), len(y), None)
    started = time.perf_counter()
    (result,) = SPEAR().run([observation], [knowledge], [torch_generator(seed, "spear")])
    return result.samples, time.perf_counter() - started


def measure(part: str, count: int, precision: torch.dtype, seeds: int, dataset: Dataset) -> dict[str, Any]:
    """Attack one batch of each seed; the module says what the results are."""
    errors, wrong, solved, seconds = [], 0, [], []
    for seed in range(seeds):
        x, y = examples(dataset, _TRAINED_ON + 1000 + 100 * seed, count)
        x, net = x.to(precision), network(part, seed, dataset).to(precision)
        samples, taken = attack(net, dataset, x, y, seed)
        distances = torch.cdist(x.flatten(1), samples.to(x).flatten(1)) / prod(dataset.shape) ** 0.5
        errors += [error for error in distances.amin(1).tolist() if error < _READ_OFF]
        solved.append(int((distances.amin(1) < _READ_OFF).sum()))
        grey = (samples == 0.5).flatten(1).all(1)
        wrong += int((~grey & (distances.amin(0) >= _READ_OFF)).sum())
        seconds.append(taken)
    full, total = sum(one == count for one in solved) / seeds, count * seeds
    row = {"whole": full, "examples": sum(solved) / total, "wrong": wrong / total}
    row |= {"median_error": statistics.median(errors) if errors else None, "largest_error": max(errors, default=None)}
    return {**row, "seconds": statistics.median(seconds)}


def lines(part: str, table: dict[str, dict[str, Any]]) -> Iterable[str]:
    """Yield a title and a line for each size and precision."""
    yield f"{part}: batch and precision; share of whole batches, of examples, wrong; errors; seconds"
    for name, row in table.items():
        shares = f"{row['whole']:.2f} {row['examples']:.2f} {row['wrong']:.2f}"
        errors = "none" if row["median_error"] is None else f"{row['median_error']:.0e} {row['largest_error']:.0e}"
        yield f"  {name:10} {shares}; {errors}; {row['seconds']:.2f} s"


def main() -> None:
    """Measure and print."""
    run = output.start(output.parser(__doc__), PARTS)
    dataset = output.or_refused(lambda: data.load("mnist"))
    seeds, sizes = run.amount(_SEEDS, 1), SIZES[:3] if run.asked.quick else SIZES
    torch.set_num_threads(1)
    precisions = {"float32": torch.float32, "float64": torch.float64}
    tables = {
        part: {
            f"{count} {name}": measure(part, count, precision, seeds, dataset)
            for count in sizes
            for name, precision in precisions.items()
        }
        for part in run.parts()
    }
    run.report({"spear": tables, "seeds": seeds}, [line for p, table in tables.items() for line in lines(p, table)])


if __name__ == "__main__":
    main()
