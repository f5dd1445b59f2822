"""Leak to a malicious server.

``python -m research.measurements.malicious_hypernetwork [--json] [--quick] [--dataset mnist]``.

HyperFL with the fully connected ``mlp``. An honest server broadcasts the hypernetwork as it was initialised. A
malicious one broadcasts `serving(...)`. It generates, from any embedding, an extractor whose first layer sorts examples
into bins, by `imprint`. Both servers then read the extractor's gradient off a client's
gradient, and single examples off the extractor's, in closed form: no search, no labels, no embedding, no classifier.

The result is the share of images that are read off, for batches of 1, 4, 16 and 64 training images, twenty of each. An
image is read off if some reading has a PSNR above 40 dB. The bins are chosen on 1,000 test images, which count as
public. Data come from $FLFW_DATA; the digits need none. The last line of the output is one JSON object.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import output
from flfw import data, nets
from flfw.audit.measures.metrics import psnr
from flfw.errors import InputError
from flfw.inversion.closed_form.imprint import bin_sums
from flfw.inversion.closed_form.linear import linear_inputs, read
from flfw.inversion.private.extractor import extractor_of
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import loss_and_grad
from flfw.rng import initialising, numpy_generator

_PRESENT = 1e-3  # a bin below this share of the largest difference of the biases' gradients is empty
_BATCHES, _REPEATS, _PUBLIC, _FOUND = (1, 4, 16, 64), 20, 1000, 40.0
PARTS = {
    "honest": output.BenchmarkPart("a hypernetwork as it was initialised", 3, 1),
    "malicious": output.BenchmarkPart("a hypernetwork that generates bins", 5, 2),
}


def serving(hypernetwork: nets.Tensors, weights: nets.Tensors) -> nets.Tensors:
    """Build a hypernetwork of a malicious server, which generates the same network from every embedding.

    The trunk and the heads' weights are 0, and the heads' biases are the network. So a client's gradient of them is
    that of a network of the server's choice. A client could see the zeros, but the protocol has no check.

    Args:
        hypernetwork: an honest one's tensors, ``hypernet.*``, for their names and shapes.
        weights: tensors of the network to be generated, in the order of the heads.
    """
    biases = {f"hypernet.heads.{k}.bias": value.flatten().clone() for k, value in enumerate(weights.values())}
    return {name: biases.get(name, torch.zeros_like(value)) for name, value in hypernetwork.items()}


def imprint(extractor: nn.Module, means: Tensor) -> nets.Tensors:
    """Compute weights of a fully connected extractor whose first layer sorts examples into bins.

    Args:
        extractor: `nn.Sequential` of fully connected layers with biases and rectifiers.
        means: (n,) means of public inputs, normalised like the network's inputs: their quantiles bound the bins.

    Raises:
        InputError: the extractor has other layers with weights, such as convolutions.
    """
    first, *others = _layers(extractor)
    weights = {name: means.new_zeros(value.shape) for name, value in extractor.named_parameters()}
    units, inputs = weights[f"{first}.weight"].shape
    weights[f"{first}.weight"] += 1 / inputs
    weights[f"{first}.bias"] -= torch.quantile(means, torch.linspace(0, 1, units, device=means.device))
    for name in others:  # these layers pass on all units alike, and are never off
        weights[f"{name}.weight"] += 1 / weights[f"{name}.weight"].shape[1]
        weights[f"{name}.bias"] += 1
    return weights


def alone_in_their_bins(extractor: nn.Module, gradient: nets.Tensors) -> Tensor:
    """Read the examples off the bins of an imprinted extractor: (k, d) inputs; a shared bin gives a mixture.

    Args:
        extractor: see `imprint`.
        gradient: gradient of its weights, for a batch.
    """
    first = _layers(extractor)[0]
    weight, bias = (bin_sums(gradient[f"{first}.{part}"]) for part in ("weight", "bias"))
    held = bias.abs() > _PRESENT * bias.abs().max()
    return linear_inputs(weight[held], bias[held], int(held.sum())).to(gradient[f"{first}.weight"].dtype)


def _layers(extractor: nn.Module) -> list[str]:
    """Return the names of the layers with weights."""
    layers = [(name, layer) for name, layer in extractor.named_children() if list(layer.parameters())]
    kinds = [type(layer).__name__ for _, layer in layers if not isinstance(layer, nn.Linear)]
    if kinds or not layers:
        raise InputError(f"Expected an extractor of fully connected layers, got {', '.join(kinds) or 'none'}.")
    return [name for name, _ in layers]


def shares(dataset: data.Dataset, malicious: bool, repeats: int = _REPEATS) -> dict[str, float]:
    """Measure the share of images that are read off, by batch size."""
    inputs = InputSpec.from_constants(dataset.shape, dataset.mean, dataset.std)
    with initialising(0, "generated"):
        client = GeneratedNet(nets.build("mlp", dataset.shape, dataset.classes), 64, 128, "fan_in")
    broadcast = {name: value for name, value in nets.tensors(client).items() if name.startswith("hypernet.")}
    extractor = extractor_of(client)
    if malicious:
        public = inputs.normalise(_pixels(dataset.test_x[:_PUBLIC])).flatten(1).mean(1)
        broadcast = serving(broadcast, imprint(extractor, public))
        client.load_state_dict(broadcast, strict=False)
    rng, table = numpy_generator(0, "batches"), {}
    for batch in _BATCHES:
        hits = [
            _read_off(client, broadcast, inputs, dataset, rng.choice(len(dataset.train_x), batch, False), malicious)
            for _ in range(repeats)
        ]
        table[str(batch)] = sum(hits) / (batch * repeats)
    return table


def _read_off(
    client: GeneratedNet,
    broadcast: nets.Tensors,
    inputs: InputSpec,
    dataset: data.Dataset,
    rows: np.ndarray,
    binned: bool,
) -> int:
    """Count the images of a batch (rows of the data set) that are among the readings."""
    x, y = _pixels(dataset.train_x[rows]), torch.from_numpy(dataset.train_y[rows])
    weights = {name: value for name, value in client.named_parameters() if name.startswith("hypernet.")}
    _, sent = loss_and_grad(cross_entropy(client(inputs.normalise(x)), y), weights)
    gradient = read(client.hypernet.targets, broadcast, sent).gradient
    if binned:
        readings = alone_in_their_bins(extractor_of(client), gradient)
    else:
        weight, bias = list(gradient.values())[:2]
        held = bias != 0
        readings = linear_inputs(weight[held], bias[held], int(held.sum()))
    images = (readings.view(-1, *inputs.shape) * inputs.std + inputs.mean).clamp(0, 1).numpy()
    return sum(any(psnr(true[None], image[None]) > _FOUND for image in images) for true in x.numpy())


def _pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(images)).float() / 255


def main() -> None:
    """Measure both servers, on the same batches, and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--dataset", default="digits", help="digits (default), mnist, fmnist, ...")
    run = output.start(flags, PARTS)
    dataset = output.or_refused(lambda: data.load(run.asked.dataset, None))
    repeats = run.amount(_REPEATS, 2)
    table = {name: shares(dataset, name == "malicious", repeats) for name in run.parts()}
    lines = [f"{dataset.name}: share of a batch's images read off in closed form"]
    lines.append("  ".join(["batch", *(f"{name:>9}" for name in table)]))
    lines += ["  ".join([f"{b:5d}", *(f"{row[str(b)]:9.0%}" for row in table.values())]) for b in _BATCHES]
    run.report({"dataset": dataset.name, "share_read_off": table}, lines)


if __name__ == "__main__":
    main()
