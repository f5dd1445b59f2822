"""The papers' networks, used by methods and by attacks alike: ``build("cnn1", shape, classes)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import nn

from flfw.errors import BadInput
from flfw.nets.alexnet import alexnet
from flfw.nets.cnn import cnn1, cnn2, cnn3x3
from flfw.nets.convnet import convnet32, convnet64
from flfw.nets.dense import linear, mlp
from flfw.nets.group_norm import with_group_norm
from flfw.nets.lenet import lenet, lenet5
from flfw.nets.net import Net, Tensors, numel, tensors
from flfw.nets.resnet import resnet18

__all__ = ["Init", "Net", "NetCard", "Norm", "Tensors", "build", "card", "glorot", "names", "numel", "tensors"]


Init: TypeAlias = Literal["torch", "glorot"]
Norm: TypeAlias = Literal["own", "group"]


@dataclass(frozen=True)
class NetCard:
    """Card of a network: its builder and the inputs that it accepts.

    Attributes:
        builder: (input shape, classes) -> Net.
        side: required height and width in pixels (images are resized to it); None: any.
        channels: required number of colour channels; None: any.
        least: the least height and width, if ``side`` is None.
        images: whether inputs must be images; False: rows of numbers are accepted as well.
    """

    builder: Callable[[tuple[int, ...], int], Net]
    side: int | None = None
    channels: int | None = None
    least: int = 1
    images: bool = True


_CARDS = {
    "alexnet": NetCard(alexnet, least=63),  # below, the input of its last pooling is empty
    "cnn1": NetCard(cnn1, side=28, channels=1),
    "cnn2": NetCard(cnn2, side=32, channels=3),
    "cnn3x3": NetCard(cnn3x3),
    "convnet32": NetCard(convnet32, side=32, channels=3),
    "convnet64": NetCard(convnet64, side=32, channels=3),
    "lenet": NetCard(lenet),
    "lenet5": NetCard(lenet5, side=32),
    "linear": NetCard(linear, images=False),
    "mlp": NetCard(mlp, images=False),
    "resnet18": NetCard(resnet18, least=8),  # the extractor then gives maps of one pixel
}


def names() -> tuple[str, ...]:
    """Return the names of the networks."""
    return tuple(_CARDS)


def card(name: str) -> NetCard:
    """Return the card of a network; the error for an unknown name lists the known ones."""
    if name not in _CARDS:
        raise BadInput(f"Expected a network among {', '.join(_CARDS)}; got net={name}.")
    return _CARDS[name]


def build(name: str, shape: tuple[int, ...], classes: int, init: Init = "torch", norm: Norm = "own") -> Net:
    """Build a freshly initialised network.

    Args:
        name: one of `names`.
        shape: of one input, (C, H, W), or (d,) for rows.
        classes: number of classes.
        init: first weights: the network's own, or Glorot's.
        norm: normalisation layers: the network's own, or GroupNorm in place of each BatchNorm.

    Raises:
        BadInput: the network does not accept such inputs.
    """
    wanted = card(name)
    fits = (len(shape) == 3 or not wanted.images) and (wanted.channels in (None, shape[0]))
    if not fits or (wanted.side is not None and shape[1:] != (wanted.side, wanted.side)):
        size = f"{wanted.channels or 'C'}x{wanted.side or 'H'}x{wanted.side or 'W'}"
        raise BadInput(
            f"Expected inputs of {size} for net={name}, got {'x'.join(map(str, shape))}; choose another --net."
        )
    if wanted.images and min(shape[1:]) < wanted.least:
        least, got = f"Cx{wanted.least}x{wanted.least}", "x".join(map(str, shape))
        raise BadInput(
            f"Expected inputs of at least {least} for net={name}, got {got}; choose another --net or --side."
        )
    net = wanted.builder(shape, classes)
    net = with_group_norm(net) if norm == "group" else net
    net.shape, net.classes = shape, classes
    return glorot(net) if init == "glorot" else net


def glorot(net: Net) -> Net:
    """Draw a network's weights anew from Glorot's uniform distribution, set its biases to 0, and return it.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010: bounds
    of sqrt(6 / (inputs + outputs)). The parameters of normalisation layers stay.
    """
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net
