"""Convolutional networks of HyperFL and of Fed-CDP.

HyperFL (Guo et al., AAAI 2025, section 5.1): a generated extractor, one private layer. CNN 1 serves 28x28 grey images,
CNN 2 32x32 colour images. The 128-unit layer belongs to the extractor.

Fed-CDP (Wei et al., ICDCS 2021): two 3x3 convolutions and one dense layer, none with a bias, for images of any size.
"""

from __future__ import annotations

from torch import nn

from flfw.errors import InputError
from flfw.nets.net import Net


def _block(channels_in: int, channels_out: int, kernel: int, padding: int) -> list[nn.Module]:
    """Return convolution, rectifier and pooling; pooling comes first, as the rectifier is monotone and then costs a
    quarter.
    """
    return [nn.Conv2d(channels_in, channels_out, kernel, padding=padding), nn.MaxPool2d(2), nn.LeakyReLU(0.01)]


def cnn1(shape: tuple[int, ...], classes: int) -> Net:
    """Build CNN 1: 28-24-12-10-5 pixels, features 800 -> 128; 115,776 extractor parameters."""
    extractor = nn.Sequential(
        *_block(shape[0], 16, 5, padding=0),
        *_block(16, 32, 5, padding=1),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 128),
        nn.LeakyReLU(0.01),
    )
    return Net(extractor, nn.Linear(128, classes))


def cnn2(shape: tuple[int, ...], classes: int) -> Net:
    """Build CNN 2: 32-28-14-12-6-6-3 pixels, features 576 -> 128; 106,400 extractor parameters."""
    extractor = nn.Sequential(
        *_block(shape[0], 16, 5, padding=0),
        *_block(16, 32, 5, padding=1),
        *_block(32, 64, 3, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 128),
        nn.LeakyReLU(0.01),
    )
    return Net(extractor, nn.Linear(128, classes))


def cnn3x3(shape: tuple[int, ...], classes: int) -> Net:
    """Build Fed-CDP's network: 28-26-13-11-5 pixels, features 1600 for MNIST; 32-30-15-13-6, 2304 for CIFAR-10.

    Pooling comes before the rectifier, as in the others.

    Raises:
        InputError: a side is below 10 pixels, so the maps are empty after the second pooling.
    """
    if min(shape[1:]) < 10:
        got = "x".join(map(str, shape))
        raise InputError(f"Expected inputs of at least Cx10x10 for net=cnn3x3, got {got}; choose another --net.")
    height, width = (((side - 2) // 2 - 2) // 2 for side in shape[1:])
    extractor = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, bias=False),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, bias=False),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    return Net(extractor, nn.Linear(64 * height * width, classes, bias=False))
