"""Images of the same classes from several domains: which domains are asked for, and each cut into halves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flfw.data.files.dataset import Arrays
from flfw.data.readers.images import Example, decode_labelled
from flfw.errors import BadInput
from flfw.rng import numpy_generator

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def chosen(family: str, word: str, domains: tuple[str, ...]) -> tuple[str, ...]:
    """The domains of ``word``, as in ``amazon,webcam``, in its order; of an empty one all.

    Raises:
        BadInput: a domain there is not, or one twice.
    """
    asked = tuple(word.split(",")) if word else domains
    if len({*asked} & {*domains}) < len(asked):
        raise BadInput(f"Expected some of {','.join(domains)}, each once, got {family}:{word}.")
    return asked


def halves(examples: Sequence[Sequence[Example]], side: int | None, purpose: str, numbers: Sequence[int]) -> Arrays:
    """Half of each domain's images to train with and half to test with, resized to (N, 3, side, side).

    Args:
        examples: of each domain.
        side: pixels; None: 32, as FedCG takes them.
        purpose: of the generators that shuffle the domains first.
        numbers: of each domain's generator; the same number gives the same halves whatever other domains there are.
    """
    parts: tuple[list[Example], list[Example]] = [], []
    places: tuple[list[int], list[int]] = [], []
    for place, (listed, number) in enumerate(zip(examples, numbers, strict=True)):
        order = numpy_generator(0, purpose, number).permutation(len(listed))
        for part, domain, rows in zip(parts, places, np.split(order, [len(order) // 2]), strict=True):
            part += [listed[row] for row in rows]
            domain += [place] * len(rows)
    train, test = (decode_labelled(part, side or 32) for part in parts)
    return Arrays(*train, *test, *(np.array(domain, dtype=np.int64) for domain in places))
