"""CIFAR-10's pickled batches, read with a restricted unpickler: an unrestricted one may run any code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import torchvision_set
from flfw.errors import InputError


def _latin1(text: str, encoding: str) -> bytes:
    """Decode bytes that Python 3 wrote in an old pickle protocol; the real ``_codecs.encode`` would take any codec."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding}")
    return text.encode("latin1")


# Taken from numpy at run time: its module was renamed in numpy 2, and both names occur in files.
_rebuild_array = np.zeros(0).__reduce__()[0]

_ADMITTED = {
    "numpy.core.multiarray._reconstruct": _rebuild_array,
    "numpy._core.multiarray._reconstruct": _rebuild_array,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "_codecs.encode": _latin1,
}


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler of arrays, numbers, text, lists and dicts; anything else raises InputError before it is imported."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the admitted object of that name."""
        wanted = f"{module_name}.{global_name}"
        if wanted not in _ADMITTED:
            raise InputError(
                f"Expected a CIFAR-10 batch of arrays, text, lists and dicts, got a pickle that asks for {wanted}; "
                "do not open it elsewhere, download the set anew."
            )
        return _ADMITTED[wanted]


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the images (N, 3, 32, 32) uint8 and labels (N,) int64 of one file."""
    with path.open("rb") as file:
        entry = ArrayUnpickler(file, encoding="latin1").load()
    return entry["data"].reshape(-1, 3, 32, 32), np.asarray(entry["labels"], dtype=np.int64)


def cifar10(root: Path, side: int | None) -> DatasetArrays:
    """Read the images (N, 3, 32, 32) of the training batches, in order, and of the test batch, the last file."""
    *train, test = (_batch(root / file) for file in CIFAR10.files)
    train_x, train_y = zip(*train, strict=True)
    return DatasetArrays(np.concatenate(train_x), np.concatenate(train_y), *test)


CIFAR10 = DatasetCard(
    shape=(3, 32, 32),
    classes=10,
    files={
        "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
        "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
        "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    },
    read=cifar10,
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated by the publishers",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, technical report, 2009",
    fetch=torchvision_set("CIFAR10"),
    net="cnn2",
    per_client={"dominant": (600, 300), "shards": (400, 0), "pools": (2000, 0)},
    augment="crop_flip",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    # Lossless even in the project's JPEG-coded copy; the pointers of the papers' split start after them.
    victims=2000,
    test_start=500,
)
