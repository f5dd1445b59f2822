"""Decoder of a user's own pictures: what a person sees of a file, 8 bits, grey or RGB, in the wanted form.

Of medical images in DICOM files pydicom reads the picture that a viewer would show, and nothing else of the header.
Stored values become those of the modality (rescale slope and intercept, or the modality's table) and then grey levels
by the first window of the file, or its table of interest; without both, the least value becomes black and the greatest
white. MONOCHROME1, in which small values are bright, is inverted. Colour and palettes become RGB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flfw.data.image_files import decoder, images
from flfw.data.image_files.images import ImageFormat
from flfw.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".dcm", ".dicom")
"""Endings of DICOM files; names without an ending, such as 1.2.840.113619.2, are looked into."""

_PREAMBLE, _MARK = 128, b"DICM"
_NO_SUFFIX = re.compile(r"(?:[^.]+|[\d.]+)")
_GREY = ("MONOCHROME1", "MONOCHROME2")
_FAR = 1e12  # beyond all values, so that a window clips it
_LOOKED_AT = ("Rows", "Columns", "PhotometricInterpretation", "NumberOfFrames", "PatientID")


def is_dicom(path: Path) -> bool:
    """Return whether a file is named as DICOM or, where its name has no ending, begins as such files do."""
    if path.suffix.lower() in SUFFIXES:
        return True
    if not _NO_SUFFIX.fullmatch(path.name):
        return False
    try:
        with path.open("rb") as file:
            return file.read(_PREAMBLE + len(_MARK))[_PREAMBLE:] == _MARK
    except OSError:
        return False


def _pydicom() -> ModuleType:
    """Import pydicom, which says nothing of values that break the standard: they are none of ours."""
    try:
        import pydicom
        import pydicom.config
        import pydicom.pixels
    except ImportError as error:
        raise InputError(
            "Expected pydicom to read DICOM files (.dcm), got none; pip install pydicom, or take the files out."
        ) from error
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    return pydicom


def header(path: Path) -> tuple[bool, int, int, str]:
    """Return whether an image is grey, its height and width, and the patient's identifier, stripped.

    Raises:
        Exception: it is no DICOM file, or one without an image.
    """
    header = _pydicom().dcmread(path, stop_before_pixels=True, specific_tags=list(_LOOKED_AT))
    if "Rows" not in header or "Columns" not in header:
        raise ValueError("it has no image")
    _require_one_frame(header)
    grey = header.get("PhotometricInterpretation", _GREY[1]) in _GREY
    return grey, int(header.Rows), int(header.Columns), str(header.get("PatientID") or "").strip()


def picture(path: Path) -> Image:
    """Return the picture of a file, 8 bits, grey or RGB.

    Raises:
        Exception: it cannot be read; the message says why.
    """
    from PIL import Image as Pillow

    header = _pydicom().dcmread(path)
    _require_one_frame(header)
    stored = _stored_pixels(header)
    kind = str(header.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        coloured = _pydicom().pixels.apply_color_lut(stored, header)
        stored = coloured >> 8 if coloured.dtype == np.uint16 else coloured
    if kind not in _GREY:
        bits = 8 if kind == "PALETTE COLOR" else int(header.BitsStored)
        return Pillow.fromarray((stored >> max(0, bits - 8)).astype(np.uint8)[..., :3])
    shown = _levels(stored, header)
    levels = np.rint(255 * shown).astype(np.uint8)
    return Pillow.fromarray(255 - levels if kind == _GREY[0] else levels)


def _require_one_frame(header: Any) -> None:
    frames = int(header.get("NumberOfFrames") or 1)
    if frames != 1:
        raise ValueError(f"it has {frames} frames: save each as a file of its own")


def _stored_pixels(header: Any) -> np.ndarray:
    """Return the stored values; a compression that no installed decoder reads is named."""
    if "PixelData" not in header:
        raise ValueError("it has no pixels")
    syntax = header.file_meta.TransferSyntaxUID
    try:
        return header.pixel_array
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        if not syntax.is_compressed:
            raise
        raise ValueError(
            f"it is compressed as {syntax.name}, which no decoder here could read: pip install pylibjpeg with its "
            "decoders, or save it uncompressed"
        ) from error


def _levels(stored: np.ndarray, header: Any) -> np.ndarray:
    """Return grey levels in [0, 1]."""
    pixels = _pydicom().pixels
    values = pixels.apply_modality_lut(stored, header)
    if "VOILUTSequence" in header:
        bits = int(header.VOILUTSequence[0].LUTDescriptor[2])
        return np.clip(pixels.apply_voi(values, header) / (2**bits - 1), 0, 1)
    if "WindowCenter" in header and "WindowWidth" in header:
        low, high = (float(end) for end in pixels.apply_windowing(np.array([-_FAR, _FAR]), header))
        return np.clip((pixels.apply_windowing(values, header) - low) / (high - low), 0, 1)
    values = values.astype(np.float64)
    minimum, maximum = float(values.min()), float(values.max())
    return (values - minimum) / (maximum - minimum) if maximum > minimum else np.zeros_like(values)


_FILE = re.compile(r" (<_io\.[^>]*>|'[^']*')$")  # which Pillow names again at the end of its words
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)  # a quarter turn exchanges height and width
_DARK = 64  # upper byte of colours that use 14 of 16 bits or fewer


class ImageHeader(NamedTuple):
    """Header of a picture.

    Attributes:
        grey: whether it has no colours.
        height: as seen, after a turn that the file asks for.
        width: likewise.
        patient: a DICOM file's identifier of the patient; empty: it has none.
        level: the greatest grey level of a file of 16 bits; 0: it has 8.
    """

    grey: bool
    height: int
    width: int
    patient: str = ""
    level: int = 0


def look(path: Path) -> ImageHeader:
    """Return the header of a picture; no pixels are decoded, but those of files of 16 bits, for their scale.

    Raises:
        Exception: it cannot be read; a damaged file can make a decoder raise anything.
    """
    if decoder.is_dicom(path):
        return ImageHeader(*decoder.header(path))
    from PIL import Image

    with path.open("rb") as file, Image.open(file) as image:
        level = grey_level(image)  # first, as a look for the orientation may load a file
        width, height = _seen_size(image)
        return ImageHeader(_is_grey(image), height, width, level=level)


def grey_level(image: Image) -> int:
    """Return the greatest grey level of a picture of 16 bits, else 0; refuse levels that Pillow would lose."""
    if images.is_deep(image):
        levels = np.asarray(image)
        if levels.min() < 0 or levels.max() >= 2**16:
            raise ValueError(f"its grey levels go from {levels.min()} to {levels.max()}: save it with 0 to 65535")
        return int(levels.max())
    # Of colours with 16 bits Pillow reads the upper byte.
    if ";16" in str(getattr(image, "tile", "")) and np.asarray(image.convert("RGB")).max() < _DARK:
        raise ValueError("its colours use few of 16 bits, of which only the upper 8 can be read: save it with 8 bits")
    return 0


def _seen_size(image: Image) -> tuple[int, int]:
    """Return the width and height of an opened picture as a person sees it; Pillow has turned those of TIFF files."""
    turned = image.format != "TIFF" and image.getexif().get(_ORIENTATION) in _TURNED
    return (image.height, image.width) if turned else (image.width, image.height)


def _is_grey(image: Image) -> bool:
    if image.mode == "P":
        colours = np.array(image.getpalette() or [0, 0, 0]).reshape(-1, 3)
        return bool((colours == colours[:, :1]).all())
    return images.is_grey(image) or image.mode == "La"


def pixels(path: Path, image_format: ImageFormat, channels: int) -> np.ndarray:
    """Return the pixels (C, H, W) uint8 of a picture in its form.

    A JPEG file is decoded at a fraction of its size where the form needs no more. Transparent places are white.

    Raises:
        Exception: it cannot be read.
    """
    from PIL import Image, ImageOps

    mode = "L" if channels == 1 else "RGB"
    if decoder.is_dicom(path):
        return images.array(image_format.applied(decoder.picture(path).convert(mode)))
    # By its name Pillow maps an uncompressed TIFF file, with height and width exchanged where it is to be turned.
    with path.open("rb") as file, Image.open(file) as image:
        # A photo of a telephone, MPO, may have a second frame, a preview.
        if image.format != "MPO" and (frames := getattr(image, "n_frames", 1)) > 1:
            raise ValueError(f"it has {frames} frames: save each as a file of its own")
        if image.format in ("JPEG", "MPO"):
            _reduce(image, image_format)
        image.load()
        shown = ImageOps.exif_transpose(image)
    return images.array(image_format.applied(_opaque(shown, channels, image_format.bits or 16).convert(mode)))


def _reduce(image: Image, image_format: ImageFormat) -> None:
    """Let a JPEG file be decoded at the least eighth of its size that the form needs."""
    size = _seen_size(image)
    width, height = image_format.least(*size)
    image.draft(None, (width, height) if size == image.size else (height, width))


def _opaque(image: Image, channels: int, bits: int) -> Image:
    """Return a picture of 8 bits on a white ground."""
    from PIL import Image as Pillow

    if images.is_deep(image) or not image.has_transparency_data:
        return images.plain(image, channels, bits)
    visible = image.convert("RGBA")
    return Pillow.alpha_composite(Pillow.new("RGBA", visible.size, "white"), visible)


Decoded: TypeAlias = tuple[np.ndarray, np.ndarray, dict[int, str]]


def decode(paths: Sequence[Path], image_format: ImageFormat, channels: int, size: tuple[int, int]) -> Decoded:
    """Decode pictures on all cores, each once, with a progress bar on a terminal where there are many.

    It needs the memory of the result and, for each core, of one picture; where some are damaged, twice the result.

    Args:
        paths: the files.
        image_format: form of the pixels.
        channels: 1 or 3.
        size: height and width of all results.

    Returns:
        Pixels (N, C, H, W) uint8 of the files that could be read, in their order; whether each file could be read,
        (M,) bool; and the place of each other file, with the reason.
    """
    result = np.empty((len(paths), channels, *size), np.uint8)
    damaged: dict[int, str] = {}

    def place(row: int) -> None:
        try:
            result[row] = pixels(paths[row], image_format, channels)
        except (MemoryError, InputError):  # neither is the file's fault
            raise
        except Exception as error:  # a damaged file can make a decoder raise anything
            damaged[row] = reason(error)

    images.for_each(place, len(paths))
    read = np.ones(len(paths), bool)
    read[list(damaged)] = False
    return result if read.all() else result[read], read, dict(sorted(damaged.items()))


def reason(error: Exception) -> str:
    """Return why a file cannot be read, in one line."""
    words = _FILE.sub("", " ".join(str(error).split()))
    return f"{type(error).__name__}: {words}"[:200]
