"""Networks, used by methods and by attacks alike: ``build("cnn1", shape, classes)``."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, cast

import torch
from torch import nn

from flfw.errors import InputError, require, unknown
from flfw.nets import cnn
from flfw.nets.backbones import ARCHITECTURES, AdapterSettings, Architecture, WeightsMissing, look_in
from flfw.nets.net import Net, Tensors, numel, refuse_tied, refuse_untold_types, running_statistics, tensors
from flfw.nets.transformer import TOKENS, bert_tiny, gpt_next, gpt_tiny, vit_norm, vit_plain
from flfw.nets.tuned import Trained, Tuning, build_tuned, require_weights, weights_digest
from flfw.plugins import imported

__all__ = [
    "AdapterSettings",
    "Architecture",
    "Init",
    "Net",
    "NetCard",
    "Norm",
    "Tensors",
    "Trained",
    "Tuning",
    "WeightsMissing",
    "build",
    "build_tuned",
    "card",
    "glorot",
    "look_in",
    "names",
    "numel",
    "require_weights",
    "running_statistics",
    "tensors",
    "weights_digest",
]


Init: TypeAlias = Literal["torch", "glorot"]
Norm: TypeAlias = Literal["own", "group"]


@dataclass(frozen=True)
class NetCard:
    """Card of a network: its builder and the inputs that it accepts.

    Attributes:
        builder: (input shape, classes) -> Net; None: the network is built from its architecture.
        side: required height and width in pixels (images are resized to it); None: any.
        channels: required number of colour channels; None: any.
        least: the least height and width, if ``side`` is None.
        images: whether inputs must be images; False: rows of numbers are accepted as well.
        vocabulary: number of tokens of the text that it takes alone, in rows; 0: it takes no tokens.
        places: whether it scores the next token of every place of a text, rather than one label.
        architecture: architecture of a pretrained network, which has a file of weights; None: another network.
        dense: name of a fully connected first layer, which reads the inputs themselves; empty: it has none.
    """

    builder: Callable[[tuple[int, ...], int], Net] | None
    side: int | None = None
    channels: int | None = None
    least: int = 1
    images: bool = True
    architecture: Architecture | None = None
    vocabulary: int = 0
    places: bool = False
    dense: str = ""


_CARDS = {
    "alexnet": NetCard(cnn.alexnet, least=63),  # below, the input of its last pooling is empty
    "bert_tiny": NetCard(bert_tiny, images=False, vocabulary=TOKENS),
    "cnn1": NetCard(cnn.cnn1, side=28, channels=1),
    "cnn2": NetCard(cnn.cnn2, side=32, channels=3),
    "cnn3x3": NetCard(cnn.cnn3x3),
    "convnet32": NetCard(cnn.convnet32, side=32, channels=3),
    "convnet64": NetCard(cnn.convnet64, side=32, channels=3),
    "gpt_next": NetCard(gpt_next, images=False, vocabulary=TOKENS, places=True),
    "gpt_tiny": NetCard(gpt_tiny, images=False, vocabulary=TOKENS),
    "lenet": NetCard(cnn.lenet),
    "lenet5": NetCard(cnn.lenet5, side=32),
    "linear": NetCard(cnn.linear, images=False, dense="classifier"),
    "mlp": NetCard(cnn.mlp, images=False, dense="extractor.1"),
    "resnet18": NetCard(cnn.resnet18, least=8),  # the extractor then gives maps of one pixel
    "vit_norm": NetCard(vit_norm, least=4),
    "vit_plain": NetCard(vit_plain, least=4),
} | {
    made.name: NetCard(None, least=made.least, architecture=made)
    for made in sorted(ARCHITECTURES, key=lambda made: made.name)
}


def names() -> tuple[str, ...]:
    """Return the names of the networks."""
    return tuple(_CARDS)


def card(name: str) -> NetCard:
    """Return the card of a network; the error for an unknown name lists the known ones."""
    if ":" in name:
        return _outside(name)
    if name not in _CARDS:
        raise unknown(f"a network among {', '.join(_CARDS)}, or package.module:name", f"net={name}", name, _CARDS)
    return _CARDS[name]


@lru_cache(maxsize=16)
def _outside(name: str) -> NetCard:
    """Return a card for ``package.module:name``: a function like those of `NetCard.builder`, or an `Architecture`."""
    chosen = imported(name, "net")
    if isinstance(chosen, Architecture):
        return NetCard(None, least=chosen.least, architecture=chosen)
    if not callable(chosen):
        required = "a function of a shape and a number of classes, or an Architecture"
        raise InputError(f"Expected net={name} to be {required}, got {chosen!r}.")

    def builder(shape: tuple[int, ...], classes: int) -> Net:
        try:
            return cast(Net, chosen(shape, classes))  # `build` checks it
        except InputError:
            raise
        except Exception as error:  # somebody's own code, which may raise anything
            got, device = f"{type(error).__name__}: {error}", torch.get_default_device()
            required = (
                f"net={name} to build a network for inputs of {shape} and {classes} classes on the device {device}"
            )
            raise InputError(f"Expected {required}, got {' '.join(got.split())}") from error

    return NetCard(builder, images=False)


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    init: Init = "torch",
    norm: Norm = "own",
    tuning: Tuning | None = None,
) -> Net:
    """Build a freshly initialised network.

    Args:
        name: one of `names`, or ``package.module:name``.
        shape: of one input, (C, H, W), or (d,) for rows.
        classes: number of classes.
        init: first weights: the network's own, or Glorot's.
        norm: normalisation layers: the network's own, or GroupNorm in place of each BatchNorm.
        tuning: part of a pretrained network that is trained; None: all of it.

    Raises:
        InputError: the network does not accept such inputs, or is not pretrained and only a part is to be trained,
            or two of its layers share a tensor, or a tensor cannot be sent.
    """
    wanted, tuning = card(name), tuning or Tuning()
    _require_inputs(wanted, name, shape)
    if wanted.architecture is not None:
        unchanged = init == "torch" and norm == "own"
        require(unchanged, f"init=torch and norm=own for net={name}, which is pretrained", init=init, norm=norm)
        net = build_tuned(wanted.architecture, shape, classes, tuning)
    else:
        require(
            tuning.train == "full", f"trainable=full for net={name}, which is not pretrained", trainable=tuning.train
        )
        assert wanted.builder is not None
        net = wanted.builder(shape, classes)
        if not isinstance(net, Net):
            raise InputError(f"Expected net={name} to return a Net, got {type(net).__name__}.")
    net = cnn.with_group_norm(net) if norm == "group" else net
    refuse_tied(net)
    refuse_untold_types(net)
    net.shape, net.classes = shape, classes
    return glorot(net) if init == "glorot" else net


def _require_inputs(wanted: NetCard, name: str, shape: tuple[int, ...]) -> None:
    """Refuse inputs of a shape that a network does not accept."""
    got = "x".join(map(str, shape))
    colours = wanted.architecture is None or shape[0] in (1, 3)
    fits = (len(shape) == 3 or not wanted.images) and (wanted.channels in (None, shape[0])) and colours
    if wanted.vocabulary and len(shape) != 1:
        raise InputError(f"Expected text for net={name}, such as text:FILE, got inputs of {got}; choose another --net.")
    if not fits or (wanted.side is not None and shape[1:] != (wanted.side, wanted.side)):
        channels = wanted.channels or ("1 or 3 " if wanted.architecture else "C")
        size = f"{channels}x{wanted.side or 'H'}x{wanted.side or 'W'}"
        raise InputError(f"Expected inputs of {size} for net={name}, got {got}; choose another --net.")
    if wanted.images and min(shape[1:]) < wanted.least:
        least = f"Cx{wanted.least}x{wanted.least}"
        raise InputError(
            f"Expected inputs of at least {least} for net={name}, got {got}; choose another --net or --image-size."
        )


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
