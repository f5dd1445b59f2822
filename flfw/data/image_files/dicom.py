"""Medical images in DICOM files, read by pydicom: the picture that a viewer would show, and nothing else of the header.

Stored values become those of the modality (rescale slope and intercept, or the modality's table) and then grey levels
by the first window of the file, or its table of interest; without both, the least value becomes black and the greatest
white. MONOCHROME1, in which small values are bright, is inverted. Colour and palettes become RGB.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

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
    stored = _pixels(header)
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


def _pixels(header: Any) -> np.ndarray:
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
