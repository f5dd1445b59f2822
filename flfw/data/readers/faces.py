"""Face data sets: CelebA with one of its attributes as label, and the people of LFW with at least twenty images."""

from functools import partial
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import torchvision_set, unchecked
from flfw.data.image_files.images import center_square, decode_labelled
from flfw.errors import InputError
from flfw.rng import numpy_generator

_ATTRIBUTES = (  # of CelebA, in its order
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair "
    "Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male "
    "Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks "
    "Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace "
    "Wearing_Necktie Young"
)

_SIDE = 32  # pixels, as in DCS^2 and Fed-CDP
_LFW_PEOPLE = 62
_LFW_IMAGES = 20  # least number of images of a person
_LFW_EDGE = 125  # middle pixels of 250: mostly the face


def _celeba(root: Path, side: int | None, attribute: str) -> DatasetArrays:
    """Read the official parts ``train``, 162,770 images, and ``test``, 19,962; ``valid`` is not used."""
    from torchvision.datasets import CelebA

    arrays = []
    for part in ("train", "test"):
        listed = unchecked(CelebA)(root, split=part)
        labels = listed.attr[:, listed.attr_names.index(attribute)].tolist()
        paths = [root / "celeba" / "img_align_celeba" / name for name in listed.filename]
        arrays += decode_labelled(list(zip(paths, labels, strict=True)), side or _SIDE, crop=center_square)
    return DatasetArrays(*arrays)


def celeba(attribute: str) -> DatasetCard:
    """Return the card of CelebA's aligned faces, middle 178 x 178 pixels resized; label 1 with ``attribute``, else 0.

    Args:
        attribute: one of CelebA's 40, such as ``Smiling``; "": ``Male``, its twenty-first, as in DCS^2.

    Raises:
        InputError: there is no such attribute.
    """
    attribute = attribute or "Male"
    if attribute not in (known := _ATTRIBUTES.split()):
        raise InputError(f"Expected an attribute of CelebA among {', '.join(known)}; got celeba:{attribute}.")
    return DatasetCard(
        shape=(3, 32, 32),
        classes=2,
        files={
            "celeba/list_attr_celeba.txt": "75e246fa4810816ffd6ee81facbd244c",
            "celeba/list_eval_partition.txt": "d32c9cbf5e040fd4025c592c306e6668",
            # torchvision reads these with the others.
            "celeba/identity_CelebA.txt": "32bd1bd63d3c78cd57e08160ec5ed1e2",
            "celeba/list_bbox_celeba.txt": "00566efa6fedff7a56946cd1c10f1c16",
            "celeba/list_landmarks_align_celeba.txt": "cc24ecafdb5b50baae59b03474781f8c",
            "celeba/img_align_celeba": None,
        },
        read=partial(_celeba, attribute=attribute),
        source="http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        licence="non-commercial research only",
        citation="Liu, Luo, Wang and Tang, Deep learning face attributes in the wild, ICCV 2015",
        fetch=torchvision_set("CelebA"),
        net="lenet",
        split="pools",
        per_client={"pools": (500, 0)},
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


def lfw(root: Path, side: int | None) -> DatasetArrays:
    """Read funneled faces of the people with at least 20, middle 125 x 125 pixels resized: 2,267 train, 756 test.

    Fed-CDP states "more than 20", but its 62 people and 3,023 images are those with 20 or more. Labels are places in
    the sorted names of these people. The images are shuffled with a fixed seed and cut 3:1.
    """
    from torchvision.datasets import LFWPeople

    listed = unchecked(LFWPeople)(str(root), split="10fold", image_set="funneled")  # it would ask for packed images
    paths = [Path(path) for path in listed.data]
    people, person, images = np.unique([path.parent.name for path in paths], return_inverse=True, return_counts=True)
    kept = images >= _LFW_IMAGES
    if kept.sum() > _LFW_PEOPLE:
        raise InputError(
            f"Expected at most {_LFW_PEOPLE} people with {_LFW_IMAGES} images in {root / 'lfw-py' / 'people.txt'}, "
            f"got {kept.sum()} of {len(people)}; get the published list."
        )
    label = np.cumsum(kept) - 1
    examples = [(path, int(label[number])) for path, number in zip(paths, person, strict=True) if kept[number]]
    order = numpy_generator(0, "lfw cut").permutation(len(examples))
    x, y = decode_labelled([examples[row] for row in order], side or _SIDE, crop=partial(center_square, edge=_LFW_EDGE))
    train = len(x) * 3 // 4
    return DatasetArrays(x[:train], y[:train], x[train:], y[train:])


LFW = DatasetCard(
    shape=(3, 32, 32),
    classes=_LFW_PEOPLE,
    files={
        "lfw-py/people.txt": "450f0863dd89e85e73936a6d71a3474b",
        "lfw-py/lfw-names.txt": "a6d0a479bd074669f656265a6e693f6d",
        "lfw-py/lfw_funneled": None,
    },
    read=lfw,
    source="http://vis-www.cs.umass.edu/lfw",
    citation="Huang, Ramesh, Berg and Learned-Miller, Labeled Faces in the Wild, technical report 07-49, 2007",
    fetch="a copy of people.txt, lfw-names.txt and the unpacked lfw-funneled.tgz in the data root's folder lfw-py",
    net="lenet",
    split="shards",
    per_client={"shards": (300, 0)},
)
