"""MNIST and the sets published in its file format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import torchvision_set


def _idx(
    folder: str, prefix: str = "", test: str = "t10k", transposed: bool = False
) -> Callable[[Path, int | None], DatasetArrays]:
    """Return a reader of four idx files below ``ROOT/folder/raw``: images (N, 1, H, W) and labels of both parts.

    Args:
        folder: folder of the set.
        prefix: prefix of the file names.
        test: name of the test part in the file names.
        transposed: whether the files store each image column by column, i.e. transposed.
    """

    def read(root: Path, side: int | None) -> DatasetArrays:
        raw = root / folder / "raw"
        images, labels = (
            [_bytes(raw / f"{prefix}{half}-{kind}-ubyte", axes) for half in ("train", test)]
            for kind, axes in (("images-idx3", 3), ("labels-idx1", 1))
        )
        train_x, test_x = ((x.swapaxes(1, 2) if transposed else x)[:, None] for x in images)
        train_y, test_y = (y.astype(np.int64) for y in labels)
        return DatasetArrays(train_x, train_y, test_x, test_y)

    return read


def _bytes(path: Path, axes: int) -> np.ndarray:
    """Read an idx file of bytes: two zeros, 8 for bytes, the number of axes, their sizes, the values."""
    content, start = np.fromfile(path, np.uint8), 4 + 4 * axes
    if content[:4].tolist() != [0, 0, 8, axes]:
        raise ValueError(f"not an idx file of bytes with {axes} axes")
    return content[start:].reshape(content[4:start].view(">u4"))


_card = partial(DatasetCard, shape=(1, 28, 28), mean=(0.1307,), std=(0.3081,))

# torchvision publishes the sums of the packed files; these are the sums of the unpacked files.
MNIST = _card(
    classes=10,
    files={
        "MNIST/raw/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "MNIST/raw/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "MNIST/raw/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "MNIST/raw/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    read=_idx("MNIST"),
    source="http://yann.lecun.com/exdb/mnist",
    licence="none stated by the publishers; the documentation of Keras names CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio and Haffner: Gradient-based learning applied to document recognition. IEEE, 1998",
    fetch=torchvision_set("MNIST"),
    per_client={"dominant": (600, 600), "shards": (500, 0), "pools": (200, 0)},
)

FASHION_MNIST = _card(
    classes=10,
    files={
        "FashionMNIST/raw/train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "FashionMNIST/raw/train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "FashionMNIST/raw/t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "FashionMNIST/raw/t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    read=_idx("FashionMNIST"),
    source="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    citation="Xiao, Rasul and Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
    fetch=torchvision_set("FashionMNIST"),
    per_client={"dominant": (600, 600)},
)

# By class: 10 digits, 26 capital and 26 small letters. The files hold every image transposed.
EMNIST = _card(
    classes=62,
    files=dict.fromkeys(
        f"EMNIST/raw/emnist-byclass-{half}-{kind}-ubyte"
        for half in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ),
    read=_idx("EMNIST", prefix="emnist-byclass-", test="test", transposed=True),
    source="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    citation="Cohen, Afshar, Tapson and van Schaik, EMNIST, arXiv:1702.05373, 2017",
    fetch=torchvision_set("EMNIST", split="byclass"),
    per_client={"dominant": (1000, 600)},
)
