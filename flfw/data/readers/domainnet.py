"""DomainNet: drawings, paintings, photographs and sketches of things; the ten classes with most images."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import Remote, remotes
from flfw.data.readers import by_domain
from flfw.errors import InputError

_SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
_CLEANED = {"clipart", "painting"}  # published a second time, without duplicates
_CLASSES = 10
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


def _read(root: Path, side: int | None, domains: tuple[str, ...]) -> DatasetArrays:
    """Read images (N, 3, side, side) of the ten classes with most images; labels are places in their sorted names."""
    listed = [_listed(root, domain) for domain in domains]
    images = Counter(name for domain in listed for _, name in domain)
    most = sorted(images, key=lambda name: (-images[name], name))[:_CLASSES]
    label = {name: place for place, name in enumerate(sorted(most))}
    examples = [[(path, label[name]) for path, name in domain if name in label] for domain in listed]
    numbers = [_DOMAINS.index(domain) for domain in domains]
    return by_domain.halves(examples, side, "domainnet cut", numbers)


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
    domains = by_domain.chosen("domainnet", word, _DOMAINS)
    published = [remote for domain in domains for remote in _published(domain)]
    return DatasetCard(
        shape=(3, 32, 32),
        classes=_CLASSES,
        files={f"domainnet/{domain}{what}": None for domain in domains for what in ("", "_train.txt", "_test.txt")},
        read=partial(_read, domains=domains),
        source="http://ai.bu.edu/M3SDA",
        licence="for academic research; the publishers do not hold the images' copyrights",
        citation="Peng, Bai, Xia et al., Moment matching for multi-source domain adaptation, ICCV 2019",
        fetch=remotes(*published),
        net="lenet5",
        split="domains",
        mean=by_domain.IMAGENET_MEAN,
        std=by_domain.IMAGENET_STD,
        augment="flip",
        domains=domains,
        held_out=_HELD_OUT if _HELD_OUT in domains else "",
    )
