"""Leak to a server that chooses the frozen body.

``python -m tests.campaigns.malicious_backbone [--json] [--quick]``.

A client trains the adapters of ``vit_tiny``. The server reads patches off one gradient in closed form, as PEFTLeak
does (`tests.support.crafted_backbone`): no search, no labels, no classifier. Parts:

- honest: a random body and random adapters; the server knows both.
- crafted: body and adapters of the server's making, of which the client read the body from the server's file.
- hyperfl_lpm: the same body, and a hypernetwork that generates the same adapters from every client's embedding.
- own_copy: crafted adapters in a random body, which the client read from a file of its own.

The result is the share of a batch's patches that are read off with a PSNR above 40 dB, for batches of 1, 4 and 16
training images, five of each. A gradient shows all 64 patches of an image with two bins each, or 11 of them with twelve
bins each, or one with 122 bins. So the server asks for one gradient of a batch, or six, or 64 (of which eight are
tried). Bins are chosen on 1,000 test images, which count as public. Data come from $FLFW_DATA; without CIFAR-10 it is
the digits. The last line of the output is one JSON object.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, unfold

from benchmarks import output
from flfw import data, nets
from flfw.errors import InputError
from flfw.inversion.closed_form.linear import read
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import loss_and_grad
from flfw.rng import initialising, numpy_generator
from research.measurements.malicious_hypernetwork import serving
from tests.support.crafted_backbone import PatchReadings, craft_adapters, craft_body, read_patches

_SIDE, _PATCH, _PLACES, _BLOCKS = 32, 4, 64, 11
_BATCHES, _REPEATS, _PUBLIC, _FOUND, _TRIED = (1, 4, 16), 5, 1000, 40.0, 8
PARTS = {
    "honest": output.BenchmarkPart("a random body and random adapters", 90, 8),
    "crafted": output.BenchmarkPart("a crafted body and crafted adapters", 90, 8),
    "hyperfl_lpm": output.BenchmarkPart("a crafted body and a hypernetwork that generates crafted adapters", 120, 10),
    "own_copy": output.BenchmarkPart("crafted adapters in the client's own body", 90, 8),
}


def client(dataset: data.Dataset, part: str, folder: Path) -> nn.Module:
    """Build a client's network; the body comes from the server's file or is random."""
    tuning = nets.Tuning("adapter")
    nets.look_in("random")
    with initialising(0, "client"):
        net = nets.build("vit_tiny", dataset.shape, dataset.classes, tuning=tuning)
        if part in ("crafted", "hyperfl_lpm"):
            save_file(craft_body(net.extractor.get_submodule("body")), folder / "body.safetensors")
            nets.look_in(str(folder / "body.safetensors"))
            net = nets.build("vit_tiny", dataset.shape, dataset.classes, tuning=tuning)
        return GeneratedNet(net, 64, 128, "identity") if part == "hyperfl_lpm" else net


def gradient(net: nn.Module, adapters: nets.Tensors | None, x: Tensor, y: Tensor) -> nets.Tensors:
    """Compute the gradient that the server has of the adapters, by their names in the body.

    Args:
        net: the client's; it gets the adapters.
        adapters: the server's; None: the client's own.
        x: (B, ...) network inputs.
        y: (B,) labels.
    """
    if isinstance(net, GeneratedNet):
        sent = {name: value for name, value in nets.tensors(net).items() if name.startswith("hypernet.")}
        received = serving(sent, adapters) if adapters else sent
        net.load_state_dict(received, strict=False)
        slopes = read(net.hypernet.targets, received, _slopes(net, "hypernet.", x, y)).gradient
    else:
        if adapters:
            net.load_state_dict({f"extractor.body.{name}": value for name, value in adapters.items()}, strict=False)
        slopes = _slopes(net, "extractor.", x, y)
    return {name.removeprefix("extractor.").removeprefix("body."): value for name, value in slopes.items()}


def _slopes(net: nn.Module, beginning: str, x: Tensor, y: Tensor) -> nets.Tensors:
    weights = {name: value for name, value in net.named_parameters() if name.startswith(beginning)}
    return loss_and_grad(cross_entropy(net(x), y), weights)[1]


def compare(readings: PatchReadings, x: Tensor, inputs: InputSpec, indices: Sequence[int]) -> Counter[str]:
    """Count a batch's patches at some places, those found among them, readings, and those right among them."""
    true = unfold(_pixels(x, inputs).expand(-1, 3, -1, -1), _PATCH, stride=_PATCH)
    got = _pixels(readings.inputs, inputs).flatten(1)
    errors = [(true[:, None, :, p] - got[None, readings.places == p]).square().mean(2) for p in indices]
    alike = [error < 10 ** (-_FOUND / 10) for error in errors]
    patches, right = (sum(int(each.any(axis).sum()) for each in alike) for axis in (1, 0))
    return Counter(found=patches, patches=len(x) * len(indices), right=right, readings=len(got))


def _pixels(x: Tensor, inputs: InputSpec) -> Tensor:
    return (x * inputs.std + inputs.mean).clamp(0, 1)


def designs(rng: np.random.Generator, quick: bool) -> dict[str, list[list[int]]]:
    """Return the places of each gradient, by the number of places in one."""
    alone = rng.choice(_PLACES, _TRIED, False).tolist()
    everything = list(range(_PLACES))
    by_block = [everything[first : first + _BLOCKS] for first in range(0, _PLACES, _BLOCKS)]
    by_design = {"64": [everything], "11": by_block, "1": [[place] * _BLOCKS for place in alone]}
    return {name: rounds[:1] if quick else rounds for name, rounds in by_design.items()}


def measure(dataset: data.Dataset, part: str, folder: Path, repeats: int, quick: bool) -> dict[str, Any]:
    """Measure the shares of patches found and of readings that are right, by places in a gradient and batch size."""
    inputs = InputSpec.from_constants(dataset.shape, dataset.mean, dataset.std)
    net = client(dataset, part, folder)
    plain = net if part != "hyperfl_lpm" else client(dataset, "honest", folder)  # has places for adapters
    public = _inputs(dataset.test_x[:_PUBLIC], inputs).expand(-1, 3, -1, -1)
    rng = numpy_generator(0, "batches")
    batches = {b: [rng.choice(len(dataset.train_x), b, False) for _ in range(repeats)] for b in _BATCHES}
    table: dict[str, Any] = {"found": {}, "right": {}}
    for name, rounds in designs(rng, quick).items():
        made = [craft_adapters(plain.get_submodule("extractor.body"), public, places) for places in rounds]
        for b, some in batches.items():
            tally: Counter[str] = Counter()
            for rows in some:
                x, y = _inputs(dataset.train_x[rows], inputs), torch.from_numpy(dataset.train_y[rows])
                for crafted in made:
                    places = sorted({target.place for target in crafted.targets})
                    sent = gradient(net, None if part == "honest" else crafted.tensors, x, y)
                    tally += compare(read_patches(sent, crafted), x, inputs, places)
            table["found"].setdefault(name, {})[str(b)] = tally["found"] / tally["patches"]
            readings = tally["readings"]
            table["right"].setdefault(name, {})[str(b)] = tally["right"] / readings if readings else None
    return table


def _inputs(images: np.ndarray, inputs: InputSpec) -> Tensor:
    return inputs.normalise(torch.from_numpy(np.array(images)).float() / 255)


def main() -> None:
    """Measure all parts, on the same batches, and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--dataset", default="", help="cifar10, or the digits if its files are missing (default)")
    run = output.start(flags, PARTS)
    dataset = _dataset(run.asked.dataset)
    quick = run.asked.quick
    with tempfile.TemporaryDirectory() as folder:
        shares = {p: measure(dataset, p, Path(folder), run.amount(_REPEATS, 1), quick) for p in run.parts()}
    lines = [f"{dataset.name}: share of a batch's patches read off, by places in a gradient and images in a batch"]
    columns = [(places, str(b)) for places in ("64", "11", "1") for b in _BATCHES]
    lines.append("  ".join([f"{'places x batch':>14}", *(f"{f'{p} x {b}':>7}" for p, b in columns)]))
    shown = {name: table["found"] for name, table in shares.items()}
    lines += ["  ".join([f"{n:>14}", *(f"{row[p][b]:7.1%}" for p, b in columns)]) for n, row in shown.items()]
    right = {name: table["right"] for name, table in shares.items()}
    run.report({"dataset": dataset.name, "share_read_off": shown, "share_of_readings_right": right}, lines)


def _dataset(name: str) -> data.Dataset:
    if not name:
        with suppress(InputError):
            return data.load("cifar10", None, _SIDE)
    return output.or_refused(lambda: data.load(name or "digits", None, _SIDE))


if __name__ == "__main__":
    main()
