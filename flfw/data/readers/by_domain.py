"""Images of the same classes from several domains: parsing the chosen domains and halving each one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flfw.data.files.dataset import DatasetArrays
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
    asked = tuple(word.split(",")) if word else domains
    if len({*asked} & {*domains}) < len(asked):
        raise InputError(f"Expected some of {','.join(domains)}, each once, got {family}:{word}.")
    return asked


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
    for place, (listed, number) in enumerate(zip(examples, numbers, strict=True)):
        order = numpy_generator(0, purpose, number).permutation(len(listed))
        for part, domain, rows in zip(parts, places, np.split(order, [len(order) // 2]), strict=True):
            part += [listed[row] for row in rows]
            domain += [place] * len(rows)
    train, test = (decode_labelled(part, side or 32) for part in parts)
    return DatasetArrays(*train, *test, *(np.array(domain, dtype=np.int64) for domain in places))
