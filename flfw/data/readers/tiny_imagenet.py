"""Tiny ImageNet: 200 of ImageNet's classes in 64 x 64 pixels."""

from pathlib import Path

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import Remote, remotes
from flfw.data.image_files.images import Example, decode_labelled, interleaved
from flfw.errors import InputError

_FOLDER = "tiny-imagenet-200"


def _val(folder: Path, classes: dict[str, int]) -> list[Example]:
    """Return path and label of each image of ``val``, from its list of annotations."""
    examples = []
    for line in (folder / "val" / "val_annotations.txt").read_text().splitlines():
        file, wnid = line.split("\t")[:2]
        if wnid not in classes:
            raise InputError(
                f"Expected classes of {folder / 'wnids.txt'} in val_annotations.txt, got {wnid} for {file}; "
                "get the set again."
            )
        examples.append((folder / "val" / "images" / file, classes[wnid]))
    return examples


def tiny_imagenet(root: Path, side: int | None) -> DatasetArrays:
    """Read images (N, 3, 64, 64) of ``train``, 100,000, and ``val``, 10,000, as test part: ``test`` has no labels.

    Labels are places in ``wnids.txt``. Grey files become RGB. The order in both parts is the first image of each class,
    then the second of each, and so on, so that the first images mix all classes.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    folder = root / _FOLDER
    classes = {wnid: index for index, wnid in enumerate((folder / "wnids.txt").read_text().split())}
    train = interleaved(make_dataset(folder / "train", classes, IMG_EXTENSIONS))
    test = interleaved(_val(folder, classes))
    return DatasetArrays(*decode_labelled(train, side=None), *decode_labelled(test, side=None))


TINY_IMAGENET = DatasetCard(
    shape=(3, 64, 64),
    classes=200,
    files={
        f"{_FOLDER}/wnids.txt": None,
        f"{_FOLDER}/train": None,
        f"{_FOLDER}/val/images": None,
        f"{_FOLDER}/val/val_annotations.txt": None,
    },
    read=tiny_imagenet,
    source="http://cs231n.stanford.edu",
    licence="the terms of ImageNet: non-commercial research and education",
    citation="Le and Yang, Tiny ImageNet visual recognition challenge, CS 231N, 2015",
    fetch=remotes(
        Remote(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            file="tiny-imagenet-200.zip",
            md5="90528d7ca1a48142e341f4ef8d21d0de",
            unpack=_FOLDER,
        )
    ),
    net="lenet",
    split="pools",
    per_client={"pools": (2000, 0)},
)
