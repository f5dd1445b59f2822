"""Data of one's own: a folder of images, and what the sites of a federation have, on no other machine.

The name ``--dataset site:CxHxW:CLASSES`` or ``site:D:CLASSES`` gives shape and classes to the server and to the user
that submits a run; neither has any of the data. Each site has its own data below its data root: images, in folders as
for ``folder:PATH``, or rows of numbers, in CSV files. They are converted to the named shape. All sites normalise with
mean and deviation 0.5, as the global ones are unknown.

Images of a user have one folder for each class: ``--dataset folder:PATH``; with patients: ``folder:PATH@patient``.
"""

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
from flfw.data.files.dataset import DatasetArrays, DatasetCard, counted
from flfw.data.image_files.images import ImageFormat
from flfw.data.image_files.listing import LAYOUT, Listing
from flfw.data.readers import table
from flfw.data.tables import site_tables
from flfw.data.tables.plan_file import tested
from flfw.errors import InputError, require

NETS: dict[tuple[int, ...], str] = {(1, 28, 28): "cnn1", (3, 32, 32): "cnn2"}
"""Networks that were made for one shape of images; lenet takes any."""


def _read(root: Path, side: int | None, listing: Listing, image_format: ImageFormat, channels: int) -> DatasetArrays:
    return listing.read(replace(image_format, side=side), channels)


def folder(path: str, image_format: ImageFormat) -> DatasetCard:
    """Return the card of ``PATH/CLASS/*.png`` (.jpg, .dcm, ...), or of ``PATH/train/CLASS`` and ``PATH/test/CLASS``.

    Labels are places in the sorted names of the classes. The order is the first image of each class, then the second
    of each, and so on. A ``train`` that contains folders is a part; a ``train`` with images only is a class. Without
    parts, every fifth image of a class in the order of names, from the second on, belongs to the test part. Hidden
    folders and files are neither classes nor images.

    The form says size and colour. Without a size images keep their own, and several are refused. The folder is listed
    again by each call, so that added, removed and changed images are noticed; their headers are read once.

    ``PATH@patient`` stands for ``PATH/CLASS/PATIENT/*.png``: the first folder below a class is a patient's, and no
    patient is in both parts, see `flfw.data.files.patients.tested`. With ``PATH@PatientID`` the headers of DICOM files
    name the patients. A folder whose own name has such an ending is ``PATH@patient/``.

    Raises:
        InputError: there is no such folder, it is laid out otherwise, a class is short of images, or headers of images
            cannot be read and they are not to be skipped.
    """
    path, ending = patients.parsed(path)
    location = Path(path).expanduser().absolute()
    if not path or not location.is_dir():
        raise InputError(f"Expected folder:PATH of a folder with {LAYOUT}, got folder:{path}; no folder is there.")
    listing = Listing.of(location, ending)
    listing.require(image_format)
    channels = image_format.channels(not listing.headers.coloured)
    size = image_format.size or next(iter(listing.headers.sizes.values()))
    shape = (channels, *size)
    made_for = NETS.get(shape, "lenet") if image_format.size else "cnn1" if channels == 1 else "cnn2"
    return DatasetCard(
        shape=shape,
        classes=len(listing.classes),
        files={str(Path(file).relative_to(location)): None for file, _ in [*listing.train, *listing.test]},
        read=partial(_read, listing=listing, image_format=image_format, channels=channels),
        source=f"images in {path}",
        fetch="a folder with one folder of images per class",
        root=location,
        net=made_for,
        split="iid",
        notes=lambda read: (
            *listing.notes(read, image_format),
            *([] if read is None else [counted(read, listing.classes)]),
        ),
    )


SPLIT = "dataset_per_client"
"""The only possible split: each site's clients hold all data of the site."""

_FORM = re.compile(r"(?:([13])x([1-9]\d*)x([1-9]\d*)|([1-9]\d*)):([1-9]\d*)")
_ENDINGS = (".csv",)
_WAY_OUT = "set the site's data root (--data-root, data-root in its node config) or ask for what is there"


def site(word: str, pictures: ImageFormat) -> DatasetCard:
    """Return the card of ``CxHxW:CLASSES``, images of C = 1 (grey) or 3 (RGB) channels, or of ``D:CLASSES``, rows.

    Images are listed and divided into training and test part as by `flfw.data.readers.at_site.folder`. Each is brought
    to H x W pixels, as the form says how, and to grey or RGB. Labels are places in the sorted names of the classes.

    Rows are in ``train.csv`` and ``test.csv``, or in ``rows.csv``; there, every fifth row of a class, from the second
    on, belongs to the test part. A line has D numbers in [0, 1] and the class, 0 to CLASSES - 1, separated by commas;
    there is no header line. With the ending ``@patient`` images are in folders of patients, as for
    ``folder:PATH@patient``, and a line of a table has the patient's number, a whole one >= 0, after the class.

    Raises:
        InputError: the word has neither form.
    """
    if planned := site_tables.parsed(word):
        return _planned(*planned)
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
    unsized = f"no size in --expert own_images, as site:{word} names the size"
    require(pictures.size is None, unsized, own_images=pictures.size)
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


def _planned(width: int, classes: str, digest: str) -> DatasetCard:
    """Return the card of tables with a plan, whose digest is known; no file is opened.

    A site has ``columns.toml``, the plan, in its data root, and ``train`` and ``test`` or ``rows``, as .csv or
    .parquet, which are read as ``csv:FILE@TARGET`` is. Values that a category of the plan does not name count as its
    other values.
    """
    card = DatasetCard(
        shape=(width,),
        classes=1 if classes == "real" else int(classes),
        files={},
        read=table.read,
        source=f"the sites' own rows, which only they have, by the plan of columns {digest}",
        fetch="the site's own, in its data root",
        net="mlp",
        split=SPLIT,
        mean=(0.0,) * width,
        std=(1.0,) * width,
        numbers=classes == "real",
    )
    return replace(card, look=partial(_look_at_table, card=card, digest=digest))


def _look_at_table(root: Path, card: DatasetCard, digest: str) -> DatasetCard:
    """Return the card with the site's rows, and notes on what is read in a doubtful way or does not fit the plan."""
    _require_folder(root)
    site_tables.require_plan(root, digest)
    made = table.table(site_tables.table_name(root))
    assert made.root is not None, "a table lies in the cache"
    _, _, notes, remarks = table.described(made.root)
    notes = [*notes, *(f"{name} is not read" for name in site_tables.unused_files(root))]
    told = tuple(f"{note}." for note in [*notes, *(f"Column {name}: {remark}" for name, remark in remarks.items())])
    return replace(made, source=card.source, fetch=card.fetch, split=SPLIT, labels=digest, notes=lambda _: told)


def _require_folder(root: Path) -> None:
    if not root.is_dir():
        raise InputError(f"Expected data of this site's own in {root}, got no folder there; {_WAY_OUT}.")


def _look(root: Path, card: DatasetCard, image_format: ImageFormat, ending: str) -> DatasetCard:
    """Return the card with the site's files, which are listed again by each call."""
    _require_folder(root)
    if len(card.shape) == 3:
        listing = _listed(root, card.classes, ending)
        listing.require(image_format, at_site=True)
        files, labels = [file for file, _ in [*listing.train, *listing.test]], listing.classes
        card = replace(card, notes=partial(listing.notes, image_format=image_format))
    else:
        files, labels = site_tables.files_of(root, _ENDINGS), [str(label) for label in range(card.classes)]
        for file in files:
            _require_columns(file, card.shape[0], bool(ending))
        unused = tuple(f"{name} is not read." for name in site_tables.unused_files(root, _ENDINGS))
        card = replace(card, notes=lambda _: unused)
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


def _require_columns(path: Path, features: int, by_patient: bool) -> None:
    with path.open(errors="replace") as file:
        columns = "".join(islice(file, 1)).count(",")
    if columns != features + by_patient:
        rest = "a class and a patient" if by_patient else "a class"
        raise InputError(f"Expected lines of {features} numbers and {rest} in {path}, got {columns}; {_WAY_OUT}.")


def _read_rows(root: Path, side: int | None, shape: tuple[int], classes: int, by_patient: bool) -> DatasetArrays:
    read = [_rows(path, shape[0], classes, by_patient) for path in site_tables.files_of(root, _ENDINGS)]
    (train_x, train_y, mine), (test_x, test_y, theirs) = read if len(read) == 2 else _parted(*read[0])
    return DatasetArrays(train_x, train_y, test_x, test_y, train_group=mine, test_group=theirs)


_Rows: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _rows(path: Path, features: int, classes: int, by_patient: bool) -> _Rows:
    """Read the inputs (N, d) float32, labels (N,) int64 and, if asked, patients (N,) int64 of one table."""
    try:
        table = np.loadtxt(path, delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise InputError(f"Expected lines of numbers in {path}, got others: {' '.join(str(error).split())}.") from error
    group = None
    if by_patient:
        table, numbers = table[:, :-1], table[:, -1]
        group = numbers.astype(np.int64)
        if not ((numbers >= 0) & (numbers == group)).all():
            raise InputError(f"Expected a whole number >= 0 of a patient at each line's end in {path}, got another.")
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
