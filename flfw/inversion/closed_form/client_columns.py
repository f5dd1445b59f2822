"""Weights that a malicious server sends so that each client's part of a sum of gradients lies in columns of its own.

Zhao et al., "LOKI: Large-scale Data Reconstruction Attack against Federated Learning through Model Manipulation",
IEEE S&P 2024: a convolution in front of a fully connected layer has channels for each client. In the numbers that
client z is sent, its own channels pass the image on and all others are zero. The gradient of the fully connected
layer is then zero but in the columns of client z, and the sum over clients holds each client's gradient unmixed.

The units of that layer sort examples into bins by two queries; an image that is alone in a bin is read off it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import hardtanh, pad, relu

from flfw.nets.malicious_model import ImposedModule
from flfw.nets.net import Tensors

_RING = 1  # pixels that padding adds around an image and that the kernel's centre sees as zeros
_ROUNDING = 1e-6  # share of the largest slope of all units below which a bin is empty
_NARROWEST = 1e-2  # width of a bin, as a share of that of equal bins: equal measurements would make empty ones
_SLACK = 1e-2  # of a bin's width: error of a measurement, by rounding
_SAME = 0.05  # root mean square difference of two readings of one image, in deviations of a pixel


class ClientColumns(ImposedModule):
    """Convolution with channels for each client and two fully connected layers, from images to images.

    Args:
        shape: shape (C, H, W) of one image.
        clients: number of clients, z; the convolution has z C channels.
        units: units between the fully connected layers.
        added: whether the image is added to the output, so that the network can still learn.
    """

    def __init__(self, shape: tuple[int, ...], clients: int, units: int, added: bool) -> None:
        super().__init__()
        channels, height, width = shape
        columns = clients * channels * (height + 2 * _RING) * (width + 2 * _RING)
        self.spread = nn.Conv2d(channels, clients * channels, 3, padding=1 + _RING)
        self.measure, self.back = nn.Linear(columns, units), nn.Linear(units, prod(shape))
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        """Compute images of the network (B, C, H, W) from images (B, C, H, W)."""
        shares = hardtanh(self.measure(relu(self.spread(x)).flatten(1)), 0.0, 1.0)
        made = self.back(shares).view(x.shape)
        return x + made if self.added else made


def bin_ends(thresholds: Tensor) -> Tensor:
    """Compute the ends (k + 1,) of k bins, strictly ascending; the first and the last bin are wide.

    Args:
        thresholds: (k,) lower ends of the bins, ascending, of which the first is below all examples.
    """
    inner = thresholds[1:]
    spread = float(inner[-1] - inner[0]) or 1.0
    ramp = torch.arange(len(inner), dtype=inner.dtype) * (_NARROWEST * spread / len(inner))
    inner = inner + ramp
    return torch.cat([thresholds[:1], inner, (2 * inner.mean() - thresholds[0]).clamp(min=inner[-1] + spread)[None]])


def shared(
    queries: Sequence[Tensor], ends: Sequence[Tensor], clients: int, scale: float, offset: float, output: float
) -> Tensors:
    """Compute the fully connected layers of `ClientColumns`, which all clients are sent alike.

    Unit i of a query is hardtanh((<h, x> - e_i) / (e_{i+1} - e_i)) on [0, 1]: it has a derivative for the examples of
    bin i alone. All entries of the second layer are equal: so the loss has the same derivative by all units.

    Args:
        queries: images h (C, H, W), the quantities that are measured.
        ends: for each query (k + 1,) ends of its bins, strictly ascending.
        clients: number of clients.
        scale: factor of the convolution, > 0; the units have its inverse.
        offset: number that the convolution adds to normalised pixels, so that none is negative.
        output: difference between the outputs for all units on and all units off.
    """
    weights, biases = [], []
    for query, limits in zip(queries, ends, strict=True):
        widths, limits = limits.diff(), limits[:-1].double()
        framed = pad(query.double(), [_RING] * 4).flatten().repeat(clients)
        weights.append(framed[None] / (scale * widths[:, None]))
        biases.append(-(limits + offset * query.double().sum()) / widths)
    weight, bias = torch.cat(weights), torch.cat(biases)
    tensors = {
        "measure.weight": weight,
        "measure.bias": bias,
        "back.weight": torch.full((queries[0].numel(), len(bias)), output / len(bias)),
        "back.bias": torch.full((queries[0].numel(),), -output / 2),
    }
    return {name: value.float() for name, value in tensors.items()}


def client_convolution(channels: int, clients: int, client: int, scale: float, offset: float) -> Tensors:
    """Compute the convolution that one client is sent: its own channels are scale (x + offset), all others zero.

    Args:
        channels: of an image.
        clients: number of clients.
        client: number of the client.
        scale: see `shared`.
        offset: see `shared`.
    """
    weight, bias = torch.zeros(clients * channels, channels, 3, 3), torch.zeros(clients * channels)
    index = torch.arange(channels)
    weight[client * channels + index, index, 1, 1] = scale
    bias[client * channels + index] = scale * offset
    return {"spread.weight": weight, "spread.bias": bias}


@dataclass(frozen=True)
class ColumnReadings:
    """Images that were read off a client's columns; one of a bin with several examples is a mixture of them.

    Attributes:
        images: (m, C, H, W) network inputs.
        slopes: (m,) absolute sums of the loss's derivatives by the bin's unit.
        verified: (m,) 3: the other query's bin of this image holds the same image; 2: that bin holds anything;
            1: it lies in its own bin, and no image of the other query does, or several do; 0: it does not lie there.
    """

    images: Tensor
    slopes: Tensor
    verified: Tensor

    def best(self, count: int) -> Tensor:
        """Choose at most ``count`` of the images: best verified ones first, then those with the largest slopes."""
        order = sorted(range(len(self.slopes)), key=lambda i: (-int(self.verified[i]), -float(self.slopes[i])))
        return self.images[order[:count]]


def read_columns(gradient: Tensor, sent: Tensors, shape: tuple[int, ...]) -> ColumnReadings:
    """Read images off the columns of one client, in a gradient that is summed over clients.

    The ring of pixels around an image is the convolution's bias in each example: its columns give the slopes.

    Args:
        gradient: (2 k, columns) summed gradient of the measuring layer's weight.
        sent: the module's tensors as this client received them, by their names in the module; its own channels are
            those with a bias.
        shape: shape (C, H, W) of one image.

    Raises:
        ValueError: the received convolution has no channels, or too many, for one client.
    """
    bias, weight = sent["spread.bias"].double(), sent["spread.weight"].double()
    channels = bias.nonzero().flatten()
    if len(channels) != shape[0]:
        raise ValueError(f"expected {shape[0]} channels of the client's own, got {len(channels)}")
    frame = (len(bias), *(side + 2 * _RING for side in shape[1:]))
    parts = gradient.view(-1, *frame)[:, channels].double()
    inside = torch.zeros(frame[1:], dtype=torch.bool, device=gradient.device)
    inside[_RING:-_RING, _RING:-_RING] = True
    slopes = (parts[:, :, ~inside].mean(2) / bias[channels]).mean(1)
    scale = weight[channels, torch.arange(len(channels), device=channels.device), 1, 1][:, None, None]
    held = slopes.abs() > _ROUNDING * slopes.abs().max()
    passed = parts[held][:, :, inside].view(-1, *shape) / scale
    images = passed / slopes[held, None, None, None] - (bias[channels] / scale.flatten())[:, None, None]
    verified, counted = _verified(images, held, sent)
    return ColumnReadings(images[counted].to(gradient.dtype), slopes[held][counted].abs(), verified[counted])


def _verified(images: Tensor, held: Tensor, sent: Tensors) -> tuple[Tensor, Tensor]:
    """Return how well each reading is verified, and which readings count: those of the second query once only."""
    spread = relu(torch.conv2d(images, sent["spread.weight"].double(), sent["spread.bias"].double(), padding=1 + _RING))
    on = spread.flatten(1) @ sent["measure.weight"].double().T + sent["measure.bias"].double()  # (m, 2 k)
    inside = (on > -_SLACK) & (on < 1 + _SLACK)
    units = held.nonzero().flatten()
    bins = len(held) // 2
    fits = inside[torch.arange(len(units), device=held.device), units]  # a reading lies in its own bin
    pairs = inside[:, units] & ((units < bins) != (units < bins)[:, None]) & fits[:, None]  # in bins of the other query
    verified = torch.zeros(len(units), dtype=torch.int64, device=held.device)
    counted = torch.ones_like(verified, dtype=torch.bool)
    for i in fits.nonzero().flatten().tolist():
        others = pairs[i].nonzero().flatten()
        same = others[(images[others] - images[i]).square().flatten(1).mean(1).sqrt() < _SAME]
        mixed = int(pairs[:, i].sum()) > 1  # several readings of the other query lie in this bin
        verified[i] = 3 if len(same) else 2 if len(others) and not mixed else 1
        counted[i] = int(units[i]) < bins or not len(same)
    return verified, counted
