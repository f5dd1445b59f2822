"""Generator of images of a class, learnt from public data, and a client whose images come from its spaces.

It is the decoder of a conditional variational autoencoder (Kingma and Welling, ICLR 2014; Sohn et al., NeurIPS 2015):

    encoder      mu, sigma = E(x, y), two fully connected layers; only used to learn
    generator    x = G(z, y), a fully connected layer, then convolutions that double the side; z ~ N(0, 1)
    minimise     BCE(G(mu + sigma e, y), x) + KL(N(mu, sigma^2) || N(0, 1)), with e ~ N(0, 1), over both

The generator's layers are kept apart, so that a search may begin at the input of any of them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import binary_cross_entropy

from flfw.bounds import BoundedSettings, PositiveFinite, PositiveInt
from flfw.errors import require
from flfw.inversion.client_models.victim import VictimModel, WrappingVictim
from flfw.inversion.compute import steps
from flfw.inversion.priors import Prior
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.nets.training.optimisers import Adam, descend
from flfw.rng import initialising, torch_generator

_BATCH = 64
_SMALLEST = 8  # largest side of the first maps
_HIDDEN = 256  # units in each layer of the encoder
_KEPT = 4  # generators that a process keeps


@dataclass(frozen=True)
class Learning(BoundedSettings):
    """Settings of a generator and of its training.

    Attributes:
        latent: length of z, >= 1.
        width: channels of its last maps, >= 1; twice as many for each halving of the side.
        learning_iterations: steps of Adam with batches of 64 public images, >= 1.
        learning_rate: first step size, > 0; it falls to 0 along half a cosine.
    """

    latent: PositiveInt = 64
    width: PositiveInt = 16
    learning_iterations: PositiveInt = 1000
    learning_rate: PositiveFinite = 5e-3


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

    def loss() -> Tensor:
        rows = torch.randint(len(lesson.labels), (_BATCH,), generator=rng).to(device)
        x, y = lesson.samples[rows], lesson.labels[rows]
        mean, log_variance = encoder(x, y)
        drawn = torch.randn(mean.shape, generator=rng).to(device)
        made = generator(mean + (log_variance / 2).exp() * drawn, y)
        divergence = (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2
        return (binary_cross_entropy(made, x, reduction="sum") + divergence) / len(rows)

    losses = (loss() for _ in steps(chosen.learning_iterations))
    descend(nn.ModuleList([generator, encoder]), losses, Adam(chosen.learning_rate), chosen.learning_iterations)
    return generator.eval().requires_grad_(False)


LABELS = "generator.labels"
"""Name of the labels among the constants of a search with `OfImages`."""

_TINY = 1e-10  # keeps the logarithm finite for equal entries


class Space(ABC):
    """Coordinates of a generator's images.

    Args:
        generator: the generator; it is not changed.

    Attributes:
        shape: shape of the coordinates of one image.
        unit: one unit of a search in these coordinates, > 0.
    """

    shape: tuple[int, ...]
    unit: float = 1.0

    def __init__(self, generator: ImageGenerator) -> None:
        self.generator = generator

    @abstractmethod
    def begun(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the coordinates of the images that have the coordinates (B, ...) in the space before this one."""

    @abstractmethod
    def images(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute images (B, C, H, W) in (0, 1) from coordinates (B, ...) and labels (B,); fit for vmap."""


@final
class Latent(Space):
    """The generator's own input z."""

    def __init__(self, generator: ImageGenerator) -> None:
        super().__init__(generator)
        self.shape = (generator.latent,)

    def begun(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the same: no space comes before."""
        return x

    def images(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute G(z, y)."""
        return self.generator(x, y)


@final
class Maps(Space):
    """Space of the maps at the input of a later layer, in deviations of those that drawn z give.

    Args:
        generator: the generator.
        layer: from 1 on.
        drawn: (N, latent) z from N(0, 1).
        labels: (N,) their labels.
    """

    def __init__(self, generator: ImageGenerator, layer: int, drawn: Tensor, labels: Tensor) -> None:
        super().__init__(generator)
        self.layer = layer
        with torch.no_grad():
            maps = generator.maps(drawn, labels)
            for part in generator.layers[1:layer]:
                maps = part(maps)
        self.shape, self.unit = tuple(maps.shape[1:]), float(maps.std(correction=0)) or 1.0

    def begun(self, x: Tensor, y: Tensor) -> Tensor:
        """Pass z, or the maps before, through the layer before."""
        return self.generator.maps(x, y) if self.layer == 1 else self.generator.layers[self.layer - 1](x)

    def images(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the images of maps; the labels are not used."""
        return self.generator.image(x, self.layer)


@final
class LatentAndWeights(Space):
    """z, and after it the change of all weights of the generator, for each image its own.

    Args:
        generator: the generator, with the weights that are changed.
        factor: change of a weight for a coordinate of 1, > 0.
    """

    def __init__(self, generator: ImageGenerator, factor: float) -> None:
        super().__init__(generator)
        self._weights, self._factor = dict(generator.named_parameters()), factor
        self.shape = (generator.latent + sum(value.numel() for value in self._weights.values()),)

    def begun(self, x: Tensor, y: Tensor) -> Tensor:
        """Add no change of the weights to z (B, latent)."""
        return torch.cat([x, x.new_zeros(len(x), self.shape[0] - x.shape[1])], 1)

    def images(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the images of each example's own generator."""

        def image(coordinates: Tensor, label: Tensor) -> Tensor:
            sizes = [value.numel() for value in self._weights.values()]
            z, *changes = coordinates.split([self.generator.latent, *sizes])
            pairs = zip(self._weights.items(), changes, strict=True)
            weights = {name: value + self._factor * change.view_as(value) for (name, value), change in pairs}
            return functional_call(self.generator, weights, (z[None], label[None]))[0]

        return vmap(image)(x, y)


@final
class GeneratedImages(WrappingVictim):
    """Client whose images are given by coordinates in a space.

    Args:
        client: computes the gradient for images.
        space: of the coordinates.
    """

    def __init__(self, client: VictimModel, space: Space) -> None:
        like = client.inputs.mean
        super().__init__(client, InputSpec(space.shape, like.new_zeros(()), like.new_tensor(space.unit)))
        self._space = space

    def around(self, client: VictimModel) -> GeneratedImages:
        """Return the victim of another client in the same space."""
        return GeneratedImages(client, self._space)

    def raw(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the images of coordinates ``x`` (B, ...)."""
        return self._space.images(x, y)

    def normalised(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the network inputs of the images of coordinates (B, ...) and labels (B,)."""
        return self._client.inputs.normalise(self.raw(x, y))


@final
@dataclass(frozen=True)
class OfImages:
    """Prior of the images that coordinates stand for, in place of the coordinates; a `ModelPrior`.

    Attributes:
        prior: of network inputs. The constants of the search hold the labels as `LABELS`.
    """

    prior: Prior

    def __call__(self, victim: VictimModel, x: Tensor, unknown: Tensors, constants: Tensors) -> Tensor:
        """Compute the prior of the images at ``x`` (B, ...)."""
        assert isinstance(victim, GeneratedImages), "only such a client has a space"
        return self.prior(victim.normalised(x * victim.inputs.std + victim.inputs.mean, constants[LABELS]))


def unlike_normal(z: Tensor) -> Tensor:
    """Compute KL(N(m, v) || N(0, 1)) of mean and variance of each example's entries (B, d), a mean over the examples.

    The regulariser of GGL (Li et al., CVPR 2022).

    >>> float(unlike_normal(torch.tensor([[2.0, 0.0]])))
    0.5
    """
    mean, variance = z.mean(1), z.var(1, correction=0)
    return ((mean**2 + variance - 1 - (variance + _TINY).log()) / 2).mean()


def normal_energy(z: Tensor) -> Tensor:
    """Compute the negative log-density of N(0, 1) in all entries (B, d), up to a constant, in nats.

    >>> float(normal_energy(torch.tensor([[1.0, -3.0]])))
    5.0
    """
    return (z**2).sum() / 2
