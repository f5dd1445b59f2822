"""Listing of a folder of pictures with their headers, and its reading as a data set's two parts.

All damaged pictures of a folder are named at once, or they are left out and counted.

The layout says which files are pictures, of which class and part, and whose. All headers are read once for each state
of the folder and kept in the user's cache. Every client process describes the folder, and looks only there. A patient's
identifier is not kept: patients are numbered in the order of their identifiers.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np

from flfw.data.files import cache, patients
from flfw.data.files.dataset import DatasetArrays
from flfw.data.image_files import images
from flfw.data.image_files.decoder import ImageHeader, decode, is_dicom, look, reason
from flfw.data.image_files.images import Example, ImageFormat
from flfw.errors import InputError
from flfw.files.typed import read_json

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's image extensions, copied: every client process describes the folder and must not import torchvision."""

LAYOUT = "one folder of images per class, or train and test (or val) with one folder per class each"
_NOBODYS = ("__MACOSX", "@eaDir")
"""Folders of packing programs and of storage devices; they are hidden, like names that begin with a full stop."""

_VERSION = 1  # of what is kept; raise it when headers are read in another way


@final
@dataclass(frozen=True)
class HeaderIndex:
    """Headers of the pictures of a folder.

    Attributes:
        sizes: height and width of each picture that has a header, by its path.
        coloured: number of pictures in colour.
        patients: number of the patient of each DICOM file that names one, by its path.
        damaged: why the others have none, by their paths.
    """

    sizes: Mapping[Path, tuple[int, int]]
    coloured: int
    patients: Mapping[Path, int]
    damaged: Mapping[Path, str]

    def in_words(self) -> str:
        """Describe the sizes: 48x64 to 3000x4000 pixels."""
        minimum, maximum = min(self.sizes.values()), max(self.sizes.values())
        ends = [f"{height}x{width}" for height, width in ([minimum] if minimum == maximum else [minimum, maximum])]
        return f"{' to '.join(ends)} pixels"


def survey(root: Path, files: Sequence[Path]) -> HeaderIndex:
    """Read the headers of the pictures of a folder, if no process has before.

    Args:
        root: the folder.
        files: the pictures in it.
    """
    return _survey(root, tuple(files), cache.digest("survey", _VERSION, cache.fingerprint(files)))


@lru_cache(maxsize=4)
def _survey(root: Path, files: tuple[Path, ...], key: str) -> HeaderIndex:
    path = cache.user_cache() / "surveys" / f"{key}.json"
    if not path.is_file():
        with ThreadPoolExecutor() as pool:
            looks = list(pool.map(_look, files))
        cache.publish(path, partial(_write, json.dumps(_as_rows(looks))))
    rows = read_json(path, list[list[int | str]], f"remove {path}, and it is made again")
    sizes, patients, damaged, coloured = {}, {}, {}, 0
    for file, row in zip(files, rows, strict=True):
        if len(row) == 1:
            damaged[file] = str(row[0])
            continue
        grey, height, width, patient = (int(number) for number in row)
        sizes[file] = height, width
        coloured += not grey
        if patient >= 0:
            patients[file] = patient
    return HeaderIndex(sizes, coloured, patients, damaged)


def _write(text: str, path: Path) -> None:
    path.write_text(text)


def _look(path: Path) -> ImageHeader | str:
    try:
        return look(path)
    except (MemoryError, InputError):
        raise
    except Exception as error:  # a damaged file can make a decoder raise anything
        return reason(error)


def _as_rows(looks: Sequence[ImageHeader | str]) -> list[list[int | str]]:
    """Return a row for each picture: grey, height, width and the patient's number or -1; or why there is no header."""
    names = sorted({one.patient for one in looks if isinstance(one, ImageHeader) and one.patient})
    numbers = {name: number for number, name in enumerate(names)}
    return [
        [one] if isinstance(one, str) else [int(one.grey), one.height, one.width, numbers.get(one.patient, -1)]
        for one in looks
    ]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _NOBODYS


def _folders(path: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones; none if the path is no folder."""
    if not path.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not _is_hidden(entry.name))


def _images(path: Path, label: int) -> list[Example]:
    """Return the images in and below a class's folder, in the order of `torchvision.datasets.ImageFolder`."""
    images = []
    for inside, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        images += [(inside, name) for name in names if not _is_hidden(name) and _is_image(Path(inside, name))]
    return [(Path(inside) / name, label) for inside, name in sorted(images)]


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(EXTENSIONS) or is_dicom(path)


def _by_class(path: Path, classes: Sequence[str], minimum: int) -> list[list[Example]]:
    """Return the images of each class; refuse a class with fewer than ``minimum``."""
    examples = [_images(path / name, label) for label, name in enumerate(classes)]
    for name, listed in zip(classes, examples, strict=True):
        if len(listed) < minimum:
            raise InputError(
                f"Expected {minimum} images or more ({', '.join(EXTENSIONS)}) of each class, got {len(listed)} in "
                f"{path / name}; add some or remove the folder."
            )
    return examples


def parts(path: Path, ending: str = "") -> tuple[list[str], list[Example], list[Example]]:
    """Return the classes and the images of the training and the test part, each with the classes in turn.

    Args:
        path: the folder.
        ending: who names the patients, who are in one part each: `flfw.data.files.patients.SUFFIX`, the first folder
            below a class; ``TAG``, the header of a DICOM file; or nobody.

    Raises:
        InputError: the folder is laid out otherwise, or a class is short of images.
    """
    parted = _folders(path / "train")
    classes = parted or _folders(path)
    if len(classes) < 2:
        raise InputError(f"Expected {LAYOUT}, and two classes or more, got {path} with {', '.join(classes) or 'none'}.")
    if parted:
        other = next((path / part for part in ("test", "val") if _folders(path / part)), None)
        if other is None:
            raise InputError(f"Expected {LAYOUT}, got {path / 'train'} without {path / 'test'}; add a test part.")
        if odd := sorted({*classes} ^ {*_folders(other)}):
            raise InputError(f"Expected the same classes in {path / 'train'} and {other}, got {', '.join(odd)} in one.")
        train, test = (_by_class(part, classes, minimum=1) for part in (path / "train", other))
    elif ending:
        listed = list(chain(*_by_class(path, classes, minimum=2)))
        train, test = _by_patient(path, classes, listed, _patients(path, listed, ending))
    else:
        each = _by_class(path, classes, minimum=2)
        train = [[example for row, example in enumerate(listed) if row % 5 != 1] for listed in each]
        test = [listed[1::5] for listed in each]
    return classes, images.interleaved(chain(*train)), images.interleaved(chain(*test))


def _by_patient(
    path: Path, classes: Sequence[str], listed: Sequence[Example], names: Sequence[str]
) -> tuple[list[list[Example]], list[list[Example]]]:
    """Divide the images by `flfw.data.files.patients.tested`; refuse parts that lack a class."""
    numbers = np.unique(names, return_inverse=True)[1]
    chosen = patients.tested(np.array([label for _, label in listed]), numbers)
    train = [example for example, test in zip(listed, chosen, strict=True) if not test]
    test = [example for example, test in zip(listed, chosen, strict=True) if test]
    for part, examples in (("training", train), ("test", test)):
        present = {label for _, label in examples}
        if lacking := [name for label, name in enumerate(classes) if label not in present]:
            raise InputError(
                f"Expected images of every class in both parts, got none of {lacking[0]} in the {part} part of {path} "
                "when every fifth patient is for testing; add patients, or make the folders train and test."
            )
    return [train], [test]


def _patients(part: Path, examples: Sequence[Example], ending: str) -> list[str]:
    """Return a name of each image's patient; the same in several classes is one."""
    if ending == patients.TAG:
        return _tagged(part, [Path(file) for file, _ in examples])
    names = []
    for file, _ in examples:
        inside: list[str] = list(Path(file).relative_to(part).parts)
        if len(inside) < 3:
            raise InputError(
                f"Expected a folder of each patient in {part / inside[0]}, with all images, got {inside[1]} beside or "
                f"without these; put it into its patient's folder or leave {patients.SUFFIX} out."
            )
        names.append(inside[1])
    return names


def _tagged(part: Path, files: Sequence[Path]) -> list[str]:
    """Return a number of each DICOM file's patient as a word; identifiers are shown to nobody."""
    seen = survey(part, files)
    if lacking := [file for file in files if file not in seen.patients and file not in seen.damaged]:
        raise InputError(
            f"Expected DICOM files with a PatientID in {part}, got {len(lacking)} files without, the first of them "
            f"{lacking[0]}; leave {patients.TAG} out, or make a folder of each patient and take {patients.SUFFIX}."
        )
    return [f"{seen.patients[file]:012d}" if file in seen.patients else str(file) for file in files]


def groups(path: Path, train: Sequence[Example], test: Sequence[Example], ending: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the patients of the images of both parts, as places in the sorted names of all.

    Raises:
        InputError: an image is in no patient's folder, or a patient is in both parts.
    """
    parted = bool(_folders(path / "train"))
    other = Path(test[0][0]).relative_to(path).parts[0]
    if ending == patients.TAG:  # numbers of one survey, of both parts
        names = _tagged(path, [Path(file) for file, _ in [*train, *test]])
        mine, theirs = names[: len(train)], names[len(train) :]
    else:
        mine = _patients(path / "train" if parted else path, train, ending)
        theirs = _patients(path / other if parted else path, test, ending)
    if both := sorted({*mine} & {*theirs}):
        who = f"{len(both)}, whom their headers name" if ending == patients.TAG else both[0]
        raise InputError(
            f"Expected each patient in one part, got {who} in {path / 'train'} and in {path / other}; move all "
            "images of a patient to one part."
        )
    numbers = np.unique([*mine, *theirs], return_inverse=True)[1].astype(np.int64)
    return numbers[: len(mine)], numbers[len(mine) :]


_NAMED = 10


def refusal(root: Path, damaged: Mapping[Path, str], private: bool = False) -> InputError:
    """Return the error for damaged pictures.

    Args:
        root: the folder.
        damaged: why each cannot be read.
        private: whether names and reasons are left out, as a server is told of the error.
    """
    count = f"{len(damaged)} that cannot be read"
    if private:
        return InputError(
            f"Expected readable images at this site, got {count}; python -m flfw.command.rehearse at the site names "
            "them, and "
            "--expert own_images=skip_damaged leaves them out."
        )
    named = "; ".join(f"{path} ({why})" for path, why in list(damaged.items())[:_NAMED])
    more = f"; and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    return InputError(
        f"Expected readable images in {root}, got {count}: {named}{more}. Get these files again, take them out, or "
        "leave them out with --expert own_images=skip_damaged."
    )


def in_words(lost: Mapping[str, int], files: int) -> str:
    """Return a note on the damaged pictures that were left out.

    Args:
        lost: how many of each class, by its name.
        files: number of all pictures.

    >>> in_words({"cat": 2, "dog": 1}, 90)
    'Images that cannot be read were left out: 3 of 90 (2 of cat, 1 of dog).'
    """
    each = ", ".join(f"{count} of {name}" for name, count in lost.items())
    return f"Images that cannot be read were left out: {sum(lost.values())} of {files} ({each})."


@final
@dataclass(frozen=True)
class Listing:
    """Pictures of a folder by part, and their headers.

    Attributes:
        root: the folder.
        classes: names of the classes.
        train: the training images, with the classes in turn.
        test: the test images, likewise.
        ending: who names the patients, as for `parts`.
        headers: all headers.
    """

    root: Path
    classes: Sequence[str]
    train: Sequence[Example]
    test: Sequence[Example]
    ending: str
    headers: HeaderIndex

    @classmethod
    def of(cls, root: Path, ending: str) -> Listing:
        """List a folder.

        Raises:
            InputError: the folder is laid out otherwise, or a class is short of images.
        """
        classes, train, test = parts(root, ending)
        if ending:
            groups(root, train, test, ending)  # refuses what is laid out otherwise before an image is read
        return cls(root, classes, train, test, ending, survey(root, [Path(file) for file, _ in [*train, *test]]))

    def channels(self, image_format: ImageFormat) -> int:
        """Return the number of channels of the inputs."""
        return image_format.channels(not self.headers.coloured)

    def read(self, image_format: ImageFormat, channels: int, private: bool = False) -> DatasetArrays:
        """Decode all pictures.

        Args:
            image_format: form of the inputs; without a size all must have one.
            channels: 1 or 3.
            private: whether a server is told of an error.

        Raises:
            InputError: some are damaged and not to be skipped, all of a class are, or they have several sizes.
        """
        listed = [*self.train, *self.test]
        files, y = [Path(file) for file, _ in listed], np.array([label for _, label in listed], np.int64)
        size = image_format.needed or self._only_size()
        if image_format.side is not None:
            size = (image_format.side, image_format.side)
        decoded = decode(files, image_format, channels, size)
        if decoded.damaged and not image_format.skip_damaged:
            raise refusal(self.root, {files[row]: why for row, why in decoded.damaged.items()}, private)
        read = decoded.read
        trained = np.arange(len(listed)) < len(self.train)
        owners = (None, None)
        if self.ending:
            together = np.concatenate(groups(self.root, self.train, self.test, self.ending))
            owners = together[trained & read], together[~trained & read]
        self._require_classes(y, trained, read)
        first, y = int((trained & read).sum()), y[read]
        return DatasetArrays(
            decoded.pixels[:first],
            y[:first],
            decoded.pixels[first:],
            y[first:],
            train_group=owners[0],
            test_group=owners[1],
        )

    def notes(self, arrays: DatasetArrays, image_format: ImageFormat) -> tuple[str, ...]:
        """Return sentences on how the pictures were read: their sizes before, and how many were left out."""
        notes = []
        if image_format.size is not None and self.headers.sizes:
            how = {"letterbox": "with black bars", "stretch": "stretched"}.get(
                image_format.fit, "scaled and cut in the middle"
            )
            notes.append(
                f"Images of {self.headers.in_words()} were brought to {image_format.size[0]}x{image_format.size[1]} "
                f"({how}); these are what the network sees, and what the audit calls originals."
            )
        held = Counter(label for _, label in [*self.train, *self.test])
        lost = held - Counter([*arrays.train_y.tolist(), *arrays.test_y.tolist()])
        if lost:
            each = {self.classes[label]: count for label, count in sorted(lost.items())}
            notes.append(in_words(each, held.total()))
        return tuple(notes)

    def _require_classes(self, y: np.ndarray, trained: np.ndarray, read: np.ndarray) -> None:
        """Refuse damage that leaves a part without a class."""
        for part, chosen in (("training", trained), ("test", ~trained)):
            if lacking := sorted({*y[chosen].tolist()} - {*y[chosen & read].tolist()}):
                name = self.classes[lacking[0]]
                raise InputError(f"Expected a readable {part} image of each class in {self.root}, got none of {name}.")

    def damaged(self) -> dict[Path, str]:
        """Return why each damaged picture cannot be read: of those with a damaged header, and of all others."""
        if not self.headers.sizes:
            return dict(self.headers.damaged)
        files = [Path(file) for file, _ in [*self.train, *self.test]]
        decoded = decode(files, ImageFormat(size=(1, 1)), 3, (1, 1))
        return {files[row]: why for row, why in decoded.damaged.items()}

    def _only_size(self) -> tuple[int, int]:
        """Return the height and width of all pictures; refuse several."""
        (first, size), *others = self.headers.sizes.items()
        for file, another in others:
            if another != size:
                raise InputError(
                    f"Expected images of one size, got {first} of {size[1]}x{size[0]} and {file} of "
                    f"{another[1]}x{another[0]} pixels; bring them to one with --expert own_images=64 or --image-size "
                    f"{32 if size[1] == 64 else 64}."
                )
        return size
