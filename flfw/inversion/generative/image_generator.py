"""Generator of images of a class, learnt from public data as the decoder of a conditional variational autoencoder.

    encoder      mu, sigma = E(x, y), two fully connected layers; only used to learn
    generator    x = G(z, y), a fully connected layer, then convolutions that double the side; z ~ N(0, 1)
    minimise     BCE(G(mu + sigma e, y), x) + KL(N(mu, sigma^2) || N(0, 1)), with e ~ N(0, 1), over both

(Kingma and Welling, ICLR 2014; Sohn et al., NeurIPS 2015). The generator's layers are kept apart, so that a search may
begin at the input of any of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import cos, inf, pi
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from flfw.errors import require
from flfw.inversion.compute import steps
from flfw.rng import initialising, torch_generator
from flfw.training.optimisers import Adam

_BATCH = 64
_SMALLEST = 8  # largest side of the first maps
_HIDDEN = 256  # units in each layer of the encoder
_KEPT = 4  # generators that a process keeps


@dataclass(frozen=True)
class Learning:
    """Settings of a generator and of its training.

    Attributes:
        latent: length of z, >= 1.
        width: channels of its last maps, >= 1; twice as many for each halving of the side.
        learning_iterations: steps of Adam with batches of 64 public images, >= 1.
        learning_rate: first step size, > 0; it falls to 0 along half a cosine.
    """

    latent: int = 64
    width: int = 16
    learning_iterations: int = 1000
    learning_rate: float = 5e-3

    def __post_init__(self) -> None:
        for name in ("latent", "width", "learning_iterations"):
            require(getattr(self, name) >= 1, f"{name} >= 1", **{name: getattr(self, name)})
        require(0 < self.learning_rate < inf, "0 < learning_rate < inf", learning_rate=self.learning_rate)


@final
class ImageGenerator(nn.Module):
    """Generator G(z, y) of images in (0, 1).

    Args:
        shape: shape of an image, (C, H, W).
        classes: number of classes.
        latent: length of z.
        width: channels of the last maps.

    Attributes:
        layers: the first one takes z and the class, the others take maps.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.shape, self.classes, self.latent = shape, classes, latent
        channels, height, width_px = shape
        doublings = 1
        while max(height, width_px) > _SMALLEST * 2**doublings:
            doublings += 1
        sides = [-(-side // 2**doublings) for side in (height, width_px)]
        maps = [width * 2**i for i in range(doublings, -1, -1)]
        size = maps[0] * sides[0] * sides[1]
        first = nn.Sequential(
            nn.Linear(latent + classes, size), nn.ReLU(), nn.Unflatten(1, (maps[0], sides[0], sides[1]))
        )
        pairs = pairwise(maps)
        doubled = [nn.Sequential(nn.ConvTranspose2d(*pair, 4, stride=2, padding=1), nn.ReLU()) for pair in pairs]
        last = nn.Sequential(nn.Conv2d(width, channels, 3, padding=1), nn.Sigmoid())
        self.layers = nn.ModuleList([first, *doubled, last])

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Generate images (B, C, H, W) from z (B, latent) and labels (B,)."""
        return self.image(self.maps(z, y), 1)

    def maps(self, z: Tensor, y: Tensor) -> Tensor:
        """Compute the first maps, the input of layer 1."""
        classes = torch.arange(self.classes, device=y.device)
        return self.layers[0](torch.cat([z, (y[:, None] == classes).to(z.dtype)], 1))

    def image(self, maps: Tensor, layer: int) -> Tensor:
        """Compute the images of maps at the input of a layer from 1 on."""
        for part in self.layers[layer:]:
            maps = part(maps)
        return maps[..., : self.shape[1], : self.shape[2]]


@final
class _Encoder(nn.Module):
    """Encoder of images and labels, for the training."""

    def __init__(self, shape: tuple[int, ...], classes: int, latent: int) -> None:
        super().__init__()
        self.classes = classes
        layers = [nn.Linear(torch.Size(shape).numel() + classes, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN)]
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Linear(_HIDDEN, 2 * latent))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute mean and log variance (B, latent) of z."""
        known = nn.functional.one_hot(y, self.classes).to(x.dtype)
        mean, log_variance = self.layers(torch.cat([x.flatten(1), known], 1)).chunk(2, 1)
        return mean, log_variance


@dataclass(frozen=True)
class Lesson:
    """Public images to learn a generator from; lessons with the same content and settings are equal.

    Attributes:
        samples: (N, C, H, W) raw images in [0, 1].
        labels: (N,).
        classes: number of classes.
        learning: settings.
        digest: of the images and labels.
    """

    samples: Tensor = field(compare=False)
    labels: Tensor = field(compare=False)
    classes: int
    learning: Learning
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        require(len(self.samples) > 0, "at least one public image to learn from", images=len(self.samples))
        hashed = hashlib.sha256(str((self.samples.shape, self.samples.device)).encode())
        for part in (self.samples, self.labels):
            hashed.update(part.contiguous().cpu().numpy().tobytes())
        object.__setattr__(self, "digest", hashed.hexdigest())


@lru_cache(maxsize=_KEPT)  # the jobs of an audit have the same public data
def learnt(lesson: Lesson) -> ImageGenerator:
    """Learn a generator; the same lesson gives the same generator, which is not to be changed.

    Args:
        lesson: the public images and the settings.
    """
    chosen, shape, device = lesson.learning, tuple(lesson.samples.shape[1:]), lesson.samples.device
    with initialising(0, "image generator"):
        generator = ImageGenerator(shape, lesson.classes, chosen.latent, chosen.width).to(device)
        encoder = _Encoder(shape, lesson.classes, chosen.latent).to(device)
    rng = torch_generator(0, "images to learn from")

    def loss(rows: Tensor) -> Tensor:
        x, y = lesson.samples[rows], lesson.labels[rows]
        mean, log_variance = encoder(x, y)
        drawn = torch.randn(mean.shape, generator=rng).to(device)
        made = generator(mean + (log_variance / 2).exp() * drawn, y)
        divergence = (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2
        return (binary_cross_entropy(made, x, reduction="sum") + divergence) / len(rows)

    _descend(nn.ModuleList([generator, encoder]), loss, len(lesson.labels), chosen, rng)
    return generator.eval().requires_grad_(False)


def _descend(
    module: nn.Module, loss: Callable[[Tensor], Tensor], images: int, chosen: Learning, rng: torch.Generator
) -> None:
    """Run Adam on batches drawn with replacement."""
    parameters, adam = dict(module.named_parameters()), Adam(chosen.learning_rate)
    device = next(module.parameters()).device
    for done in steps(chosen.learning_iterations, learning=True):
        adam.lr = chosen.learning_rate * (1 + cos(pi * done / chosen.learning_iterations)) / 2
        rows = torch.randint(images, (_BATCH,), generator=rng).to(device)
        gradients = torch.autograd.grad(loss(rows), list(parameters.values()))
        adam.step(parameters, dict(zip(parameters, gradients, strict=True)))
