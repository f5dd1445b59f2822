"""Images of a user, one folder for each class: ``--dataset folder:PATH``; with patients: ``folder:PATH@patient``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from flfw.data.files import patients
from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.image_files.images import ImageFormat
from flfw.data.image_files.listing import LAYOUT, Listing, refusal
from flfw.errors import InputError

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
    if listing.headers.damaged and (not image_format.skip_damaged or not listing.headers.sizes):
        raise refusal(location, listing.damaged())
    channels = listing.channels(image_format)
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
        notes=partial(listing.notes, image_format=image_format),
    )
