"""ConvNet of the inversion papers, attacked beside a LeNet: eight convolutions with BatchNorm."""

from __future__ import annotations

from torch import nn

from flfw.nets.net import Net


def _convnet(shape: tuple[int, ...], classes: int, width: int) -> Net:
    layers: list[nn.Module] = []
    channels = shape[0]
    for block in ((width, 2 * width, 2 * width, 4 * width, 4 * width, 4 * width), (4 * width, 4 * width)):
        for wide in block:
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
            channels = wide
        layers.append(nn.MaxPool2d(3))
    return Net(nn.Sequential(*layers, nn.Flatten()), nn.Linear(4 * width * 3 * 3, classes))


def convnet32(shape: tuple[int, ...], classes: int) -> Net:
    """Build the ConvNet of width 32, used by DCS^2 for CIFAR-10 and CelebA: 32-10-3 pixels, features 1152."""
    return _convnet(shape, classes, 32)


def convnet64(shape: tuple[int, ...], classes: int) -> Net:
    """Build the ConvNet of width 64 of public inversion frameworks (Geiping et al., NeurIPS 2020): features 2304."""
    return _convnet(shape, classes, 64)
