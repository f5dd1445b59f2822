"""CINIC-10: CIFAR-10's 60,000 images and 210,000 from ImageNet, in CIFAR-10's classes and size."""

from __future__ import annotations

from pathlib import Path

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import Remote, remotes
from flfw.data.image_files.images import decode_labelled, interleaved

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cinic10(root: Path, side: int | None) -> DatasetArrays:
    """Read the images (N, 3, 32, 32) of the parts ``train`` and ``test``, 90,000 each; ``valid`` is not used.

    The papers use the folders' order, class by class. The first 2,000 images, the victims, would then all be airplanes.
    Here the order is the first image of each class, by file name, then the second of each, and so on.
    """
    from torchvision.datasets import ImageFolder

    train, test = (interleaved(ImageFolder(root / "CINIC-10" / part).samples) for part in ("train", "test"))
    return DatasetArrays(*decode_labelled(train, side=None), *decode_labelled(test, side=None))


CINIC10 = DatasetCard(
    shape=(3, 32, 32),
    classes=10,
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
    net="cnn2",
    per_client={"dominant": (600, 300)},
    augment="crop_flip",
    mean=(0.47889522, 0.47227842, 0.43047404),
    std=(0.24205776, 0.23828046, 0.25874835),
    victims=2000,
    test_start=500,
)
