"""Decoder of image files into one array of pixels, and an order that interleaves their classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from flfw.errors import InputError

if TYPE_CHECKING:  # Every client process imports the cards and this file with them, and none of them decodes.
    from PIL.Image import Image

Example: TypeAlias = tuple[str | Path, int]  # file and label
Crop: TypeAlias = "Callable[[Image], Image]"

_MANY = 2000  # number of images from which a progress bar is shown


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """Open an image file and close it afterwards."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except Exception as error:  # a damaged file can make a decoder raise anything, struct.error and SyntaxError too
        raise InputError(
            f"Expected a readable image, got {path} ({type(error).__name__}: {' '.join(str(error).split())}); "
            "get the file again or take it out."
        ) from error


def _is_deep(image: Image) -> bool:
    """Return whether the grey levels have 16 bits; PIL's own conversion would clip these to 8."""
    return image.mode.startswith("I")


def is_grey(image: Image) -> bool:
    """Return whether the image is grey, or black and white."""
    return image.mode in {"1", "L", "LA"} or _is_deep(image)


def center_square(image: Image, edge: int | None = None) -> Image:
    """Crop the square of ``edge`` x ``edge`` pixels in the middle of an image; None: the largest square."""
    edge = edge or min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    return image.crop((left, top, left + edge, top + edge))


def _pixels(path: Path, side: int | None, crop: Crop | None) -> np.ndarray:
    """Decode the pixels (3, H, W) uint8 of one file."""
    from PIL import Image

    with _opened(path) as image:
        if image.mode == "F":
            raise ValueError("its grey levels are fractions, which have no known range")
        image = plain(image, 3)
        image = crop(image) if crop else image
        if side is not None:
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        return array(image)


def plain(image: Image, channels: int) -> Image:
    """Convert an image to 8 bits, grey (1 channel) or RGB (3); 16-bit grey levels keep their upper 8 bits."""
    from PIL import Image

    if _is_deep(image):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    return image.convert("L" if channels == 1 else "RGB")


def array(image: Image) -> np.ndarray:
    """Return the pixels (C, H, W) uint8 of a `plain` image."""
    return np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)


def _size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[2]}x{pixels.shape[1]}"


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
            raise InputError(
                f"Expected images of one size, got {paths[0]} of {_size(first)} and {paths[row]} of {_size(pixels)} "
                f"pixels; resize them with --image-size {32 if first.shape[2] == 64 else 64}."
            )
        images[row] = pixels

    with ThreadPoolExecutor() as pool:  # PIL releases the interpreter's lock while it decodes and resizes
        for _ in shown(pool.map(place, range(len(paths))), len(paths)):
            pass
    return images


def shown(done: Iterable[None], total: int) -> Iterable[None]:
    """Return ``done``, with a progress bar on a terminal if ``total`` is large."""
    if total <= _MANY:
        return done
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(done, "decoding images", total, console=console, disable=not console.is_terminal)


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
