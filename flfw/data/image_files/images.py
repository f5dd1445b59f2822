"""Decoder of image files into one array of pixels, and the form that a user's own pictures are brought to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, final

import numpy as np

from flfw.errors import InputError

if TYPE_CHECKING:  # every client process imports this file, and few of them decode
    from PIL.Image import Image

Fit = Literal["auto", "crop", "letterbox", "stretch"]
Colour = Literal["auto", "grey", "rgb"]


@final
@dataclass(frozen=True)
class ImageFormat:
    """Form of the inputs that are made of pictures.

    Attributes:
        side: height and width that the network, or the user, wants; None: any. Pictures are stretched to it.
        size: height and width that pictures are brought to first; None: they keep theirs.
        fit: how a picture of another shape gets that size. crop: it is scaled until it covers the size, and what stands
            out at both ends is cut off; letterbox: it is scaled until it fits in, with black bars beside it; stretch:
            both lengths are scaled by themselves; auto: crop, or stretch where a federation names the size.
        colour: grey: one channel; rgb: three; auto: grey if all pictures are grey.
        skip_damaged: whether pictures that cannot be read are left out, instead of refused.
        bits: bits that grey levels in files of 16 bits use, 8 to 16; 0: as many as all files together need.
    """

    side: int | None = None
    size: tuple[int, int] | None = None
    fit: Fit = "auto"
    colour: Colour = "auto"
    skip_damaged: bool = False
    bits: int = 0

    def channels(self, all_grey: bool) -> int:
        """Return the number of channels of the inputs."""
        return {"grey": 1, "rgb": 3, "auto": 1 if all_grey else 3}[self.colour]

    def applied(self, image: Image) -> Image:
        """Return a picture in this form's size, resized bilinearly, antialiased."""
        from PIL import Image as Pillow
        from PIL import ImageOps

        how = Pillow.Resampling.BILINEAR
        if self.size is not None:
            width_first = self.size[1], self.size[0]
            if self.fit == "stretch":
                image = image.resize(width_first, how)
            elif self.fit == "letterbox":
                image = ImageOps.pad(image, width_first, how, color=0)
            else:
                image = ImageOps.fit(image, width_first, how)
        return image if self.side is None else image.resize((self.side, self.side), how)

    def least(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height to which a picture may be reduced roughly, before it is brought to the form.

        They are twice of what is needed at least, so that the antialiasing has something to average.
        """
        needed = self.size or (self.side and (self.side, self.side))
        if not needed:
            return width, height
        scales = needed[1] / width, needed[0] / height
        scale = 2 * max(scales)
        return min(width, -int(-width * scale // 1)), min(height, -int(-height * scale // 1))


Example: TypeAlias = tuple[str | Path, int]  # file and label
Crop: TypeAlias = "Callable[[Image], Image]"

_MANY = 2000  # number of images from which a progress bar is shown


def is_deep(image: Image) -> bool:
    """Return whether the grey levels have 16 bits; PIL's own conversion would clip these to 8."""
    return image.mode.startswith("I")


def is_grey(image: Image) -> bool:
    """Return whether the image is grey, or black and white."""
    return image.mode in {"1", "L", "LA"} or is_deep(image)


def center_square(image: Image, edge: int | None = None) -> Image:
    """Crop the square of ``edge`` x ``edge`` pixels in the middle of an image; None: the largest square."""
    edge = edge or min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    return image.crop((left, top, left + edge, top + edge))


def _pixels(path: Path, side: int | None, crop: Crop | None) -> np.ndarray:
    """Decode the pixels (3, H, W) uint8 of one file."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            image = plain(opened, 3)
        image = crop(image) if crop else image
        return array(image if side is None else image.resize((side, side), Image.Resampling.BILINEAR))
    except Exception as error:  # a damaged file can make a decoder raise anything, struct.error and SyntaxError too
        raise InputError(
            f"Expected a readable image, got {path} ({type(error).__name__}: {' '.join(str(error).split())}); "
            "get the file again or take it out."
        ) from error


def plain(image: Image, channels: int, bits: int = 16) -> Image:
    """Convert an image to 8 bits, grey (1 channel) or RGB (3); of ``bits`` bits of grey the upper 8 are kept.

    Raises:
        ValueError: its grey levels are fractions.
    """
    from PIL import Image

    if image.mode == "F":
        raise ValueError("its grey levels are fractions, which have no known range")
    if is_deep(image):
        levels = np.asarray(image).clip(0, 2**bits - 1) >> (bits - 8)
        image = Image.fromarray(levels.astype(np.uint8))
    return image.convert("L" if channels == 1 else "RGB")


def array(image: Image) -> np.ndarray:
    """Return the pixels (C, H, W) uint8 of a `plain` image."""
    return np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)


def decode(paths: Sequence[Path], side: int | None, crop: Crop | None = None) -> np.ndarray:
    """Decode image files to RGB (N, 3, H, W) uint8 on all cores, with a progress bar on a terminal.

    Args:
        paths: paths of N files.
        side: side in pixels to resize to, by PIL: bilinear, antialiased; None: no resizing, and all images must have
            one size. Of 16-bit grey levels the upper 8 bits count.
        crop: function that crops each image before it is resized.

    Raises:
        InputError: an image is missing, damaged, or of another size than the first one.
    """
    if not paths:
        return np.empty((0, 3, side or 0, side or 0), dtype=np.uint8)
    first = _pixels(paths[0], side, crop)
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)

    def place(row: int) -> None:
        pixels = _pixels(paths[row], side, crop)
        if pixels.shape != first.shape:
            sizes = [f"{shape[2]}x{shape[1]}" for shape in (first.shape, pixels.shape)]
            raise InputError(
                f"Expected images of one size, got {paths[0]} of {sizes[0]} and {paths[row]} of {sizes[1]} "
                f"pixels; resize them with --image-size {32 if first.shape[2] == 64 else 64}."
            )
        images[row] = pixels

    for_each(place, len(paths))
    return images


def for_each(place: Callable[[int], None], count: int) -> None:
    """Call a function with 0 to ``count - 1`` on all cores, with a progress bar on a terminal if these are many."""
    with ThreadPoolExecutor() as pool:  # PIL releases the interpreter's lock while it decodes and resizes
        done: Iterable[None] = pool.map(place, range(count))
        if count > _MANY:
            from rich.console import Console
            from rich.progress import track

            console = Console(stderr=True)
            done = track(done, "decoding images", count, console=console, disable=not console.is_terminal)
        for _ in done:
            pass


def decode_labelled(
    examples: Sequence[Example], side: int | None, crop: Crop | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Decode N examples to pixels (N, 3, H, W) uint8, as `decode` does, and labels (N,) int64."""
    pixels = decode([Path(path) for path, _ in examples], side, crop)
    return pixels, np.array([label for _, label in examples], dtype=np.int64)


def interleaved(examples: Iterable[Example]) -> list[Example]:
    """Return the first example of each class, then the second of each, and so on, the classes in turn.

    Folders list their files class by class, but a set's first examples (the victims) must mix all classes.

    >>> interleaved([("a", 0), ("b", 0), ("c", 0), ("d", 1), ("e", 1), ("f", 2)])
    [('a', 0), ('d', 1), ('f', 2), ('b', 0), ('e', 1), ('c', 0)]
    """
    turns: defaultdict[int, Iterator[int]] = defaultdict(count)
    return sorted(examples, key=lambda example: (next(turns[example[1]]), example[1]))
