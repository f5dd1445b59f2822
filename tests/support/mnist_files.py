"""Files in MNIST's format."""

from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an array of bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def write_mnist(root: Path, grey: int = 0, folder: str = "MNIST") -> Path:
    """Write three training and two test images of 28 x 28; image i is all ``grey + i``, its label 7 + i."""
    for half, count in (("train", 3), ("t10k", 2)):
        greys = np.arange(grey, grey + count)[:, None, None]
        write_idx(root / folder / "raw" / f"{half}-images-idx3-ubyte", np.tile(greys, (28, 28)))
        write_idx(root / folder / "raw" / f"{half}-labels-idx1-ubyte", np.arange(7, 7 + count))
    return root
