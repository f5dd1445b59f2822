"""Spaces in which a search for a generator's images may go, and a client whose images come from such a space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from flfw.inversion.generative.image_generator import ImageGenerator
from flfw.inversion.priors import Prior
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.victims.victim import VictimModel
from flfw.victims.wrapping import WrappingVictim

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
        raw = x * victim.inputs.std + victim.inputs.mean
        return self.prior(victim.normalised(raw, constants[LABELS]))


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
