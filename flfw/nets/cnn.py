"""The convolutional networks of HyperFL (Guo et al., AAAI 2025, section 5.1): a generated extractor, one private layer.

CNN 1 serves 28x28 grey images, CNN 2 32x32 colour images. The 128-unit layer belongs to the extractor.
"""

from __future__ import annotations

from torch import nn

from flfw.nets.net import Net


def _block(channels_in: int, channels_out: int, kernel: int, padding: int) -> list[nn.Module]:
    """Convolution, rectifier, pooling: the last two change places, which a growing function allows, at a quarter of the
    rectifier's work.
    """
    return [nn.Conv2d(channels_in, channels_out, kernel, padding=padding), nn.MaxPool2d(2), nn.LeakyReLU(0.01)]


def cnn1(shape: tuple[int, ...], classes: int) -> Net:
    """CNN 1: 28-24-12-10-5 pixels, features 800 -> 128; 115,776 extractor parameters."""
    extractor = nn.Sequential(
        *_block(shape[0], 16, 5, padding=0),
        *_block(16, 32, 5, padding=1),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 128),
        nn.LeakyReLU(0.01),
    )
    return Net(extractor, nn.Linear(128, classes))


def cnn2(shape: tuple[int, ...], classes: int) -> Net:
    """CNN 2: 32-28-14-12-6-6-3 pixels, features 576 -> 128; 106,400 extractor parameters."""
    extractor = nn.Sequential(
        *_block(shape[0], 16, 5, padding=0),
        *_block(16, 32, 5, padding=1),
        *_block(32, 64, 3, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 128),
        nn.LeakyReLU(0.01),
    )
    return Net(extractor, nn.Linear(128, classes))
