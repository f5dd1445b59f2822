"""Small image files for the tests of the sets that are made of such."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def noise(*shape: int) -> np.ndarray:
    """Pixels of any grey level, always the same for a shape."""
    return np.random.default_rng(shape).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, pixels: np.ndarray, **options: Any) -> Path:
    """An image file of pixels (H, W) or (C, H, W); lossless under any name with ``format="PNG"``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels if pixels.ndim == 2 else pixels.transpose(1, 2, 0)).save(path, **options)
    return path


def truncate(path: Path) -> Path:
    """The file without its end."""
    path.write_bytes(path.read_bytes()[:-30])
    return path
