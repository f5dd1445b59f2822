"""Data sets by name: ``load("digits", None, side=28)``; how clients share them is in ``flfw.data.partition``.

The first load on a machine converts the published files to arrays in the user's cache; later ones, such as those of
every client process, map these and import nothing heavy. A new data set is a reader and a card.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from flfw.data import cache, cifar, embedded, mnist, pixels
from flfw.data.dataset import Arrays, Dataset, DatasetCard
from flfw.errors import BadInput

__all__ = ["Arrays", "Dataset", "DatasetCard", "describe", "load", "names"]

_CARDS = {
    "cancer": embedded.CANCER,
    "cifar10": cifar.CIFAR10,
    "digits": embedded.DIGITS,
    "fmnist": mnist.FASHION_MNIST,
    "mnist": mnist.MNIST,
}


def names() -> tuple[str, ...]:
    """The data sets there are."""
    return tuple(_CARDS)


def describe(name: str) -> DatasetCard:
    """The data set's card, without touching a file; an unknown name says which ones there are."""
    if name not in _CARDS:
        raise BadInput(f"Expected a data set among {', '.join(_CARDS)}; got dataset={name}.")
    return _CARDS[name]


def _root(card: DatasetCard, given: Path | None) -> Path:
    """The folder of the published files: the given one, else ``$FLFW_DATA``, else ``data`` in the user's cache."""
    if card.package is not None:
        spec = importlib.util.find_spec(card.package)  # finds a top-level package without importing it
        places = spec.submodule_search_locations if spec else None
        return Path(places[0] if places else card.package)
    return given or Path(os.environ.get("FLFW_DATA") or cache.user_cache() / "data")


def _paths(card: DatasetCard, given: Path | None) -> tuple[Path, ...]:
    """The data set's files, all of which exist."""
    root = _root(card, given)
    missing = [file for file in card.files if not (root / file).is_file()]
    if missing:
        where = "a data root" if card.package is None else f"an installed {card.package}"
        way_out = " or pass --data-root" if card.package is None else ""
        raise BadInput(
            f"Expected {where} with {', '.join(missing)}, got data_root={root} without; "
            f"get the files with {card.fetch} (source: {card.source}){way_out}."
        )
    return tuple(root / file for file in card.files)


def load(name: str, data_root: Path | None = None, side: int | None = None) -> Dataset:
    """A data set, its images resized to ``side`` x ``side`` pixels (None: as published).

    The first load on a machine reads the published files (seconds); it warns when their md5 sums are not the published
    ones. Embedded sets (digits, cancer) need no ``data_root``.

    Raises:
        BadInput: an unknown name, missing or damaged files, a side for rows of features.
    """
    card = describe(name)
    images = len(card.shape) == 3
    if side is not None and not images:
        raise BadInput(
            f"Expected images to resize to {side} px, got dataset={name} with rows of {card.shape[0]} features; "
            "take a --net for rows, such as mlp."
        )
    if side is not None and side < 1:
        raise BadInput(f"Expected side >= 1 pixel, got side={side}; leave it out for the published size.")
    if side is None and images:
        side = card.shape[-1]
    paths = _paths(card, data_root)
    folder = cache.user_cache() / "pixels" / f"{name}-{side or 'rows'}-{cache.fingerprint(paths)}"
    if not folder.exists():
        pixels.convert(name, card, paths, side, folder)
    arrays, meta = cache.read_arrays(folder, Arrays._fields)
    return Dataset(
        name,
        *arrays,
        classes=card.classes,
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
        source=card.source,
        md5_ok=meta["md5_ok"],
        victims=range(min(card.victims, len(arrays[0]))),
        test_start=card.test_start,
    )
