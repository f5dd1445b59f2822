"""Digit5, digits in five domains, one for each of FedCG's clients (Wu et al., IJCAI 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.readers import mnist, numerals, pixels
from flfw.errors import InputError

_SETS = {
    "mnist": mnist.MNIST,
    "mnist_m": numerals.MNIST_M,
    "svhn": numerals.SVHN,
    "synthetic_digits": numerals.SYNTHETIC_DIGITS,
    "usps": numerals.USPS,
}
_SHAPE = (3, 32, 32)
_HELD_OUT = "mnist"


def digit5(word: str) -> DatasetCard:
    """Return the card of all five domains, or of those listed in ``word``, in its order: ``usps,mnist``.

    Every image is resized to 3 x 32 x 32; grey ones get three equal channels. If MNIST is among the domains, the server
    holds it and the clients hold the others.

    Raises:
        InputError: an unknown or repeated domain, or fewer than two.
    """
    domains = tuple(word.split(",")) if word else tuple(_SETS)
    for domain in domains:
        if domain not in _SETS or domains.count(domain) > 1:
            raise InputError(
                f"Expected each domain once, of {', '.join(_SETS)}; got {domain!r} in dataset=digit5:{word}."
            )
    if len(domains) < 2:
        raise InputError(
            f"Expected two domains or more, got dataset=digit5:{word}; --dataset {word} is that one alone."
        )
    cards = [_SETS[domain] for domain in domains]
    return DatasetCard(
        shape=_SHAPE,
        classes=10,
        files={file: md5 for card in cards for file, md5 in card.files.items()},
        read=partial(_read, domains),
        source="; ".join(f"{domain}: {_origin(card)}" for domain, card in zip(domains, cards, strict=True)),
        licence="; ".join(f"{name}: {card.licence or 'unknown'}" for name, card in zip(domains, cards, strict=True)),
        citation="; ".join(dict.fromkeys(card.citation for card in cards)),
        fetch=partial(_fetch, cards),
        net="lenet5",
        split="domains",
        per_client={"domains": (2000, 0)},
        mean=(0.485, 0.456, 0.406),  # ImageNet's, as FedCG takes them
        std=(0.229, 0.224, 0.225),
        domains=domains,
        held_out=_HELD_OUT if _HELD_OUT in domains else "",
    )


def _origin(card: DatasetCard) -> str:
    return f"by {card.fetch}" if isinstance(card.fetch, str) else card.source


def _fetch(cards: Sequence[DatasetCard], root: Path) -> None:
    for card in cards:
        if callable(card.fetch) and not all((root / file).exists() for file in card.files):
            card.fetch(root)


def _read(domains: Sequence[str], root: Path, side: int | None) -> DatasetArrays:
    side = side or _SHAPE[-1]
    members = [pixels.read(domain, _SETS[domain], root, side) for domain in domains]

    def joined(images: Sequence[np.ndarray]) -> np.ndarray:
        colour = [np.broadcast_to(pixels.resize(x, side), (len(x), _SHAPE[0], side, side)) for x in images]
        return np.concatenate(colour)

    def places(labels: Sequence[np.ndarray]) -> np.ndarray:
        return np.repeat(np.arange(len(labels)), [len(y) for y in labels])

    train_y, test_y = [member.train_y for member in members], [member.test_y for member in members]
    return DatasetArrays(
        joined([member.train_x for member in members]),
        np.concatenate(train_y),
        joined([member.test_x for member in members]),
        np.concatenate(test_y),
        places(train_y),
        places(test_y),
    )
