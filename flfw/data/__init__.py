"""Data sets by name: ``load("digits", None, side=28)``; `flfw.data.splits.partition` splits them over clients.

The first load on a machine converts the published files to arrays in the user's cache; later ones, such as those of
every client process, map these and import nothing heavy. Generated populations have no files: no example is made before
it is read. A new data set is a reader and a card.
"""

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from flfw.data.catalogue import (
    PREFIXES,
    absolute,
    code_of,
    configured,
    describe,
    has_public_constants,
    is_at_sites,
    is_of_pictures,
    names,
    private_constants,
    title,
)
from flfw.data.files import cache, remote
from flfw.data.files.dataset import COMMON, PERSONS, Augmentation, Dataset, DatasetArrays, DatasetCard, Population
from flfw.data.files.dataset import columns as columns_of
from flfw.data.image_files.images import ImageFormat
from flfw.data.readers import pixels
from flfw.data.readers.pixels import resize
from flfw.data.tables.names import is_table
from flfw.errors import InputError

__all__ = [
    "PREFIXES",
    "Augmentation",
    "Dataset",
    "DatasetArrays",
    "DatasetCard",
    "ImageFormat",
    "absolute",
    "configured",
    "describe",
    "fetch",
    "has_public_constants",
    "here",
    "is_at_sites",
    "is_here",
    "is_of_pictures",
    "is_table",
    "load",
    "names",
    "private_constants",
    "sums",
    "title",
    "without_examples",
]
_PROBED = 0, 1, PERSONS + COMMON - 1  # persons whose first examples identify the data
_EXAMPLES = 8


def _of_population(name: str, card: DatasetCard, population: Population, side: int | None) -> Dataset:
    """Return a data set of which no example is made before it is read.

    Args:
        name: name of the data set.
        card: its card.
        population: its clients.
        side: side in pixels to resize the images to; None: as generated.
    """

    def resized(images: np.ndarray) -> np.ndarray:
        return images if side is None else resize(images, side)

    return Dataset(
        name,
        *columns_of(population, "train", resized),
        *columns_of(population, "test", resized),
        classes=card.classes,
        mean=card.mean,
        std=card.std,
        source=card.source,
        md5_ok=None,
        digest=cache.digest(name, side, *_first(population)),
    )


def _first(population: Population) -> list[bytes]:
    """Return a few examples, by which another generator would be noticed."""
    return [
        made(part, person, _EXAMPLES).tobytes()
        for part in ("train", "test")
        for person in _PROBED
        for made in (population.inputs, population.labels)
    ]


def here(name: str, data_root: Path | None, image_format: ImageFormat | None = None) -> DatasetCard:
    """Return the data set's card on this machine: `describe`, with the local files if only sites have the data.

    Raises:
        InputError: an unknown name, or a site's data do not match the name.
    """
    card = describe(name, image_format)
    return card.look(_root(card, data_root)) if card.look else card


def _root(card: DatasetCard, given: Path | None) -> Path:
    """Return the folder of the published files: ``given``, else ``$FLFW_DATA``, else ``data`` in the user's cache."""
    if card.package is not None:
        spec = importlib.util.find_spec(card.package)  # finds a top-level package without importing it
        places = spec.submodule_search_locations if spec else None
        return Path(places[0] if places else card.package)
    return card.root or given or Path(os.environ.get("FLFW_DATA") or cache.user_cache() / "data")


def _missing(card: DatasetCard, root: Path) -> list[str]:
    return [file for file in card.files if not (root / file).exists()]


def is_here(name: str, data_root: Path | None = None) -> bool:
    """Return whether all files of the data set are on this machine; without network, so names on the Hub give False."""
    prefix, _, word = name.partition(":")
    if prefix == "hf" and not Path(word.partition("@")[0]).is_dir():
        return False
    card = describe(name)
    return not _missing(card, _root(card, data_root))


def fetch(name: str, data_root: Path | None = None) -> None:
    """Download the missing files of the data set if it can be downloaded; `load` reports files still missing.

    Raises:
        InputError: there is no network, or a downloaded file is not the published one.
    """
    card = describe(name)
    root = _root(card, data_root)
    if callable(card.fetch) and _missing(card, root):
        with remote.alone(root):
            if _missing(card, root):  # another process may have got them meanwhile
                card.fetch(root)


def sums(name: str, data_root: Path | None) -> dict[str, bool | None]:
    """Return for each file of a data set whether it has the published MD5 sum; None: none is published.

    Raises:
        InputError: an unknown name, or missing files.
    """
    card = describe(name)
    root = _root(card, data_root)
    _present(name, card, root)
    wrong = pixels.wrong_sums(card, root)
    return {file: None if known is None else Path(file).name not in wrong for file, known in card.files.items()}


def _present(name: str, card: DatasetCard, root: Path) -> tuple[Path, ...]:
    """Return the paths of the data set's files; an error lists the missing ones."""
    missing = _missing(card, root)
    if missing:
        where = "a data root" if card.package is None else f"an installed {card.package}"
        way_out = " or pass --data-root" if card.package is None else ""
        how = card.fetch if isinstance(card.fetch, str) else f"flfw data get {name}"
        begun = sorted({str(root / Path(file).parts[0]) for file in missing if (root / Path(file).parts[0]).is_dir()})
        if begun and callable(card.fetch):  # fetch takes an existing folder for complete
            how = f"{how}, after removing what is incomplete ({', '.join(begun)})"
        raise InputError(
            f"Expected {where} with {', '.join(missing)}, got data_root={root} without; "
            f"get the files with {how} (source: {card.source}){way_out}."
        )
    return tuple(root / file for file in card.files)


def load(
    name: str, data_root: Path | None = None, side: int | None = None, image_format: ImageFormat | None = None
) -> Dataset:
    """Load a data set, its images resized to ``side`` x ``side`` pixels (None: as published).

    A user's own pictures are brought to a form, whose side is ``side``.

    The first load on a machine reads the published files (seconds to minutes); it warns when their md5 sums are not the
    published ones. Embedded sets (digits, cancer) need no ``data_root``.

    Raises:
        InputError: an unknown name, missing or damaged files, a side for rows of features.
    """
    image_format = replace(image_format or ImageFormat(), side=side)
    card = here(name, data_root, image_format)
    images = len(card.shape) == 3
    if side is not None and not images:
        raise InputError(
            f"Expected images to resize to {side} px, got dataset={name} with rows of {card.shape[0]} features; "
            "take a --net for rows, such as mlp."
        )
    if side is not None and side < 1:
        raise InputError(f"Expected side >= 1 pixel, got side={side}; leave it out for the published size.")
    if card.population:
        return _of_population(name, card, card.population, side)
    root = _root(card, data_root)
    paths = _present(name, card, root)
    # A user's own images may differ in size, unless they were read without resizing.
    as_published = side is None or (card.root is None and card.shape[1:] == (side, side))
    forms = (image_format,) if is_of_pictures(name) else code_of(name)
    key = cache.digest(name, card.classes, "as published" if as_published else side, cache.fingerprint(paths), *forms)
    folder = cache.user_cache() / "pixels" / f"{name.partition(':')[0]}-{key}"
    if not folder.exists():
        pixels.convert(name, card, root, None if as_published else side, folder)
    (*arrays, train_domain, test_domain), meta = cache.read_arrays(folder, DatasetArrays._fields[:-2])
    by_patient = meta.get("patients", False)  # files of earlier versions have none
    groups = cache.read_arrays(folder, DatasetArrays._fields[-2:])[0] if by_patient else (None, None)
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
        domains=card.domains,
        train_domain=np.asarray(train_domain),
        test_domain=np.asarray(test_domain),
        held_out=card.held_out,
        per_client=card.per_client,
        digest=meta["digest"],
        vocabulary=card.vocabulary,
        train_group=groups[0],
        test_group=groups[1],
        notes=card.notes(DatasetArrays(*arrays)) if card.notes else (),
        columns=card.columns,
    )


def without_examples(name: str, side: int | None = None) -> Dataset:
    """Return an empty data set with the shape, classes and constants in its name; only the sites have its examples.

    Args:
        name: ``site:CxHxW:CLASSES`` or the like.
        side: pixels that the sites resize their images to; None: as the name says.
    """
    card = describe(name)
    shape = (card.shape[0], side, side) if side and len(card.shape) == 3 else card.shape
    x = np.zeros((0, *shape), np.uint8 if len(shape) == 3 else np.float32)
    y = np.zeros(0, np.float32 if card.numbers else np.int64)
    return Dataset(name, x, y, x, y, card.classes, card.mean, card.std, card.source, md5_ok=None)
