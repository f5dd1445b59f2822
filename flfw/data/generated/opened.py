"""Data sets of generated populations, as clients and splits see them."""

from __future__ import annotations

from functools import partial

import numpy as np

from flfw.data.files import cache
from flfw.data.files.dataset import Dataset, DatasetCard
from flfw.data.files.population import COMMON, PERSONS, Population, columns
from flfw.data.readers.pixels import resize

_PROBED = 0, 1, PERSONS + COMMON - 1  # persons whose first examples identify the data
_EXAMPLES = 8


def generated(name: str, card: DatasetCard, population: Population, side: int | None) -> Dataset:
    """Return a data set of which no example is made before it is read.

    Args:
        name: name of the data set.
        card: its card.
        population: its clients.
        side: side in pixels to resize the images to; None: as generated.
    """
    resized = partial(_resized, side=side)
    return Dataset(
        name,
        *columns(population, "train", resized),
        *columns(population, "test", resized),
        classes=card.classes,
        mean=card.mean,
        std=card.std,
        source=card.source,
        md5_ok=None,
        digest=cache.digest(name, side, *_first(population)),
    )


def _resized(images: np.ndarray, side: int | None) -> np.ndarray:
    return images if side is None else resize(images, side)


def _first(population: Population) -> list[bytes]:
    """Return a few examples, by which another generator would be noticed."""
    return [
        made(part, person, _EXAMPLES).tobytes()
        for part in ("train", "test")
        for person in _PROBED
        for made in (population.inputs, population.labels)
    ]
