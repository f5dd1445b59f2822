"""Synthetic images of clients with a label skew of their own, ``--dataset synthetic_images``.

Class c has a mean image M_c that all clients share. An image of class c is

    128 + 20 M_c + 45 S + 8 E

rounded and cut to bytes. S is a field of the image's own, E noise of each pixel. M_c and S are smooth fields: normal
numbers on a grid of 7 x 7 for each channel, between which is interpolated. So images differ more within a class than
classes do, and no pixel alone tells the class. A client's labels are drawn in proportions of its own, from Dir(alpha)
over the classes (Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from flfw.data.files.dataset import DatasetCard
from flfw.data.files.population import Part, Population
from flfw.data.generated.words import no_files, whole, within
from flfw.errors import InputError
from flfw.rng import numpy_generator

_NAME = "synthetic_images"
_GREY, _CLASS, _OWN, _PIXEL = 128, 20, 45, 8  # mean, and deviations of classes, images and pixels
_CONTRAST = 34  # root of the mean square of all deviations, rounded: between points of the grid they are smaller
_GRID = 7
_FORM = re.compile(r"([13])x([1-9]\d{0,3})x([1-9]\d{0,3})")
_MADE_FOR = {(1, 28, 28): "cnn1", (3, 32, 32): "cnn2"}
_SIDES = 4, 512
_MOST_CLASSES = 1000
_ALPHAS = 1e-3, 1e6


@final
@dataclass(frozen=True)
class SkewedImages(Population):
    """Population with images of shared classes.

    Attributes:
        size: (C, H, W) of an image.
        classes: number of classes.
        alpha: parameter of the Dirichlet distribution; a small value gives few classes a client.
        seed: seed of all that is drawn.
    """

    size: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    alpha: float = 0.5
    seed: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.size

    def labels(self, part: Part, person: int, count: int) -> np.ndarray:
        """Draw labels (count,) in the client's proportions."""
        ends = np.cumsum(self.proportions(person))
        drawn = numpy_generator(self.seed, f"synthetic labels {part}", person).random(count)
        return np.searchsorted(ends[:-1], drawn, side="right").astype(np.int64)

    def proportions(self, person: int) -> np.ndarray:
        """Draw the shares (classes,) of the classes in a client's data."""
        rng = numpy_generator(self.seed, "synthetic proportions", person)
        return rng.dirichlet(np.full(self.classes, self.alpha))

    def inputs(self, part: Part, person: int, count: int) -> np.ndarray:
        """Generate images (count, C, H, W) uint8; each has a generator of its own fields and one of its pixels."""
        labels = self.labels(part, person, count)
        fields = numpy_generator(self.seed, f"synthetic fields {part}", person)
        pixels = numpy_generator(self.seed, f"synthetic pixels {part}", person)
        own_field = _smooth(fields.standard_normal((count, self.size[0], _GRID, _GRID)), self.size)
        noise = pixels.standard_normal((count, *self.size))
        grey = _GREY + _CLASS * _means(self)[labels] + _OWN * own_field + _PIXEL * noise
        return np.rint(grey).clip(0, 255).astype(np.uint8)


@lru_cache(4)
def _means(population: SkewedImages) -> np.ndarray:
    """Draw the mean images (classes, C, H, W) of the classes, without grey and scale."""
    rng, size = numpy_generator(population.seed, "synthetic means"), population.size
    return _smooth(rng.standard_normal((population.classes, size[0], _GRID, _GRID)), size)


def _smooth(grid: np.ndarray, size: tuple[int, int, int]) -> np.ndarray:
    """Resize grids (N, C, 7, 7) linearly along both axes to (N, C, H, W); products alone, so alike everywhere."""
    for axis, length in ((2, size[1]), (3, size[2])):
        at = np.linspace(0, _GRID - 1, length)
        low = np.minimum(at.astype(int), _GRID - 2)
        share = (at - low).reshape((-1,) + (1,) * (3 - axis))
        grid = np.take(grid, low, axis) * (1 - share) + np.take(grid, low + 1, axis) * share
    return grid


def synthetic_images(word: str) -> DatasetCard:
    """Return the card of ``synthetic_images:CxHxW,CLASSES,ALPHA,SEED``, of which the last words may be left out.

    Raises:
        InputError: the word has another form.
    """
    size, *rest = word.split(",")
    form = _FORM.fullmatch(size or "1x28x28")
    if not form or len(rest) > 3:
        forms = f"{_NAME}:CxHxW,CLASSES,ALPHA,SEED with C = 1 or 3, of which the last may be left out"
        raise InputError(f"Expected {forms}, got {_NAME}:{word}; for example {_NAME}:3x32x32,10,0.5.")
    channels, height, width = (int(number) for number in form.groups())
    for side in (height, width):
        whole(_NAME, "side", str(side), *_SIDES)
    given = dict(zip(("classes", "alpha", "seed"), rest, strict=False))
    made = SkewedImages(
        (channels, height, width),
        whole(_NAME, "classes", given.get("classes", "10"), 2, _MOST_CLASSES),
        within(_NAME, "alpha", given.get("alpha", "0.5"), *_ALPHAS),
        whole(_NAME, "seed", given.get("seed", "0")),
    )
    return DatasetCard(
        shape=made.size,
        classes=made.classes,
        files={},
        read=no_files,
        source="generated: smooth images around a mean of each class",
        licence="none needed: generated by this program",
        citation="none needed: generated by this program",
        fetch="nothing to get: it is generated",
        net=_MADE_FOR.get(made.size, "lenet"),
        split="natural",
        mean=(_GREY / 255,) * channels,
        std=(_CONTRAST / 255,) * channels,
        population=made,
    )
