"""Low-rank adaptation: a trained product of two narrow layers beside each frozen one.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, section 4.1: a layer ``W x`` becomes
``W x + alpha / rank * B A x`` with A drawn and B = 0, so that at first nothing changes. Beside a convolution A is one
of the same window to ``rank`` channels and B one of a single pixel, as in Hugging Face's peft.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, final

from torch import Tensor, nn

from flfw.errors import InputError

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
