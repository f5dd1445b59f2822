"""Cards of the data sets by name: the published ones, those of a family, and a user's own."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from flfw.data import generated, text
from flfw.data.files import cache, patients
from flfw.data.files.dataset import DatasetCard
from flfw.data.image_files.images import ImageFormat
from flfw.data.readers import adult, at_site, by_domain, cifar, embedded, faces, hub, numerals, table, tiny_imagenet
from flfw.data.tables import names as tables
from flfw.data.tables import site_tables
from flfw.data.tables.names import is_table
from flfw.errors import InputError, unknown
from flfw.plugins import imported

_OWN_CONSTANTS = (
    "Inputs are normalised with the mean and deviation of these very examples, so that each of them changes the "
    "gradients of all others. Use --expert normalise=half or none."
)
OWN_SCALES = (
    "Scales, categories and substitutes for missing values come from these very rows, so that each of them may change "
    "how all others are encoded. Take a plan of the columns that was known beforehand (public = true): state ranges."
)
_CARDS = {
    "adult": adult.ADULT,
    "cancer": embedded.CANCER,
    "cifar10": cifar.CIFAR10,
    "cinic10": cifar.CINIC10,
    "digits": embedded.DIGITS,
    "emnist": numerals.EMNIST,
    "fmnist": numerals.FASHION_MNIST,
    "lfw": faces.LFW,
    "mnist": numerals.MNIST,
    "mnist_m": numerals.MNIST_M,
    "svhn": numerals.SVHN,
    "synthetic_digits": numerals.SYNTHETIC_DIGITS,
    "tiny_imagenet": tiny_imagenet.TINY_IMAGENET,
    "usps": numerals.USPS,
}

_FAMILIES: dict[str, Callable[[str], DatasetCard]] = {
    "celeba": faces.celeba,
    "digit5": numerals.digit5,
    "domainnet": by_domain.domainnet,
    "office_caltech": by_domain.office_caltech,
    "synthetic": generated.synthetic,
    "synthetic_images": generated.synthetic_images,
}
"""Sets with parts, chosen by a word behind a colon, ``digit5:usps,mnist``: name -> card for that word ("": all)."""

_PICTURES: dict[str, Callable[[str, ImageFormat], DatasetCard]] = {"folder": at_site.folder, "site": at_site.site}

_ANYBODYS: dict[str, Callable[[str], DatasetCard]] = {"hf": hub.hub, "text": text.text}
"""Sets that are not published here, ``folder:PATH``: prefix -> card of the set that the word behind the colon names."""

PREFIXES = frozenset((*_FAMILIES, *_ANYBODYS, *_PICTURES, *tables.PREFIXES))
"""Words before a colon that name no module."""


def names() -> tuple[str, ...]:
    """Return the names of the data sets."""
    return tuple(sorted([*_CARDS, *_FAMILIES]))


def describe(name: str, image_format: ImageFormat | None = None) -> DatasetCard:
    """Return the card of a data set; the error for an unknown name lists the known ones.

    Of a table (``csv:``, ``parquet:``) the first call reads the whole file, infers the kinds of its columns and writes
    its arrays to the cache. For pictures in a folder it looks through the folder. A card with ``look`` describes data
    that only sites have: it is made from the name, and no file is opened. A form counts for a user's own pictures
    (``folder:``, ``site:``), and for no other data.
    """
    prefix, _, word = name.partition(":")
    if described := _PICTURES.get(prefix):
        return described(word, image_format or ImageFormat(skip_damaged=True))  # whoever reads the pictures has a form
    if is_table(name):
        return table.table(name)
    if makes := (_FAMILIES | _ANYBODYS).get(prefix):
        return makes(word)
    if word and ("." in prefix or importlib.util.find_spec(prefix)):
        return _outside(name)
    if name not in _CARDS:
        others = "folder:PATH, csv:FILE@TARGET, parquet:FILE@TARGET, text:FILE, hf:NAME, site:CxHxW:CLASSES"
        among = f"a data set among {', '.join(names())}, {others} or package.module:CARD"
        raise unknown(among, f"dataset={name}", name, [*names(), *PREFIXES])
    return _CARDS[name]


def _outside(name: str) -> DatasetCard:
    """Return the card that a user's own module has, for ``package.module:CARD``."""
    card = imported(name, "dataset")
    if not isinstance(card, DatasetCard):
        raise InputError(f"Expected dataset={name} to be a DatasetCard, got {card!r}.")
    return card


def code_of(name: str) -> tuple[str, ...]:
    """Return a digest of the module of ``package.module:CARD``, whose code makes the examples; else nothing."""
    prefix, _, word = name.partition(":")
    file = getattr(sys.modules.get(prefix), "__file__", None) if word and prefix not in PREFIXES else None
    return (cache.fingerprint([Path(file)]), "checked") if file else ()  # earlier arrays were not


def is_at_sites(name: str) -> bool:
    """Return whether each site of a federation has its own data (``site:...``); no file is opened."""
    return name.partition(":")[0] == "site"


def is_of_pictures(name: str) -> bool:
    """Return whether a data set may be made of a user's own image files, to which an `ImageFormat` applies."""
    return name.partition(":")[0] in _PICTURES


def has_public_constants(name: str) -> bool:
    """Return whether a data set's own normalisation constants are known to everybody.

    Those of a user's own images are computed from the very images, so that each of them changes all inputs, and so are
    those of ``package.module:CARD`` if the card names none; likewise the scales and categories of a table, unless the
    plan of its columns says that they are public.
    """
    if has_own_scales(name):
        return False
    prefix, _, word = name.partition(":")
    if word and prefix not in PREFIXES:
        return bool(_outside(name).mean)
    return prefix not in ("folder", "hf")


def has_own_scales(name: str) -> bool:
    """Return whether a table, or that of a card ``package.module:CARD``, has a plan that does not say it is public."""
    prefix, _, word = name.partition(":")
    schema = describe(name).columns if is_table(name) or (word and prefix not in PREFIXES) else None
    return schema is not None and not schema.public


def private_constants(name: str, normalise: str) -> str:
    """Return in sentences which constants of the very examples change all inputs; empty: none do.

    A table's scales are those of its rows whatever the normalisation, as rows are encoded first.
    """
    if has_own_scales(name):
        return OWN_SCALES
    return _OWN_CONSTANTS if normalise == "own" and not has_public_constants(name) else ""


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


def without_folders(name: str) -> str:
    """Return the name as it may be told to other machines: of a path its last part alone.

    >>> without_folders("folder:/home/user/scans"), without_folders("hf:ylecun/mnist"), without_folders("digits")
    ('folder:scans', 'hf:ylecun/mnist', 'digits')
    >>> without_folders("csv:/home/user/stays.csv@cost?columns=/home/user/plan.toml")
    'csv:stays.csv@cost?columns=plan.toml'
    """
    if is_table(name):
        return str(tables.TableName.parse(name).without_folders())
    prefix, colon, word = name.partition(":")
    here = prefix in ("folder", "text", "site") or (prefix == "hf" and word.startswith("/"))
    return f"{prefix}:{Path(word).name}" if colon and here else name
