"""CIFAR-10 and CINIC-10, which has CIFAR-10's 60,000 images and 210,000 from ImageNet in its classes and size.

CIFAR-10's pickled batches are read with a restricted unpickler: an unrestricted one may run any code.
"""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import Remote, remotes, torchvision_set
from flfw.data.image_files.images import decode_labelled, interleaved
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
        required = f"{module_name}.{global_name}"
        if required not in _ADMITTED:
            raise InputError(
                f"Expected a CIFAR-10 batch of arrays, text, lists and dicts, got a pickle that asks for {required}; "
                "do not open it elsewhere, download the set anew."
            )
        return _ADMITTED[required]


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


# Victims: of CIFAR-10 lossless even in the project's JPEG-coded copy; the papers' split starts after them.
_card = partial(
    DatasetCard, shape=(3, 32, 32), classes=10, net="cnn2", augment="crop_flip", victims=2000, test_start=500
)

CIFAR10 = _card(
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
    per_client={"dominant": (600, 300), "shards": (400, 0), "pools": (2000, 0)},
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cinic10(root: Path, side: int | None) -> DatasetArrays:
    """Read the images (N, 3, 32, 32) of the parts ``train`` and ``test``, 90,000 each; ``valid`` is not used.

    The papers use the folders' order, class by class. The first 2,000 images, the victims, would then all be airplanes.
    Here the order is the first image of each class, by file name, then the second of each, and so on.
    """
    from torchvision.datasets import ImageFolder

    train, test = (interleaved(ImageFolder(root / "CINIC-10" / part).samples) for part in ("train", "test"))
    return DatasetArrays(*decode_labelled(train, side=None), *decode_labelled(test, side=None))


CINIC10 = _card(
    # One entry per class: a folder's time changes when files are added or removed in it, but not below it.
    files={f"CINIC-10/{part}/{label}": None for part in ("train", "test") for label in _CLASSES},
    read=cinic10,
    source="https://datashare.ed.ac.uk/handle/10283/3192",
    licence="CC BY 4.0, as the copy of Flower Labs states; its images are those of ImageNet and CIFAR-10",
    citation="Darlow, Crowley, Antoniou and Storkey, CINIC-10 is not ImageNet or CIFAR-10, arXiv:1810.03505, 2018",
    fetch=remotes(
        Remote(
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            file="CINIC-10.tar.gz",
            md5="6ee4d0c996905fe93221de577967a372",
            unpack="CINIC-10",
        )
    ),
    per_client={"dominant": (600, 300)},
    mean=(0.47889522, 0.47227842, 0.43047404),
    std=(0.24205776, 0.23828046, 0.25874835),
)
