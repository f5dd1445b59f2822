"""Images of a user, one folder for each class: ``--dataset folder:PATH``; with patients: ``folder:PATH@patient``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from flfw.data.files import patients
from flfw.data.files.dataset import Arrays, DatasetCard
from flfw.data.readers import images
from flfw.data.readers.images import Example
from flfw.errors import BadInput

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's image extensions, copied: every client process describes the folder and must not import torchvision."""

_LAYOUT = "one folder of images per class, or train and test (or val) with one folder per class each"


def _folders(place: Path) -> list[str]:
    """Return the sorted names of the folders in a folder; an empty list if the path is no folder."""
    return sorted(entry.name for entry in os.scandir(place) if entry.is_dir()) if place.is_dir() else []


def _images(place: Path, label: int) -> list[Example]:
    """Return the images in and below a class's folder, in the order of `torchvision.datasets.ImageFolder`."""
    return [
        (Path(inside) / name, label)
        for inside, _, names in sorted(os.walk(place, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(EXTENSIONS)
    ]


def _by_class(place: Path, classes: Sequence[str], least: int) -> list[list[Example]]:
    """Return the images of each class; refuse a class with fewer than ``least``."""
    examples = [_images(place / name, label) for label, name in enumerate(classes)]
    for name, listed in zip(classes, examples, strict=True):
        if len(listed) < least:
            raise BadInput(
                f"Expected {least} images or more ({', '.join(EXTENSIONS)}) of each class, got {len(listed)} in "
                f"{place / name}; add some or remove the folder."
            )
    return examples


def parts(place: Path, by_patient: bool = False) -> tuple[list[str], list[Example], list[Example]]:
    """Return the classes and the images of the training and the test part, each with the classes in turn.

    Args:
        place: the folder.
        by_patient: whether the images of a class are in folders of patients, who are in one part each.

    Raises:
        BadInput: the folder is laid out otherwise, or a class is short of images.
    """
    parted = _folders(place / "train")
    classes = parted or _folders(place)
    if len(classes) < 2:
        raise BadInput(f"Expected {_LAYOUT}, and two classes or more, got {place} with {', '.join(classes) or 'none'}.")
    if parted:
        other = next((place / part for part in ("test", "val") if _folders(place / part)), None)
        if other is None:
            raise BadInput(f"Expected {_LAYOUT}, got {place / 'train'} without {place / 'test'}; add a test part.")
        if odd := sorted({*classes} ^ {*_folders(other)}):
            raise BadInput(f"Expected the same classes in {place / 'train'} and {other}, got {', '.join(odd)} in one.")
        train, test = (_by_class(part, classes, least=1) for part in (place / "train", other))
    elif by_patient:
        train, test = _by_patient(place, classes, list(chain(*_by_class(place, classes, least=2))))
    else:
        each = _by_class(place, classes, least=2)
        train = [[example for row, example in enumerate(listed) if row % 5 != 1] for listed in each]
        test = [listed[1::5] for listed in each]
    return classes, images.interleaved(chain(*train)), images.interleaved(chain(*test))


def _by_patient(
    place: Path, classes: Sequence[str], listed: Sequence[Example]
) -> tuple[list[list[Example]], list[list[Example]]]:
    """Divide the images by `flfw.data.files.patients.tested`; refuse parts that lack a class."""
    names = _patients(place, listed)
    numbers = np.unique(names, return_inverse=True)[1]
    chosen = patients.tested(np.array([label for _, label in listed]), numbers)
    train = [example for example, test in zip(listed, chosen, strict=True) if not test]
    test = [example for example, test in zip(listed, chosen, strict=True) if test]
    for part, examples in (("training", train), ("test", test)):
        present = {label for _, label in examples}
        if lacking := [name for label, name in enumerate(classes) if label not in present]:
            raise BadInput(
                f"Expected images of every class in both parts, got none of {lacking[0]} in the {part} part of {place} "
                "when every fifth patient is for testing; add patients, or make the folders train and test."
            )
    return [train], [test]


def _patients(part: Path, examples: Iterable[Example]) -> list[str]:
    """Return the name of each image's patient: the first folder below its class; the same in several classes is one."""
    names = []
    for file, _ in examples:
        inside: list[str] = list(Path(file).relative_to(part).parts)
        if len(inside) < 3:
            raise BadInput(
                f"Expected a folder of each patient in {part / inside[0]}, with all images, got {inside[1]} beside or "
                f"without these; put it into its patient's folder or leave {patients.SUFFIX} out."
            )
        names.append(inside[1])
    return names


def groups(place: Path, train: Sequence[Example], test: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Return the patients of the images of both parts, as places in the sorted names of all.

    Raises:
        BadInput: an image is in no patient's folder, or a patient is in both parts.
    """
    parted = bool(_folders(place / "train"))
    other = Path(test[0][0]).relative_to(place).parts[0]
    mine = _patients(place / "train" if parted else place, train)
    theirs = _patients(place / other if parted else place, test)
    if both := sorted({*mine} & {*theirs}):
        raise BadInput(
            f"Expected each patient in one part, got {both[0]} in {place / 'train'} and in {place / other}; move all "
            "images of a patient to one part."
        )
    numbers = np.unique([*mine, *theirs], return_inverse=True)[1].astype(np.int64)
    return numbers[: len(mine)], numbers[len(mine) :]


def _read(
    root: Path, side: int | None, train: list[Example], test: list[Example], channels: int, by_patient: bool
) -> Arrays:
    x, y = images.decode_labelled([*train, *test], side, channels)
    owners = groups(root, train, test) if by_patient else (None, None)
    return Arrays(
        x[: len(train)],
        y[: len(train)],
        x[len(train) :],
        y[len(train) :],
        train_group=owners[0],
        test_group=owners[1],
    )


def folder(path: str) -> DatasetCard:
    """Return the card of ``PATH/CLASS/*.png`` (.jpg, ...), or of ``PATH/train/CLASS`` and ``PATH/test/CLASS`` (or val).

    Labels are places in the sorted names of the classes. The order is the first image of each class, then the second
    of each, and so on. A ``train`` that contains folders is a part; a ``train`` with images only is a class. Without
    parts, every fifth image of a class in the order of names, from the second on, belongs to the test part.

    The first image sets the shape: grey or RGB, height and width. Without a given side, images keep their size, and one
    of another size is refused; with a side, every image is resized. Grey images become RGB if the first is in colour; a
    colour image is refused if the first is grey. Each call lists the folder again, so that added, removed and changed
    images are noticed.

    ``PATH@patient`` stands for ``PATH/CLASS/PATIENT/*.png``: the first folder below a class is a patient's, and no
    patient is in both parts, see `flfw.data.files.patients.tested`. A folder whose own name has this ending is
    ``PATH@patient/``.

    Raises:
        BadInput: there is no such folder, it is laid out otherwise, a class is short of images, or the first image
            cannot be read.
    """
    path, by_patient = patients.parsed(path)
    place = Path(path).expanduser().absolute()
    if not path or not place.is_dir():
        raise BadInput(f"Expected folder:PATH of a folder with {_LAYOUT}, got folder:{path}; no folder is there.")
    classes, train, test = parts(place, by_patient)
    if by_patient:
        groups(place, train, test)  # refuses what is laid out otherwise before an image is read
    shape = images.shape(Path(train[0][0]))
    return DatasetCard(
        shape=shape,
        classes=len(classes),
        files={str(Path(file).relative_to(place)): None for file, _ in [*train, *test]},
        read=partial(_read, train=train, test=test, channels=shape[0], by_patient=by_patient),
        source=f"images in {path}",
        fetch="a folder with one folder of images per class",
        root=place,
        net="cnn1" if shape[0] == 1 else "cnn2",
        split="iid",
    )
