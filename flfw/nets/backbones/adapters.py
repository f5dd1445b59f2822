"""Adapters and low-rank products: small trained layers behind or beside frozen ones.

Adapters are those of Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", ICML 2019, in the forms of
HyperFL-LPM (Guo et al., AAAI 2025): a bottleneck of two linear layers in each block of a transformer, a 1x1 convolution
between two BatchNorms behind stages of a convolutional network.

Low-rank products are those of Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, section 4.1:
a layer ``W x`` becomes ``W x + alpha / rank * B A x`` with A drawn and B = 0, so that at first nothing changes. Beside
a convolution A is one of the same window to ``rank`` channels and B one of a single pixel, as in Hugging Face's peft.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from flfw.bounds import BoundedSettings, PositiveFinite, PositiveInt
from flfw.errors import InputError
from flfw.nets.backbones.freezing import TolerantBatchNorm

Places: TypeAlias = Literal["own", "stages", "blocks"]
AdapterInit: TypeAlias = Literal["torch", "identity"]
AdapterNorm: TypeAlias = Literal["batch", "frozen"]
_EPS = 1e-5  # of BatchNorm
_REDUCTION = 16  # width over the bottleneck's: 384 to 24
LoraLayers: TypeAlias = Literal["attention", "all"]
_OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv", "proj")  # linear layers within a module named attn


@final
class LowRank(nn.Module):
    """Layer with a product of two narrow ones beside it.

    Args:
        layer: linear layer or ungrouped convolution, frozen or not.
        rank: width of the narrow layer.
        alpha: the product counts alpha / rank times.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer, self.scale = layer, alpha / rank
        if isinstance(layer, nn.Linear):
            self.down: nn.Module = nn.Linear(layer.in_features, rank, bias=False)
            self.up: nn.Module = nn.Linear(rank, layer.out_features, bias=False)
        else:
            window = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
            mode = {} if layer.padding_mode == "zeros" else {"padding_mode": layer.padding_mode}
            kind: Any = type(layer)  # timm's pads its inputs itself
            self.down = kind(layer.in_channels, rank, *window, bias=False, **mode)
            self.up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)  # type: ignore[arg-type]  # of either kind

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer's output for its input, with the product added."""
        return self.layer(x) + self.scale * self.up(self.down(x))


def insert_low_rank(body: nn.Module, rank: int, alpha: float, layers: LoraLayers) -> None:
    """Put a low-rank product beside layers of a body.

    Grouped convolutions, as of EfficientNet's depthwise ones, stay as they are: a product of narrow layers has no form
    for them.

    Args:
        body: changed in place.
        rank: width of the narrow layers, >= 1.
        alpha: a product counts alpha / rank times.
        layers: the layers that get one.

    Raises:
        InputError: the body has no such layers.
    """
    chosen = {name: layer for name, layer in body.named_modules() if _is_adapted(name, layer, layers)}
    if not chosen:
        wanted = "attention in the body, or lora_layers=all" if layers == "attention" else "linear layers, convolutions"
        raise InputError(f"Expected {wanted} for --trainable lora, got lora_layers={layers} and no such layer.")
    for place, layer in chosen.items():
        parent, _, name = place.rpartition(".")
        assert isinstance(layer, nn.Linear | nn.Conv2d), "chosen by it"
        setattr(body.get_submodule(parent), name, LowRank(layer, rank, alpha))


def _is_adapted(name: str, layer: nn.Module, layers: LoraLayers) -> bool:
    """Return whether a layer gets a product."""
    if layers == "attention":
        *path, last = name.split(".")
        return isinstance(layer, nn.Linear) and last in _OF_ATTENTION and path[-1:] == ["attn"]
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)


@dataclass(frozen=True)
class AdapterSettings(BoundedSettings):
    """Settings of a pretrained network's adapters or low-rank products, ``--set NET.field=value``."""

    places: Places = "own"  # where they stand: as in the paper's code, or behind stages or blocks of a ResNet
    adapter_init: AdapterInit = "torch"  # identity: at first they change nothing
    adapter_norm: AdapterNorm = "batch"  # statistics of their BatchNorm: each client's own, or 0 and 1 for good
    published_bug: bool = False  # of a transformer: without the biases of queries, keys and values, as in their code
    lora_rank: PositiveInt = 8  # with --trainable lora: width of the narrow layers
    lora_alpha: PositiveFinite = 16.0  # likewise: a product counts alpha / rank times
    lora_layers: LoraLayers = "all"  # likewise: every linear layer and convolution, or those of attention


@final
class BottleneckAdapter(nn.Module):
    """Adapter of a transformer's block: z + LayerNorm(Up(relu(Down(z)))).

    Args:
        width: length of a token; the bottleneck is a sixteenth of it.
        init: ``identity`` starts with a LayerNorm of scale 0. With Up = 0 in its place LayerNorm would divide the first
            gradients by the root of its epsilon.
    """

    def __init__(self, width: int, init: AdapterInit) -> None:
        super().__init__()
        self.down = nn.Linear(width, width // _REDUCTION)
        self.up = nn.Linear(width // _REDUCTION, width)
        self.norm = nn.LayerNorm(width)
        if init == "identity":
            self.become_identity()

    def become_identity(self) -> None:
        """Let the adapter change nothing until it is trained."""
        nn.init.zeros_(self.norm.weight)

    def forward(self, z: Tensor) -> Tensor:
        """Change tokens (B, tokens, width)."""
        return z + self.norm(self.up(torch.relu(self.down(z))))


@final
class FixedNorm(nn.Module):
    """BatchNorm with the statistics 0 and 1 for good: a scale and a shift of each channel, with no state.

    Args:
        channels: number of channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift (B, C, H, W)."""
        scale = self.weight * (1 + _EPS) ** -0.5
        return x * scale[:, None, None] + self.bias[:, None, None]


@final
class ConvAdapter(nn.Module):
    """Adapter of a convolutional stage: BN2(x + Conv1x1(BN1(x))), the convolution without a bias.

    Args:
        channels: number of channels.
        init: ``identity`` starts with a convolution of 0.
        norm: statistics of the two BatchNorms.
    """

    def __init__(self, channels: int, init: AdapterInit, norm: AdapterNorm) -> None:
        super().__init__()
        kind = TolerantBatchNorm if norm == "batch" else FixedNorm
        self.bn1, self.conv, self.bn2 = kind(channels), nn.Conv2d(channels, channels, 1, bias=False), kind(channels)
        if init == "identity":
            self.become_identity()

    def become_identity(self) -> None:
        """Leave nothing of the adapter but its BatchNorms, until it is trained."""
        nn.init.zeros_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Change maps (B, C, H, W)."""
        return self.bn2(x + self.conv(self.bn1(x)))


@final
class Adapted(nn.Module):
    """Layer with an adapter behind it.

    Args:
        layer: the layer, frozen or not.
        adapter: function of the layer's output.
    """

    def __init__(self, layer: nn.Module, adapter: nn.Module) -> None:
        super().__init__()
        self.layer, self.adapter = layer, adapter

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer and change its output."""
        return self.adapter(self.layer(x))


def insert(body: nn.Module, places: tuple[str, ...], build: Callable[[nn.Module], nn.Module]) -> None:
    """Put an adapter behind each of a body's modules.

    Args:
        body: changed in place.
        places: names of the modules.
        build: adapter for a module.
    """
    for index in places:
        parent, _, name = index.rpartition(".")
        layer = body.get_submodule(index)
        setattr(body.get_submodule(parent), name, Adapted(layer, build(layer)))


def adapters_of(module: nn.Module) -> list[BottleneckAdapter | ConvAdapter]:
    """List the adapters within a module."""
    return [layer for layer in module.modules() if isinstance(layer, BottleneckAdapter | ConvAdapter)]


def channels_of(stage: nn.Module) -> int:
    """Return the number of output channels of a stage or block: of its last convolution."""
    return [layer for layer in stage.modules() if isinstance(layer, nn.Conv2d)][-1].out_channels
