"""DomainNet: things drawn, painted, photographed and sketched; the ten classes of which there is most."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

from flfw.data.files.dataset import Arrays, DatasetCard
from flfw.data.files.remote import Remote, remotes
from flfw.data.readers import by_domain
from flfw.errors import BadInput

_SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
_CLEANED = {"clipart", "painting"}  # published a second time, without duplicates
_CLASSES = 10
_HELD_OUT = "painting"


def _listed(root: Path, domain: str) -> list[tuple[Path, str]]:
    """Path and class of each image that the domain's two lists name, in their order."""
    found = []
    for part in ("train", "test"):
        file = root / "domainnet" / f"{domain}_{part}.txt"
        for line in file.read_text().splitlines():
            match line.rpartition(" ")[0].split("/"):
                case [first, name, image] if first == domain:
                    found.append((root / "domainnet" / domain / name / image, name))
                case _:
                    raise BadInput(
                        f'Expected lines as "{domain}/CLASS/IMAGE NUMBER" in {file}, got {line!r}; get the list again.'
                    )
    return found


def _read(root: Path, side: int | None, domains: tuple[str, ...]) -> Arrays:
    """Images (N, 3, side, side) of the ten classes with most images; labels are places in their names, sorted."""
    listed = [_listed(root, domain) for domain in domains]
    images = Counter(name for domain in listed for _, name in domain)
    most = sorted(images, key=lambda name: (-images[name], name))[:_CLASSES]
    label = {name: place for place, name in enumerate(sorted(most))}
    examples = [[(path, label[name]) for path, name in domain if name in label] for domain in listed]
    numbers = [_DOMAINS.index(domain) for domain in domains]
    return by_domain.halves(examples, side, "domainnet cut", numbers)


def _published(domain: str) -> list[Remote]:
    """The domain's images, gigabytes of them, and its two lists; no sums are published."""
    images = f"{_SITE}/groundtruth" if domain in _CLEANED else _SITE
    return [
        Remote(f"{images}/{domain}.zip", f"domainnet/{domain}.zip", unpack=f"domainnet/{domain}"),
        *(
            Remote(f"{_SITE}/domainnet/txt/{domain}_{part}.txt", f"domainnet/{domain}_{part}.txt")
            for part in ("train", "test")
        ),
    ]


def domainnet(word: str) -> DatasetCard:
    """Images of the domains of ``word``, ``clipart,real``; "": all six. No client holds ``painting``.

    Its 345 classes are cut down to the ten with most images over these domains; of equals the first in the alphabet.
    As FedCG does, each domain's images, of both published lists, are shuffled, always alike, and cut into halves, one
    to train with and one to test with.

    Raises:
        BadInput: there is no such domain.
    """
    domains = by_domain.chosen("domainnet", word, _DOMAINS)
    published = [remote for domain in domains for remote in _published(domain)]
    return DatasetCard(
        shape=(3, 32, 32),
        classes=_CLASSES,
        files={f"domainnet/{domain}{what}": None for domain in domains for what in ("", "_train.txt", "_test.txt")},
        read=partial(_read, domains=domains),
        source="http://ai.bu.edu/M3SDA",
        fetch=remotes(*published),
        net="lenet5",
        split="domains",
        mean=by_domain.IMAGENET_MEAN,
        std=by_domain.IMAGENET_STD,
        augment="flip",
        domains=domains,
        held_out=_HELD_OUT if _HELD_OUT in domains else "",
    )
