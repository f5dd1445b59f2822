"""Weights that a malicious server sends so that a batch's gradient holds single examples.

Fowl et al., "Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified Models", ICLR 2022:
all units of a fully connected layer measure one quantity of the input, with increasing thresholds. The layers behind
treat all units alike. The difference of two neighbouring units' gradients then belongs to the examples of one bin. If
a bin holds one example, the difference is that example times the difference of the biases' gradients.

`ImprintModule` is two layers in front of any network.
"""

from dataclasses import dataclass
from math import pi, prod, sqrt
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor, nn

from flfw.bounds import BoundedSettings, PositiveFinite, PositiveInt, ValueRange
from flfw.errors import require
from flfw.nets.malicious_model import ImposedModule
from flfw.nets.net import Tensors

Quantiles: TypeAlias = Literal["public", "normal", "laplace"]
"""Distribution whose quantiles bound the bins: the public measurements themselves, or one with their mean and
deviation."""

_ROUNDING = 1e-6  # the same, as a share of the largest bias gradient of all: what float32 leaves of sums
_BELOW_ALL = 10.0  # deviations from the mean to the first threshold, which stands for minus infinity
_SLACK = 1e-4  # of the distance from the first to the last threshold: error of a measurement, by rounding


@dataclass(frozen=True)
class BinSettings(BoundedSettings):
    """Settings that every module of bins has."""

    bins: Annotated[int, ValueRange(ge=2, le=16384)] = 128  # k of each query, 2 to 16384
    mode: PositiveInt = 4  # of the cosine transform of the flat input, >= 1 and below its length
    quantiles: Quantiles = "public"  # they bound the bins
    # Size of the module's output over that of the measurement, > 0; training diverges with 1.
    output: PositiveFinite = 1e-2
    connection: Literal["alone", "added"] = "alone"  # whether the input is added to the module's output

    @property
    def added(self) -> bool:
        """True where the input is added to the module's output."""
        return self.connection == "added"

    def require_mode(self, inputs: int, attack: str) -> None:
        """Refuse a mode of the cosine transform that inputs of this length do not have."""
        require(self.mode < inputs, f"{attack}.mode < {inputs}", mode=self.mode)


class ImprintModule(ImposedModule):
    """Two fully connected layers in front of a network, from inputs to inputs.

    Args:
        shape: shape of one input.
        bins: units between the layers, k >= 2.
        added: whether the input is added to the output, so that the network can still learn.
    """

    def __init__(self, shape: tuple[int, ...], bins: int, added: bool) -> None:
        super().__init__()
        self.measure, self.back = nn.Linear(prod(shape), bins), nn.Linear(bins, prod(shape))
        self.rectifier, self.added = nn.ReLU(), added

    def forward(self, x: Tensor) -> Tensor:
        """Compute inputs of the network (B, ...) from inputs (B, ...)."""
        made = self.back(self.rectifier(self.measure(x.flatten(1)))).view(x.shape)
        return x + made if self.added else made


@dataclass(frozen=True)
class Readings:
    """Inputs that were read off the bins; one of a bin with several examples is a mixture of them.

    Attributes:
        inputs: (m, d) network inputs.
        bins: (m,) numbers of their bins, ascending.
        shares: (m,) absolute differences of the biases' gradients: a sum over the bin's examples.
        consistent: (m,) whether the input's own measurement lies in the bin that it was read from.
    """

    inputs: Tensor
    bins: Tensor
    shares: Tensor
    consistent: Tensor

    def best(self, count: int) -> Tensor:
        """Choose at most ``count`` of the inputs: consistent ones first, then those with the largest shares."""
        consistent, shares = self.consistent.tolist(), self.shares.tolist()
        return self.inputs[sorted(range(len(shares)), key=lambda i: (not consistent[i], -shares[i]))[:count]]


def mean_query(inputs: int) -> Tensor:
    """Build the query (d,) of which the product with an input is its mean."""
    return torch.full((inputs,), 1 / inputs)


def dct_query(inputs: int, mode: int) -> Tensor:
    """Build the query (d,) of one mode of the discrete cosine transform (DCT-II) of a flat input, of length 1.

    Args:
        inputs: d.
        mode: number of half periods over the input, 1 <= mode < d.
    """
    return sqrt(2 / inputs) * torch.cos(pi / inputs * (torch.arange(inputs) + 0.5) * mode)


def thresholds(measured: Tensor, bins: int, quantiles: Quantiles) -> Tensor:
    """Compute the lower ends of the bins (k,), ascending; the first is below all examples and the last bin is open.

    Args:
        measured: (n,) measurements of public inputs.
        bins: k; an example falls into each with the probability 1/k, if the quantiles are right.
        quantiles: see `Quantiles`.
    """
    measured = measured.double()
    mean, std = measured.mean(), measured.std().clamp(min=torch.finfo(torch.float32).tiny)
    levels = torch.arange(1, bins, dtype=torch.float64, device=measured.device) / bins
    if quantiles == "public":
        inner = torch.quantile(measured, levels)
    elif quantiles == "normal":
        inner = mean + std * torch.special.ndtri(levels)
    else:  # of variance 1: the scale is 1/sqrt(2)
        inner = mean - std / sqrt(2) * (levels - 0.5).sign() * torch.log1p(-2 * (levels - 0.5).abs())
    first = torch.minimum(mean, inner[0]) - _BELOW_ALL * std
    return torch.cat([first[None], inner])


def crafted(query: Tensor, ends: Tensor, gain: float, output: float = 1.0, prefix: str = "") -> Tensors:
    """Compute the tensors of an `ImprintModule`.

    All entries of the second layer are equal: so the loss has the same derivative by each unit that is on.

    Args:
        query: (d,), the quantity that is measured.
        ends: (k,) lower ends of the bins, ascending.
        gain: factor of the first layer, > 0; the second layer has its inverse.
        output: factor of the second layer beside that, > 0; a small one hides the module behind an added input.
        prefix: of the tensors' names.
    """
    dtype = torch.float32
    tensors = {
        "measure.weight": gain * query[None].repeat(len(ends), 1),
        "measure.bias": -gain * ends,
        "back.weight": torch.full((len(query), len(ends)), output / gain),
        "back.bias": (-output * ends.mean()).repeat(len(query)),
    }
    return {f"{prefix}{name}": value.to(dtype) for name, value in tensors.items()}


def bin_sums(gradient: Tensor) -> Tensor:
    """Compute each bin's part (k, ...) of a gradient (k, ...) of units with ascending thresholds, in float64.

    A unit sums over all examples above its threshold, so neighbours differ by the examples in between. The last unit's
    bin has no upper end.
    """
    gradient = gradient.double()
    return torch.cat([gradient[:-1] - gradient[1:], gradient[-1:]])


def read_bins(weight: Tensor, bias: Tensor, sent_weight: Tensor, sent_bias: Tensor) -> Readings:
    """Read an input off each bin that is not empty.

    Args:
        weight: (k, d) gradient of the measuring layer's weight.
        bias: (k,) gradient of its bias.
        sent_weight: (k, d) the layer's weight as the server sent it.
        sent_bias: (k,) its bias.
    """
    rows, slopes = bin_sums(weight), bin_sums(bias)
    held = (slopes.abs() > _ROUNDING * bias.abs().max()).nonzero().flatten()
    inputs = rows[held] / slopes[held, None]
    above = (inputs @ sent_weight.double().T) + sent_bias.double()  # (m, k): at least 0 where a unit is on
    slack = _SLACK * float(sent_bias.max() - sent_bias.min())
    upper = torch.cat([above, above.new_full((len(held), 1), -torch.inf)], 1)
    index = torch.arange(len(held), device=held.device)
    consistent = (above[index, held] >= -slack) & (upper[index, held + 1] <= slack)
    return Readings(inputs.to(weight.dtype), held, slopes[held].abs(), consistent)


def expected_alone(bins: int, batch: int) -> float:
    """Compute the expected share of a batch whose examples are alone in their bins, if all bins are equally likely.

    >>> round(expected_alone(128, 32), 2)
    0.78
    """
    return (1 - 1 / bins) ** (batch - 1)
