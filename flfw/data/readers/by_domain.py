"""Images of the same classes from several domains: Office-Caltech10 and DomainNet.

Office-Caltech10 has ten classes of office objects in images of shops, of Caltech-256 and of two cameras. DomainNet has
drawings, paintings, photographs and sketches of things; its ten classes with most images are read.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import Remote, remotes
from flfw.data.image_files.images import Example, decode_labelled
from flfw.errors import InputError
from flfw.rng import numpy_generator

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def chosen(family: str, word: str, domains: tuple[str, ...]) -> tuple[str, ...]:
    """Return the domains listed in ``word``, such as ``amazon,webcam``, in its order; all for an empty word.

    Raises:
        InputError: an unknown domain, or one twice.
    """
    requested = tuple(word.split(",")) if word else domains
    if len({*requested} & {*domains}) < len(requested):
        raise InputError(f"Expected some of {','.join(domains)}, each once, got {family}:{word}.")
    return requested


def halves(
    examples: Sequence[Sequence[Example]], side: int | None, purpose: str, numbers: Sequence[int]
) -> DatasetArrays:
    """Divide each domain's images into halves for training and testing, resized to (N, 3, side, side).

    Args:
        examples: examples of each domain.
        side: side in pixels; None: 32, as in FedCG.
        purpose: name of the generators that shuffle the domains first.
        numbers: number of each domain's generator; the same number gives the same halves with any other domains.
    """
    parts: tuple[list[Example], list[Example]] = [], []
    places: tuple[list[int], list[int]] = [], []
    for index, (listed, number) in enumerate(zip(examples, numbers, strict=True)):
        order = numpy_generator(0, purpose, number).permutation(len(listed))
        for part, domain, rows in zip(parts, places, np.split(order, [len(order) // 2]), strict=True):
            part += [listed[row] for row in rows]
            domain += [index] * len(rows)
    train, test = (decode_labelled(part, side or 32) for part in parts)
    return DatasetArrays(*train, *test, *(np.array(domain, dtype=np.int64) for domain in places))


_card = partial(
    DatasetCard, shape=(3, 32, 32), net="lenet5", split="domains", mean=IMAGENET_MEAN, std=IMAGENET_STD, augment="flip"
)
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
    return halves([images.samples for images in listed], side, "office cut", numbers)


def office_caltech(word: str) -> DatasetCard:
    """Return the card of the domains listed in ``word``, ``amazon,webcam``; "": all four.

    Each domain is shuffled with a fixed seed and cut into halves, one for training and one for testing. FedCG trains on
    50 %, validates on 25 % and tests on 25 %: the latter two are the halves of this test part.

    Raises:
        InputError: there is no such domain.
    """
    domains = chosen("office_caltech", word, _DOMAINS)
    return _card(
        classes=_CLASSES,
        files={f"{_FOLDER}/{domain}": None for domain in domains},
        read=partial(_read, domains=domains),
        source="Saenko et al., ECCV 2010; Griffin et al., Caltech-256; Gong et al., CVPR 2012",
        citation="Gong, Shi, Sha and Grauman, Geodesic flow kernel for unsupervised domain adaptation, CVPR 2012",
        fetch=(
            "a copy of http://www.stat.ucla.edu/~jxie/iFRAME/code/imageClassification.rar, unpacked as "
            f"{_FOLDER}/DOMAIN/CLASS/*.jpg below the data root"
        ),
        domains=domains,
    )


_SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_DOMAINNET_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
_CLEANED = {"clipart", "painting"}  # published a second time, without duplicates
_DOMAINNET_CLASSES = 10
_HELD_OUT = "painting"


def _listed(root: Path, domain: str) -> list[tuple[Path, str]]:
    """Return path and class of each image in the domain's two lists, in their order."""
    images = []
    for part in ("train", "test"):
        file = root / "domainnet" / f"{domain}_{part}.txt"
        for line in file.read_text().splitlines():
            match line.rpartition(" ")[0].split("/"):
                case [first, name, image] if first == domain:
                    images.append((root / "domainnet" / domain / name / image, name))
                case _:
                    raise InputError(
                        f'Expected lines as "{domain}/CLASS/IMAGE NUMBER" in {file}, got {line!r}; get the list again.'
                    )
    return images


def _read_domainnet(root: Path, side: int | None, domains: tuple[str, ...]) -> DatasetArrays:
    """Read images (N, 3, side, side) of the ten classes with most images; labels are places in their sorted names."""
    listed = [_listed(root, domain) for domain in domains]
    images = Counter(name for domain in listed for _, name in domain)
    most = sorted(images, key=lambda name: (-images[name], name))[:_DOMAINNET_CLASSES]
    label = {name: index for index, name in enumerate(sorted(most))}
    examples = [[(path, label[name]) for path, name in domain if name in label] for domain in listed]
    return halves(examples, side, "domainnet cut", [_DOMAINNET_DOMAINS.index(domain) for domain in domains])


def _published(domain: str) -> list[Remote]:
    """Return the domain's archive, gigabytes of images, and its two lists; no sums are published."""
    images = f"{_SITE}/groundtruth" if domain in _CLEANED else _SITE
    return [
        Remote(f"{images}/{domain}.zip", f"domainnet/{domain}.zip", unpack=f"domainnet/{domain}"),
        *(
            Remote(f"{_SITE}/domainnet/txt/{domain}_{part}.txt", f"domainnet/{domain}_{part}.txt")
            for part in ("train", "test")
        ),
    ]


def domainnet(word: str) -> DatasetCard:
    """Return the card of the domains listed in ``word``, ``clipart,real``; "": all six. No client holds ``painting``.

    Of the 345 classes, the ten with most images over these domains are kept; ties are broken alphabetically. As in
    FedCG, each domain's images, of both published lists, are shuffled with a fixed seed and cut into halves, one for
    training and one for testing.

    Raises:
        InputError: there is no such domain.
    """
    domains = chosen("domainnet", word, _DOMAINNET_DOMAINS)
    published = [remote for domain in domains for remote in _published(domain)]
    return _card(
        classes=_DOMAINNET_CLASSES,
        files={f"domainnet/{domain}{what}": None for domain in domains for what in ("", "_train.txt", "_test.txt")},
        read=partial(_read_domainnet, domains=domains),
        source="http://ai.bu.edu/M3SDA",
        licence="for academic research; the publishers do not hold the images' copyrights",
        citation="Peng, Bai, Xia et al., Moment matching for multi-source domain adaptation, ICCV 2019",
        fetch=remotes(*published),
        domains=domains,
        held_out=_HELD_OUT if _HELD_OUT in domains else "",
    )
