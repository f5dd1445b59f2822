"""A pretrained network of a few hundred numbers, named as a user's own: tests.support.tiny_backbone:TINY."""

from dataclasses import replace

from torch import Tensor, nn

from flfw.nets.backbones import AdapterSettings, Architecture
from flfw.nets.backbones.adapters import ConvAdapter, channels_of
from flfw.nets.backbones.architectures import PublishedWeights
from flfw.nets.backbones.freezing import TolerantBatchNorm

NAME = "tests.support.tiny_backbone:TINY"


class TinyBody(nn.Module):
    """Two stages with BatchNorm, and the mean over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), TolerantBatchNorm(4), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(4, 8, 3), TolerantBatchNorm(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, 8) of images (B, 3, H, W)."""
        return self.stage2(self.stage1(x)).mean((2, 3))


def _body(settings: AdapterSettings) -> nn.Module:
    return TinyBody()


def _adapter(stage: nn.Module, settings: AdapterSettings) -> nn.Module:
    return ConvAdapter(channels_of(stage), settings.adapter_init, settings.adapter_norm)


class WideBody(nn.Module):
    """A layer of smooth units for each 8 x 8 image: more features than pixels, so that they tell the image."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.Linear(3 * 64, 256)

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, 256) of images (B, 3, 8, 8)."""
        return self.units(x.flatten(1)).sigmoid()


TINY = Architecture(
    name="tiny",
    body=_body,
    width=8,
    side=0,
    normalise="half",
    published=PublishedWeights(file="tiny.pth", where="the tests", head=("fc.",)),
    places=lambda body, places: ("stage1", "stage2"),
    adapter=_adapter,
    head=lambda classes: nn.Linear(8, classes),
    least=5,
)

WIDE = replace(
    TINY,
    name="wide",
    body=lambda settings: WideBody(),
    width=256,
    side=8,
    published=PublishedWeights(file="wide.pth", where="the tests"),
    places=lambda body, places: (),
    head=lambda classes: nn.Linear(256, classes),
    least=1,
)
