"""Listing of a folder of pictures with their headers, and its reading as a data set's two parts.

All damaged pictures of a folder are named at once, or they are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from flfw.data.files.dataset import DatasetArrays
from flfw.data.image_files.decoder import decode
from flfw.data.image_files.images import Example, ImageFormat
from flfw.data.image_files.layout import HeaderIndex, groups, parts, survey
from flfw.errors import InputError

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
