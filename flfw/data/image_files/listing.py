"""Listing of a folder of pictures with their headers, and its reading as a data set's two parts.

All damaged pictures of a folder are named at once, or they are left out and counted.

The layout says which files are pictures, of which class and part, and whose. All headers are read once for each state
of the folder and kept in the user's cache. Every client process describes the folder, and looks only there. A patient's
identifier is not kept: patients are numbered in the order of their identifiers.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from flfw.data.files import cache, patients
from flfw.data.files.dataset import DatasetArrays
from flfw.data.image_files import images
from flfw.data.image_files.decoder import SUFFIXES, ImageHeader, decode, is_dicom, look, reason
from flfw.data.image_files.images import Example, ImageFormat
from flfw.errors import InputError, alike
from flfw.files.typed import read_json

EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".jpe", ".jfif", ".jif", ".mpo", ".apng",
    ".gif", ".dib", ".pbm", ".pnm", ".tga", ".pcx", ".qoi", ".avif", ".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx",
)  # fmt: skip
"""torchvision's image extensions, then others that Pillow reads. No client process, which describes the folder, may
import torchvision."""

LAYOUT = "one folder of images per class, or train and test (or val) with one folder per class each"
_NOBODYS = ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")
"""What packing programs, storage devices and desktops leave; hidden, like names that begin with a full stop."""

_PARTS = re.compile(
    "(?P<train>train|training)|(?P<test>test|testing|eval|evaluation)|(?P<val>val|valid|validation|dev)"
)
"""Words for parts in the names of folders, those of Hugging Face's data sets."""

_VERSION = 2  # of what is kept; raise it when headers are read in another way


@final
@dataclass(frozen=True)
class HeaderIndex:
    """Headers of the pictures of a folder.

    Attributes:
        sizes: height and width of each picture that has a header, by its path.
        coloured: number of pictures in colour.
        patients: number of the patient of each DICOM file that names one, by its path.
        damaged: why the others have none, by their paths.
        bits: bits that the grey levels of all files of 16 bits together need, 8 to 16; 0: there are no such files.
    """

    sizes: Mapping[Path, tuple[int, int]]
    coloured: int
    patients: Mapping[Path, int]
    damaged: Mapping[Path, str]
    bits: int = 0

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
    read = {file: [int(number) for number in row] for file, row in zip(files, rows, strict=True) if len(row) > 1}
    level = max((row[4] for row in read.values()), default=0)
    return HeaderIndex(
        {file: (row[1], row[2]) for file, row in read.items()},
        sum(not row[0] for row in read.values()),
        {file: row[3] for file, row in read.items() if row[3] >= 0},
        {file: str(row[0]) for file, row in zip(files, rows, strict=True) if len(row) == 1},
        max(8, level.bit_length()) if level else 0,
    )


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
    """Return a row for each picture: grey, height, width, patient's number or -1, level; or why there is no header."""
    names = sorted({one.patient for one in looks if isinstance(one, ImageHeader) and one.patient})
    numbers = {name: number for number, name in enumerate(names)}
    return [
        [one] if isinstance(one, str) else [int(one.grey), *one[1:3], numbers.get(one.patient, -1), one.level]
        for one in looks
    ]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _NOBODYS


def _folders(path: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones; none if the path is no folder."""
    if not path.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not _is_hidden(entry.name))


def _files(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the folder and the name of each file in and below a folder, without hidden ones."""
    for inside, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        yield from ((inside, name) for name in names if not _is_hidden(name))


def _images(path: Path, label: int) -> list[Example]:
    """Return the images in and below a class's folder, in the order of `torchvision.datasets.ImageFolder`."""
    files = [file for file in _files(path) if file[1].lower().endswith(EXTENSIONS) or is_dicom(Path(*file))]
    return [(Path(*file), label) for file in sorted(files)]


def _kind(name: str) -> str:
    """Return a file's ending, of 4 letters and digits at most, as a longer one may be part of a person's name."""
    ending = re.search(r"\.(?=\d*[a-z])[a-z\d]{1,4}$", name.lower())
    kind = ending[0] if ending else "of other kinds"
    return f"{kind} in no class's folder" if kind in (*EXTENSIONS, *SUFFIXES) else kind


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


class Layout(NamedTuple):
    """Folders of the classes: of the training part; of the test part, or the same; of a part that is not used."""

    train: Path
    test: Path
    unused: Sequence[Path] = ()


def layout(root: Path) -> Layout:
    """Tell parts from classes. The test part is the one for validation where there is no other.

    Raises:
        InputError: parts are incomplete, or several folders may be one.
    """
    names = _folders(root)
    said = {part: [one for one in names if _part(one) == part and _folders(root / one)] for part in _PARTS.groupindex}
    found = {part: [one for one in told if _PARTS.fullmatch(one.casefold())] or told for part, told in said.items()}
    train, test = found["train"], found["test"] or found["val"]
    if len(train) == len(test) == 1:
        return Layout(root / train[0], root / test[0], [root / name for name in found["val"] if found["test"]])
    sure = [name for name in (*train, *test) if _PARTS.fullmatch(name.casefold())]
    alone = any(name in train or {*_folders(root / name)} <= {*names} for name in sure)
    if alone or sum(map(bool, found.values())) > 1 or (names and all(map(_part, names))):
        raise InputError(f"Expected {LAYOUT}, got {root} with {', '.join(names)}; add parts, or rename classes.")
    return Layout(root, root)


def _part(name: str) -> str:
    """Return the part that a folder's name says, as of ``Training`` or ``test_images``; empty: none, or several."""
    words = map(_PARTS.fullmatch, re.split(r"[\W\d_]+", name.casefold()))
    said = {word.lastgroup or "" for word in words if word}
    return said.pop() if len(said) == 1 else ""


def parts(layout: Layout, ending: str = "") -> tuple[list[str], list[Example], list[Example]]:
    """Return the classes and the images of the training and the test part, each with the classes in turn.

    Args:
        layout: the folders.
        ending: who names the patients, who are in one part each: `flfw.data.files.patients.SUFFIX`, the first folder
            below a class; ``TAG``, the header of a DICOM file; or nobody.

    Raises:
        InputError: the folder is laid out otherwise, or a class is short of images.
    """
    path, other = layout.train, layout.test
    classes = _folders(path)
    if len(classes) < 2:
        raise InputError(f"Expected {LAYOUT}, and two classes or more, got {path} with {', '.join(classes) or 'none'}.")
    if other != path:
        if odd := sorted({*classes} ^ {*_folders(other)}):
            raise InputError(f"Expected the same classes in {path} and {other}, got {', '.join(odd)} in one.")
        train, test = (_by_class(part, classes, minimum=1) for part in (path, other))
    elif ending:
        listed = list(chain(*_by_class(path, classes, minimum=2)))
        train, test = _by_patient(path, classes, listed, _patients(layout, listed, ending))
    else:
        each = _by_class(path, classes, minimum=2)
        train = [[example for row, example in enumerate(listed) if row % 5 != 1] for listed in each]
        test = [listed[1::5] for listed in each]
    same = {*_folders(path / classes[0])}.intersection(*(_folders(path / name) for name in classes[1:]))
    directly = (file for file, _ in chain(*train) if Path(file).parent.parent == path)
    if len(same) > 1 and ending != patients.SUFFIX and not any(directly):  # the inner folders may be the classes
        got = f"{', '.join(classes)} in {path}, each with {len(same)} folders of the same names"
        raise InputError(
            f"Expected a folder of images per class, got {got}; if these are patients, end the data set's name with "
            f"{patients.SUFFIX}; if they are the classes, exchange the levels, or call the outer ones train and test."
        )
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


def _patients(layout: Layout, examples: Sequence[Example], ending: str) -> list[str]:
    """Return a name of each image's patient; the same in several classes is one."""
    if ending == patients.TAG:
        return _tagged(layout.train, [Path(file) for file, _ in examples])
    names = []
    for file, _ in examples:
        part = layout.train if Path(file).is_relative_to(layout.train) else layout.test
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


_NAMED = 10
_DARK, _LOOKED_AT = 32, 256


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


@final
@dataclass(frozen=True)
class Listing:
    """Pictures of a folder by part, and their headers.

    Attributes:
        root: the folder.
        layout: the folders of its parts.
        classes: names of the classes.
        train: the training images, with the classes in turn.
        test: the test images, likewise.
        ending: who names the patients, as for `parts`.
        headers: all headers.
    """

    root: Path
    layout: Layout
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
        found = layout(root)
        classes, train, test = parts(found, ending)
        files = [Path(file) for file, _ in [*train, *test]]
        if lost := sum(not file.exists() for file in files):
            raise InputError(f"Expected files in {root}, got {lost} links to none; get these, or remove the links.")
        listing = cls(root, found, classes, train, test, ending, survey(root, files))
        if ending:
            listing.groups()  # refuses what is laid out otherwise before an image is read
        return listing

    def groups(self) -> np.ndarray:
        """Return the patients of the images of both parts, as places in the sorted names of all.

        Raises:
            InputError: an image is in no patient's folder, or a patient is in both parts.
        """
        names, count = _patients(self.layout, [*self.train, *self.test], self.ending), len(self.train)
        if both := sorted({*names[:count]} & {*names[count:]}):
            who = f"{len(both)}, whom their headers name" if self.ending == patients.TAG else both[0]
            raise InputError(
                f"Expected each patient in one part, got {who} in {self.layout.train} and in {self.layout.test}; move "
                "all images of a patient to one part."
            )
        return np.unique(names, return_inverse=True)[1].astype(np.int64)

    def require(self, image_format: ImageFormat, at_site: bool = False) -> None:
        """Refuse damaged headers and an unclear scale.

        Args:
            image_format: form of the inputs.
            at_site: whether a server is told of an error. A site's files may not decide on the scale, as others differ.

        Raises:
            InputError: headers cannot be read and are not to be skipped, grey levels of 16 bits exceed the bits of the
                form, or a site's use fewer than 16 and nobody named them.
        """
        if self.headers.damaged and (not image_format.skip_damaged or not self.headers.sizes):
            raise refusal(self.root, self.damaged(), private=at_site)
        used, bits = self.headers.bits, image_format.bits
        if used > (bits or 16) or (at_site and not bits and 0 < used < 16):
            raise InputError(
                f"Expected grey levels of {bits or 16} bits in files of 16 in {self.root}, got {used}; with --expert "
                f"own_images={used}bits {2**used - 1} is white in all files, at every site."
            )

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
        side = image_format.side
        size = (side, side) if side else image_format.size or self._only_size()
        form = replace(image_format, bits=image_format.bits or self.headers.bits)
        x, read, damaged = decode(files, form, channels, size)
        if damaged and not image_format.skip_damaged:
            raise refusal(self.root, {files[row]: why for row, why in damaged.items()}, private)
        trained = np.arange(len(listed)) < len(self.train)
        owners = (None, None)
        if self.ending:
            together = self.groups()
            owners = together[trained & read], together[~trained & read]
        self._require_classes(y, trained, read)
        first, y = int((trained & read).sum()), y[read]
        return DatasetArrays(x[:first], y[:first], x[first:], y[first:], train_group=owners[0], test_group=owners[1])

    def account(self) -> list[str]:
        """Return a line for each class with its pictures in each part, then sentences on what was read and left out.

        All pictures are decoded, at a small size.

        Raises:
            InputError: all pictures of a class are damaged.
        """
        try:
            read = self.read(ImageFormat(size=(32, 32), skip_damaged=True), 3)
        except InputError as error:
            raise InputError(f"{error} {refusal(self.root, self.damaged())}") from error
        shown, widest = [read.train_x, read.test_x], max(len("class"), *map(len, self.classes))
        parts = [np.bincount(part, minlength=len(self.classes)).tolist() for part in (read.train_y, read.test_y)]
        rows = zip(self.classes, *parts, strict=True)
        lines = [f"{'class':<{widest}}  training  test", *(f"{n:<{widest}}  {a:>8,}  {b:>4,}" for n, a, b in rows)]
        count, coloured = len(read.train_y) + len(read.test_y), self.headers.coloured
        tones = (
            "grey"
            if not coloured
            else "in colour"
            if coloured == len(self.headers.sizes)
            else f"{coloured:,} in colour, others grey"
        )
        levels = f"levels {min(int(x.min()) for x in shown)} to {max(int(x.max()) for x in shown)} of 255"
        lines.append(f"{count:,} pictures of {self.headers.in_words()}, {tones}, {levels} after scaling to 32x32.")
        if self.ending:
            owners = np.concatenate([part for part in (read.train_group, read.test_group) if part is not None])
            lines.append(f"{len(np.unique(owners)):,} patients, each in one part.")
        lines += self.notes(read, ImageFormat(skip_damaged=True))
        damaged = self.damaged() if len(read.train_y) + len(read.test_y) < len(self.train) + len(self.test) else {}
        return [*lines, *(f"{path}: {why}" for path, why in damaged.items())]

    def notes(self, arrays: DatasetArrays | None, image_format: ImageFormat) -> tuple[str, ...]:
        """Return sentences on how the pictures are read, and on what is left out; they name no file.

        Args:
            arrays: the pictures that were read; None: none so far.
            image_format: form of the inputs.
        """
        (train, test, unused), bits, size, notes = self.layout, self.headers.bits, image_format.size, []
        if train != test and (train.name, test.name) != ("train", "test"):
            notes.append(f"{train.name} is the training part, {test.name} the test part.")
        third = [example for part in unused for example in _images(part, 0)]
        if unused:
            notes.append(f"{', '.join(part.name for part in unused)} with {len(third)} images is not used.")
        if train == test and (odd := [name for name in self.classes if _part(name)]):
            notes.append(f"Read as classes, not as parts: {', '.join(odd)}.")
        if same := alike(self.classes):
            notes.append(f"Classes {same}.")
        examples = [Path(file) for file, _ in [*self.train, *self.test]]
        names = {(file.parent, file.stem) for file in examples}
        twins = len(examples) - len(names) + sum((folder, name.rpartition("_")[0]) in names for folder, name in names)
        if twins:
            notes.append(f"{twins} images are named as others, like x_mask.png beside x.png: each is an example.")
        shown = (arrays.train_x, arrays.test_x) if arrays and not bits else ()
        if shown and (brightest := max(int(x[:_LOOKED_AT].max()) for x in shown)) < _DARK:
            notes.append(f"The brightest level of the first {_LOOKED_AT} images of a part is {brightest} of 255.")
        used = Counter(_kind(str(file)) for file in [*examples, *(file for file, _ in third)])
        if others := Counter(sorted(_kind(name) for _, name in _files(self.root))) - used:
            each = ", ".join(f"{count} {kind}" for kind, count in others.most_common())
            notes.append(f"{others.total()} file{'s are' if others.total() > 1 else ' is'} not read: {each}.")
        if 0 < bits < 16 and not image_format.bits:
            notes.append(f"Grey levels of 16 bits use {bits}: {2**bits - 1} is white (--expert own_images={bits}bits).")
        if size is not None and {*self.headers.sizes.values()} - {size}:
            fits = {"letterbox": "with black bars", "stretch": "stretched"}
            notes.append(
                f"Images of {self.headers.in_words()} were brought to {size[0]}x{size[1]} "
                f"({fits.get(image_format.fit, 'scaled and cut in the middle')}); these are what the network sees, and "
                "what the audit calls originals."
            )
        held = Counter(label for _, label in [*self.train, *self.test])
        if arrays and (lost := held - Counter([*arrays.train_y.tolist(), *arrays.test_y.tolist()])):
            each = ", ".join(f"{count} of {self.classes[label]}" for label, count in sorted(lost.items()))
            notes.append(f"Images that cannot be read were left out: {lost.total()} of {held.total()} ({each}).")
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
        return {files[row]: why for row, why in decode(files, ImageFormat(size=(1, 1)), 3, (1, 1))[2].items()}

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
