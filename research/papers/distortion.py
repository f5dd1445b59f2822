"""Distortions that cannot change an input's class, by a run's last model: ``python -m research.papers.distortion RUN``.

Proposition 2 of Fed-CDP (Wei et al., ICDCS 2021, arXiv 2107.01154) is about the largest distortion that keeps a label,
without a number. This is our reading, the bound of Hein and Andriushchenko (NeurIPS 2017):

    |d|_2 < min_j (z_c(x) - z_j(x)) / L_cj      then x + d has the class c of x

where z are the scores and L_cj is a Lipschitz constant of z_c - z_j: the length of the difference of two rows of the
last layer, times the largest singular values of the layers below. A convolution's is bounded by that of the circular
one on its padded input, of which it is a part (Sedghi, Gupta and Long, ICLR 2019). It holds for all inputs and is low
for that reason. Beside it stands the first-order distance min_j (z_c - z_j) / |grad_x (z_c - z_j)|, an estimate without
a guarantee. All is computed in float64; neither its rounding is counted, nor that of a model in float32. Lengths are
L2, in units of raw inputs in [0, 1].
"""

import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from flfw.comparisons.figures.norms import last_weights
from flfw.errors import InputError, require
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Net
from flfw.runs import run
from flfw.server.checkpoint import is_complete, require_same_data, stored_experiment

_UNCHANGED = (nn.Identity, nn.Flatten, nn.Dropout)  # in evaluation mode
_SLOPES: dict[type[nn.Module], float] = {nn.ReLU: 1.0, nn.LeakyReLU: 1.0, nn.Tanh: 1.0, nn.Sigmoid: 0.25}
_AT_ONCE, _SHARES = 50, (0.05, 0.5, 0.95)


class Distortions(NamedTuple):
    """Largest distortions of examples that keep their class: proven (n,), and to first order (n,)."""

    proven: Tensor
    first_order: Tensor


def distortions(net: Net, x: Tensor, inputs: InputSpec) -> Distortions:
    """Compute how far examples may be distorted.

    Args:
        net: in evaluation mode, layers one after another; the last one is fully connected.
        x: raw inputs (n, ...) in [0, 1].
        inputs: the input space.

    Raises:
        InputError: the network has a layer without a bound.
    """
    net = deepcopy(net).double()  # in float32 small weights underflow, and a bound would be infinite
    layers = _layers(net)
    last = layers.pop()
    if not isinstance(last, nn.Linear):
        raise InputError(
            f"Expected a network that ends in a fully connected layer, got {type(last).__name__} at its end."
        )
    below, at = 1 / float(inputs.std.min()), torch.zeros(1, *inputs.shape, dtype=torch.float64)
    for layer in layers:
        below *= constant(layer, at)
        with torch.no_grad():
            at = layer(at)
    parts = [_distances(net, part, inputs, last.weight.detach() * below) for part in x.double().split(_AT_ONCE)]
    return Distortions(*(torch.cat(each) for each in zip(*parts, strict=True)))


def constant(layer: nn.Module, at: Tensor) -> float:
    """Return a Lipschitz constant of a layer by L2 lengths.

    Args:
        layer: in evaluation mode.
        at: an input (1, ...) of the layer, for its shape.

    Raises:
        InputError: this layer has no known constant.
    """
    if isinstance(layer, _UNCHANGED):
        return 1.0
    if isinstance(layer, nn.Linear):
        return float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))
    if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros" and layer.dilation == (1, 1):
        return _of_convolution(layer, at)
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d) and (bound := _of_pool(layer)) is not None:
        return bound
    slope = _SLOPES.get(type(layer))
    if slope is None or (isinstance(layer, nn.LeakyReLU) and abs(layer.negative_slope) > 1):
        raise InputError(f"Expected layers with a known Lipschitz constant, got {layer}; name a run with another net.")
    return slope


def _of_pool(layer: nn.MaxPool2d | nn.AvgPool2d) -> float | None:
    """Return the constant of windows that do not overlap; None for others."""
    if layer.kernel_size != layer.stride or layer.padding or layer.ceil_mode:
        return None
    if isinstance(layer, nn.MaxPool2d):
        return 1.0 if layer.dilation in (1, (1, 1)) else None
    size = (layer.kernel_size,) * 2 if isinstance(layer.kernel_size, int) else layer.kernel_size
    return 1 / sqrt(size[0] * size[1]) if layer.divisor_override is None else None


def _of_convolution(layer: nn.Conv2d, at: Tensor) -> float:
    """Return the largest singular value of the circular convolution on the padded input, over its frequencies."""
    across, up = layer.padding if isinstance(layer.padding, tuple) else (0, 0)
    require(not isinstance(layer.padding, str), "a convolution with padding in pixels", padding=layer.padding)
    sides = (at.shape[-2] + 2 * across, at.shape[-1] + 2 * up)
    largest = 0.0
    for block in layer.weight.detach().double().chunk(layer.groups):
        spectrum = torch.fft.fft2(block, s=sides).permute(2, 3, 0, 1)  # zeros fill the kernel up to the input's sides
        largest = max(largest, float(torch.linalg.matrix_norm(spectrum, 2).max()))
    return largest


def _layers(module: nn.Module) -> list[nn.Module]:
    """List the layers of a network, in order."""
    if isinstance(module, Net):
        return [*_layers(module.extractor), *_layers(module.classifier)]
    return [one for child in module for one in _layers(child)] if isinstance(module, nn.Sequential) else [module]


def _distances(net: nn.Module, x: Tensor, inputs: InputSpec, scaled: Tensor) -> tuple[Tensor, Tensor]:
    def scores(one: Tensor) -> Tensor:
        return net(inputs.normalise(one[None]))[0]

    with torch.no_grad():
        z, slopes = net(inputs.normalise(x)), vmap(jacrev(scores))(x).flatten(2)
    top, rows = z.argmax(1), torch.arange(len(x))
    margins = z[rows, top][:, None] - z
    away = torch.ones_like(z, dtype=torch.bool)
    away[rows, top] = False  # the class itself is no other class
    lengths = (scaled[top][:, None] - scaled[None]).norm(dim=2)
    gradients = (slopes[rows, top][:, None] - slopes).norm(dim=2)
    if not bool(torch.isfinite(margins).all() & torch.isfinite(lengths).all()):
        raise InputError("Expected finite scores, got NaN or infinity; name a run that did not diverge.")
    # Two classes of equal scores: no distortion at all is proven harmless.
    each = (torch.where(margins > 0, margins / length, 0.0) for length in (lengths, gradients))
    proven, near = (torch.where(away, one, torch.inf).min(1).values for one in each)
    return proven, near


def of_run(folder: Path, data_root: Path | None = None, maximum: int = 1000) -> Distortions:
    """Compute the distortions of test examples by the last model of a run.

    Args:
        folder: of a finished run that shares its whole model.
        data_root: present folder of the data; None: the folder that the run used.
        maximum: largest number of test examples, the first ones.

    Raises:
        InputError: the run or its data are not there, or its model does not fit.
    """
    require(maximum >= 1, "1 example or more", most=maximum)
    stored = stored_experiment(folder).experiment
    run_plan, task, _ = run.check(replace(stored, out=folder, data_root=data_root or stored.data_root), new=False)
    require_same_data(folder, task.dataset.digest)
    model, last = run_plan.client.build_model().eval(), last_weights(folder)
    full = last is not None and set(last[1]) == set(model.state_dict()) and isinstance(model, Net)
    if last is None or not full or not is_complete(folder):
        raise InputError(f"Expected a finished run that shares its whole model, got {folder}; name another.")
    assert isinstance(model, Net)
    if any(not bool(torch.isfinite(value).all()) for value in last[1].values()):
        raise InputError(f"Expected finite weights, got NaN or infinity in {folder}; name another run.")
    model.load_state_dict(last[1])
    x, _ = task.examples("test", torch.arange(min(maximum, len(task.dataset.test_y))).numpy())
    return distortions(model, x, task.inputs)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0, or 2 if the run does not fit."""
    return exit_code("distortion", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m research.papers.distortion",
        description="Bound distortions that keep the class of test examples.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run that shares its whole model")
    parser.add_argument("--examples", type=int, default=1000, help="most test examples; default: %(default)s")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; default: where the run found them")
    args = parser.parse_args(arguments)
    result = of_run(args.run, args.data_root, args.examples)
    shares = torch.tensor(_SHARES, dtype=torch.float64)
    print(f"L2 length of distortions that keep the class of {len(result.proven):,} test examples, raw inputs in [0, 1]")
    print("| | " + " | ".join(f"{share:.0%} of them below" for share in _SHARES) + " |\n|---|---|---|---|")
    for name, values in (("proven", result.proven), ("first order, no proof", result.first_order)):
        quantiles = values.quantile(shares, interpolation="lower").tolist()
        print(f"| {name} | {' | '.join(f'{value:.3g}' for value in quantiles)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
