"""Data sets by name: ``load("digits", None, side=28)``; `flfw.data.splits.partition` splits them over clients.

The first load on a machine converts the published files to arrays in the user's cache; later ones, such as those of
every client process, map these and import nothing heavy. A new data set is a reader and a card.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flfw.data import text
from flfw.data.files import cache, patients, remote
from flfw.data.files.dataset import Arrays, Augmentation, Dataset, DatasetCard
from flfw.data.generated import images, logistic, opened
from flfw.data.pictures.form import PictureForm
from flfw.data.readers import (
    adult,
    at_site,
    cifar,
    cinic,
    digit5,
    domainnet,
    embedded,
    faces,
    folder,
    hub,
    mnist,
    numerals,
    office,
    pixels,
    table,
    tiny_imagenet,
)
from flfw.data.tables import names as tables
from flfw.data.tables import site_tables
from flfw.data.tables.names import is_table
from flfw.errors import BadInput, unknown
from flfw.imports import imported

__all__ = [
    "PREFIXES",
    "Arrays",
    "Augmentation",
    "Dataset",
    "DatasetCard",
    "PictureForm",
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
    "sums",
    "title",
    "without_examples",
]

_CARDS = {
    "adult": adult.ADULT,
    "cancer": embedded.CANCER,
    "cifar10": cifar.CIFAR10,
    "cinic10": cinic.CINIC10,
    "digits": embedded.DIGITS,
    "emnist": mnist.EMNIST,
    "fmnist": mnist.FASHION_MNIST,
    "lfw": faces.LFW,
    "mnist": mnist.MNIST,
    "mnist_m": numerals.MNIST_M,
    "svhn": numerals.SVHN,
    "synthetic_digits": numerals.SYNTHETIC_DIGITS,
    "tiny_imagenet": tiny_imagenet.TINY_IMAGENET,
    "usps": numerals.USPS,
}

_FAMILIES: dict[str, Callable[[str], DatasetCard]] = {
    "celeba": faces.celeba,
    "digit5": digit5.digit5,
    "domainnet": domainnet.domainnet,
    "office_caltech": office.office_caltech,
    "synthetic": logistic.synthetic,
    "synthetic_images": images.synthetic_images,
}
"""Sets with parts, chosen by a word behind a colon, ``digit5:usps,mnist``: name -> card for that word ("": all)."""

_PICTURES: dict[str, Callable[[str, PictureForm], DatasetCard]] = {"folder": folder.folder, "site": at_site.site}

_ANYBODYS: dict[str, Callable[[str], DatasetCard]] = {
    "csv": table.csv,
    "hf": hub.hub,
    "parquet": table.parquet,
    "text": text.text,
}
"""Sets that are not published here, ``folder:PATH``: prefix -> card of the set that the word behind the colon names."""

PREFIXES = frozenset((*_FAMILIES, *_ANYBODYS, *_PICTURES))
"""Words before a colon that name no module."""


def names() -> tuple[str, ...]:
    """Return the names of the data sets."""
    return tuple(sorted([*_CARDS, *_FAMILIES]))


def describe(name: str, form: PictureForm | None = None) -> DatasetCard:
    """Return the card of a data set; the error for an unknown name lists the known ones.

    A card with ``look`` describes data that only sites have: it is made from the name, and no file is opened. A form
    counts for a user's own pictures (``folder:``, ``site:``), and for no other data.
    """
    prefix, _, word = name.partition(":")
    if described := _PICTURES.get(prefix):
        return described(word, form or PictureForm(skip_damaged=True))  # whoever reads the pictures has a form
    if makes := (_FAMILIES | _ANYBODYS).get(prefix):
        return makes(word)
    if word and ("." in prefix or importlib.util.find_spec(prefix)):
        return _outside(name)
    if name not in _CARDS:
        others = "folder:PATH, csv:FILE@TARGET, parquet:FILE@TARGET, text:FILE, hf:NAME, site:CxHxW:CLASSES"
        others += " or package.module:CARD"
        raise unknown(f"a data set among {', '.join(names())}, {others}", "dataset", name, [*names(), *PREFIXES])
    return _CARDS[name]


def _outside(name: str) -> DatasetCard:
    """Return the card that a user's own module has, for ``package.module:CARD``."""
    card = imported(name, "dataset")
    if not isinstance(card, DatasetCard):
        raise BadInput(f"Expected dataset={name} to be a DatasetCard, got {card!r}.")
    return card


def is_at_sites(name: str) -> bool:
    """Return whether each site of a federation has its own data (``site:...``); no file is opened."""
    return name.partition(":")[0] == "site"


def is_of_pictures(name: str) -> bool:
    """Return whether a data set may be made of a user's own image files, to which a `PictureForm` applies."""
    return name.partition(":")[0] in _PICTURES


def has_public_constants(name: str) -> bool:
    """Return whether a data set's own normalisation constants are known to everybody.

    Those of a user's own images are computed from the very images, so that each of them changes all inputs; likewise
    the scales and categories of a table, unless the plan of its columns says that they are public.
    """
    if is_table(name):
        plan = describe(name).columns
        return plan is not None and plan.public
    return name.partition(":")[0] not in ("folder", "hf")


def here(name: str, data_root: Path | None, form: PictureForm | None = None) -> DatasetCard:
    """Return the data set's card on this machine: `describe`, with the local files if only sites have the data.

    Raises:
        BadInput: an unknown name, or a site's data do not match the name.
    """
    card = describe(name, form)
    return card.look(_root(card, data_root)) if card.look else card


def configured(name: str, assignments: Sequence[str]) -> str:
    """Return a table's name with the values of ``--set csv.FIELD=VALUE``, a plan's with its digest, others as given."""
    return tables.configured(site_tables.named(name), assignments)


def absolute(name: str) -> str:
    """Return the name with its path made absolute, as client processes have other working folders."""
    if is_table(name) or is_at_sites(name):
        return configured(name, ())
    prefix, _, word = name.partition(":")
    if prefix == "text":
        path, length = text.located(word)
        return f"text:{Path(path).expanduser().absolute()}@{length}"
    if prefix == "folder" and word:
        place, ending = patients.parsed(word)
        path = str(Path(place).expanduser().absolute())
        slash = "/" if patients.parsed(path)[1] else ""  # a folder of this name, without the ending
        return f"folder:{path}{slash}{ending}"
    place, at, column = word.partition("@")
    if place and prefix == "hf" and Path(place).exists():
        return f"{prefix}:{Path(place).expanduser().absolute()}{at}{column}"
    return name


def title(name: str) -> str:
    """Return the short name of a data set: the last part of a path, the whole name on the Hub."""
    if is_table(name):
        return tables.TableName.parse(name).path.stem
    prefix, _, word = name.partition(":")
    if prefix == "text":
        return Path(text.located(word)[0]).stem
    return Path(word).name if prefix == "folder" else word.partition("@")[0] if prefix == "hf" else name


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
        BadInput: there is no network, or a downloaded file is not the published one.
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
        BadInput: an unknown name, or missing files.
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
        how = card.fetch if isinstance(card.fetch, str) else f"python -m flfw.data.download {name}"
        begun = sorted({str(root / Path(file).parts[0]) for file in missing if (root / Path(file).parts[0]).is_dir()})
        if begun and callable(card.fetch):  # fetch takes an existing folder for complete
            how = f"{how}, after removing what is incomplete ({', '.join(begun)})"
        raise BadInput(
            f"Expected {where} with {', '.join(missing)}, got data_root={root} without; "
            f"get the files with {how} (source: {card.source}){way_out}."
        )
    return tuple(root / file for file in card.files)


def load(name: str, data_root: Path | None = None, side: int | None = None, form: PictureForm | None = None) -> Dataset:
    """Load a data set, its images resized to ``side`` x ``side`` pixels (None: as published).

    A user's own pictures are brought to a form, whose side is ``side``.

    The first load on a machine reads the published files (seconds to minutes); it warns when their md5 sums are not the
    published ones. Embedded sets (digits, cancer) need no ``data_root``.

    Raises:
        BadInput: an unknown name, missing or damaged files, a side for rows of features.
    """
    form = replace(form or PictureForm(), side=side)
    card = here(name, data_root, form)
    images = len(card.shape) == 3
    if side is not None and not images:
        raise BadInput(
            f"Expected images to resize to {side} px, got dataset={name} with rows of {card.shape[0]} features; "
            "take a --net for rows, such as mlp."
        )
    if side is not None and side < 1:
        raise BadInput(f"Expected side >= 1 pixel, got side={side}; leave it out for the published size.")
    if card.population:
        return opened.generated(name, card, card.population, side)
    root = _root(card, data_root)
    paths = _present(name, card, root)
    # A user's own images may differ in size, unless they were read without resizing.
    as_published = side is None or (card.root is None and card.shape[1:] == (side, side))
    own = (form,) if is_of_pictures(name) else ()
    key = cache.digest(name, card.classes, "as published" if as_published else side, cache.fingerprint(paths), *own)
    folder = cache.user_cache() / "pixels" / f"{name.partition(':')[0]}-{key}"
    if not folder.exists():
        pixels.convert(name, card, root, None if as_published else side, folder)
    (*arrays, train_domain, test_domain), meta = cache.read_arrays(folder, Arrays._fields[:-2])
    by_patient = meta.get("patients", False)  # files of earlier versions have none
    groups = cache.read_arrays(folder, Arrays._fields[-2:])[0] if by_patient else (None, None)
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
        notes=tuple(meta.get("notes", ())),
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
