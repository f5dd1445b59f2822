"""Data of the sites of a federation, on no other machine: ``--dataset site:CxHxW:CLASSES`` or ``site:D:CLASSES``.

The name gives shape and classes to the server and to the user that submits a run; neither has any of the data. Each
site has its own data below its data root: images, in folders as for ``folder:PATH``, or rows of numbers, in CSV files.
They are converted to the named shape. All sites normalise with mean and deviation 0.5, as the global ones are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np

from flfw.data.files import patients
from flfw.data.files.cache import digest
from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.image_files.images import ImageFormat
from flfw.data.image_files.listing import Listing, refusal
from flfw.data.readers.folder import NETS
from flfw.data.tables import site_tables
from flfw.data.tables.plan_file import tested
from flfw.errors import InputError, require

SPLIT = "dataset_per_client"
"""The only possible split: each site's clients hold all data of the site."""

_FORM = re.compile(r"(?:([13])x([1-9]\d*)x([1-9]\d*)|([1-9]\d*)):([1-9]\d*)")
_ALL, _PARTS = "rows.csv", ("train.csv", "test.csv")
_WAY_OUT = "set the site's data root (--data-root, data-root in its node config) or ask for what is there"


def site(word: str, pictures: ImageFormat) -> DatasetCard:
    """Return the card of ``CxHxW:CLASSES``, images of C = 1 (grey) or 3 (RGB) channels, or of ``D:CLASSES``, rows.

    Images are listed and divided into training and test part as by `flfw.data.readers.folder.folder`. Each is brought
    to H x W pixels, as the form says how, and to grey or RGB. Labels are places in the sorted names of the classes.

    Rows are in ``train.csv`` and ``test.csv``, or in ``rows.csv``; there, every fifth row of a class, from the second
    on, belongs to the test part. A line has D numbers in [0, 1] and the class, 0 to CLASSES - 1, separated by commas;
    there is no header line. With the ending ``@patient`` images are in folders of patients, as for
    ``folder:PATH@patient``, and a line of a table has the patient's number, a whole one >= 0, after the class.

    Raises:
        InputError: the word has neither form.
    """
    if site_tables.is_planned(word):
        return site_tables.site_table(word, SPLIT)
    form, ending = patients.parsed(word)
    parsed = _FORM.fullmatch(form)
    if not parsed or int(parsed[5]) < 2:
        raise InputError(
            "Expected site:CxHxW:CLASSES, of images with C = 1 or 3 channels, or site:D:CLASSES, of rows of D numbers, "
            f"and two classes or more, got site:{word}; for example site:1x28x28:10."
        )
    shape = tuple(int(number) for number in parsed.groups()[:4] if number)
    classes, image = int(parsed[5]), len(shape) == 3
    require(image or ending != patients.TAG, f"site:CxHxW:CLASSES{patients.TAG}, of DICOM files", dataset=word)
    require(
        pictures.size is None,
        f"no size in --expert own_images, as site:{word} names the size",
        own_images=pictures.size,
    )
    named = replace(
        pictures,
        size=(shape[1], shape[2]) if image else None,
        fit="stretch" if pictures.fit == "auto" else pictures.fit,
        colour="grey" if shape[0] == 1 else "rgb",
    )
    card = DatasetCard(
        shape=shape,
        classes=classes,
        files={},
        read=partial(_read_images, image_format=named, classes=classes, ending=ending)
        if image
        else partial(_read_rows, shape=(shape[0],), classes=classes, by_patient=bool(ending)),
        source=f"the sites' own {'images' if image else 'rows'}, which only they have; normalised with 0.5 and 0.5",
        fetch="the site's own, in its data root",
        net=NETS.get(shape, "lenet") if image else "mlp",
        split=SPLIT,
        mean=(0.5,) * shape[0],
        std=(0.5,) * shape[0],
    )
    return replace(card, look=partial(_look, card=card, image_format=named, ending=ending))


def _look(root: Path, card: DatasetCard, image_format: ImageFormat, ending: str) -> DatasetCard:
    """Return the card with the site's files, which are listed again by each call."""
    if not root.is_dir():
        raise InputError(f"Expected data of this site's own in {root}, got no folder there; {_WAY_OUT}.")
    if len(card.shape) == 3:
        listing = _listed(root, card.classes, ending)
        if listing.headers.damaged and (not image_format.skip_damaged or not listing.headers.sizes):
            raise refusal(root, listing.damaged(), private=True)
        files, labels = [file for file, _ in [*listing.train, *listing.test]], listing.classes
    else:
        files, labels = _tables(root), [str(label) for label in range(card.classes)]
        for file in files:
            _require_columns(file, card.shape[0], bool(ending))
    return replace(card, files={str(Path(file).relative_to(root)): None for file in files}, labels=digest(*labels))


# --- images -------------------------------------------------------------------------------------------------------


def _listed(root: Path, classes: int, ending: str) -> Listing:
    listing = Listing.of(root, ending)
    if len(listing.classes) != classes:
        raise InputError(
            f"Expected {classes} classes, a folder of images each, got {len(listing.classes)} in {root}; {_WAY_OUT}, "
            "with as many classes at every site."
        )
    return listing


def _read_images(root: Path, side: int | None, image_format: ImageFormat, classes: int, ending: str) -> DatasetArrays:
    """Read a site's images; if the network wants another size than the named one, they are brought to it directly."""
    direct = image_format if side is None else replace(image_format, size=(side, side))
    return _listed(root, classes, ending).read(replace(direct, side=None), image_format.channels(False), private=True)


# --- rows ---------------------------------------------------------------------------------------------------------


def _tables(root: Path) -> list[Path]:
    """Return the path of the single table, or the paths of the two parts."""
    parts = [root / name for name in _PARTS]
    if all(path.is_file() for path in parts):
        return parts
    if (root / _ALL).is_file():
        return [root / _ALL]
    raise InputError(f"Expected {' and '.join(_PARTS)}, or {_ALL}, got {root} without; {_WAY_OUT}.")


def _require_columns(path: Path, features: int, by_patient: bool) -> None:
    with path.open(errors="replace") as file:
        columns = "".join(islice(file, 1)).count(",")
    if columns != features + by_patient:
        rest = "a class and a patient" if by_patient else "a class"
        raise InputError(f"Expected lines of {features} numbers and {rest} in {path}, got {columns}; {_WAY_OUT}.")


def _read_rows(root: Path, side: int | None, shape: tuple[int], classes: int, by_patient: bool) -> DatasetArrays:
    read = [_rows(path, shape[0], classes, by_patient) for path in _tables(root)]
    (train_x, train_y, mine), (test_x, test_y, theirs) = read if len(read) == 2 else _parted(*read[0])
    return DatasetArrays(train_x, train_y, test_x, test_y, train_group=mine, test_group=theirs)


_Rows: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _rows(path: Path, features: int, classes: int, by_patient: bool) -> _Rows:
    """Read the inputs (N, d) float32, labels (N,) int64 and, if asked, patients (N,) int64 of one table."""
    try:
        table = np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise InputError(
            f"Expected lines of numbers in {path}, got another: {' '.join(str(error).split())}."
        ) from error
    group = None
    if by_patient:
        table, numbers = table[:, :-1], table[:, -1]
        group = numbers.astype(np.int64)
        if not ((numbers >= 0) & (numbers == group)).all():
            raise InputError(
                f"Expected a whole number >= 0 of a patient at the end of each line of {path}, got another."
            )
    x, y = table[:, :-1], table[:, -1]
    fits = np.concatenate([(x >= 0) & (x <= 1), ((y >= 0) & (y < classes) & (y == np.floor(y)))[:, None]], axis=1)
    if x.shape[1] != features or not fits.all():
        line = int(np.argmin(fits.all(axis=1))) + 1
        raise InputError(
            f"Expected lines of {features} numbers in [0, 1] and a class of 0 to {classes - 1} in {path}, got another "
            f"in line {line}; scale the numbers, alike at every site."
        )
    return x.astype(np.float32), y.astype(np.int64), group


def _parted(x: np.ndarray, y: np.ndarray, group: np.ndarray | None) -> Sequence[_Rows]:
    """Divide one table into training and test part: every fifth row of a class, from the second on, is for testing.

    With patients it is every fifth patient, see `flfw.data.files.patients.tested`.
    """
    chosen = tested(y, group, by_class=True)
    return [(x[rows], y[rows], None if group is None else group[rows]) for rows in (~chosen, chosen)]
