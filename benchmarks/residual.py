"""ResNet-18 as `flfw.nets` has it, name by name and number by number, for machines without torchvision."""

from collections import OrderedDict
from typing import final

from torch import Tensor, nn

from flfw.nets.backbones.freezing import TolerantBatchNorm
from flfw.nets.net import Net


@final
class ResidualBlock(nn.Module):
    """Two convolutions of 3x3, added to the input, which is brought to their shape."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        shortcut = None
        if stride > 1:  # made first: the order of the first numbers is torchvision's
            shortcut = nn.Sequential(_convolution(channels, width, 1, stride), TolerantBatchNorm(width))
        self.conv1, self.bn1 = _convolution(channels, width, 3, stride), TolerantBatchNorm(width)
        self.relu = nn.ReLU()
        self.conv2, self.bn2 = _convolution(width, width, 3, 1), TolerantBatchNorm(width)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Compute (B, width, H / stride, W / stride) from (B, channels, H, W)."""
        added = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + added)


def resnet18(shape: tuple[int, ...], classes: int) -> Net:
    """Build `flfw.nets.cnn.resnet18` for images of three channels."""
    extractor: OrderedDict[str, nn.Module] = OrderedDict()
    extractor["conv1"], extractor["bn1"] = _convolution(shape[0], 64, 7, 2), TolerantBatchNorm(64)
    extractor["relu"], extractor["maxpool"] = nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    extractor["layer1"], extractor["layer2"] = _layer(64, 64, 1), _layer(64, 128, 2)
    head: OrderedDict[str, nn.Module] = OrderedDict(layer3=_layer(128, 256, 2), layer4=_layer(256, 512, 2))
    head |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(512, classes)}
    net = Net(nn.Sequential(OrderedDict(**extractor, sigmoid=nn.Sigmoid())), nn.Sequential(head))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def _layer(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(ResidualBlock(channels, width, stride), ResidualBlock(width, width, 1))


def _convolution(channels: int, width: int, side: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, width, side, stride, side // 2, bias=False)
