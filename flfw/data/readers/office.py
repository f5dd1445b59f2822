"""Office-Caltech10: ten classes of office objects in images of shops, of Caltech-256 and of two cameras."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.readers import by_domain
from flfw.errors import InputError

_FOLDER = "office_caltech_10"
_DOMAINS = ("amazon", "caltech", "dslr", "webcam")
_CLASSES = 10


def _read(root: Path, side: int | None, domains: tuple[str, ...]) -> DatasetArrays:
    """Read images (N, 3, side, side) of ``DOMAIN/CLASS/*.jpg``; labels are places in the sorted class names."""
    from torchvision.datasets import ImageFolder

    listed = [ImageFolder(root / _FOLDER / domain) for domain in domains]
    for domain, images in zip(domains, listed, strict=True):
        odd = {*images.classes} ^ {*listed[0].classes}
        if odd or len(images.classes) != _CLASSES:
            raise InputError(
                f"Expected the same {_CLASSES} classes in every domain of {root / _FOLDER}, got {len(images.classes)} "
                f"in {domain} (in it or in {domains[0]} alone: {', '.join(sorted(odd)) or 'none'}); rename or remove "
                "the folders that do not belong."
            )
    numbers = [_DOMAINS.index(domain) for domain in domains]
    return by_domain.halves([images.samples for images in listed], side, "office cut", numbers)


def office_caltech(word: str) -> DatasetCard:
    """Return the card of the domains listed in ``word``, ``amazon,webcam``; "": all four.

    Each domain is shuffled with a fixed seed and cut into halves, one for training and one for testing. FedCG trains on
    50 %, validates on 25 % and tests on 25 %: the latter two are the halves of this test part.

    Raises:
        InputError: there is no such domain.
    """
    domains = by_domain.chosen("office_caltech", word, _DOMAINS)
    return DatasetCard(
        shape=(3, 32, 32),
        classes=_CLASSES,
        files={f"{_FOLDER}/{domain}": None for domain in domains},
        read=partial(_read, domains=domains),
        source="Saenko et al., ECCV 2010; Griffin et al., Caltech-256; Gong et al., CVPR 2012",
        citation="Gong, Shi, Sha and Grauman, Geodesic flow kernel for unsupervised domain adaptation, CVPR 2012",
        fetch=(
            "a copy of http://www.stat.ucla.edu/~jxie/iFRAME/code/imageClassification.rar, unpacked as "
            f"{_FOLDER}/DOMAIN/CLASS/*.jpg below the data root"
        ),
        net="lenet5",
        split="domains",
        mean=by_domain.IMAGENET_MEAN,
        std=by_domain.IMAGENET_STD,
        augment="flip",
        domains=domains,
    )
