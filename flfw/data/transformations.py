"""Operations of transformation policies on images: their ids, magnitudes, signs, and the way back.

A policy such as ``3-1-7+43-18-18`` joins ids to a sequence by ``-``, and sequences by ``+``. The ids and magnitudes are
those of ATS (Gao et al., CVPR 2021). Forward operations take and return bytes, as PIL's do, which the authors use; they
are torchvision's, but for the shear: torchvision has no bicubic one for tensors, so it is PIL's own.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, floor
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from flfw.errors import require

OperationName: TypeAlias = Literal[
    "invert",
    "contrast",
    "rotate",
    "translateX",
    "translateY",
    "sharpness",
    "shearY",
    "autocontrast",
    "equalize",
    "posterize",
    "color",
    "brightness",
    "solarize",
]

_ENDS: dict[OperationName, tuple[float, float]] = {
    "shearY": (0, 0.3),
    "translateX": (0, 150 / 331),
    "translateY": (0, 150 / 331),
    "rotate": (0, 30),
    "color": (0, 0.5),
    "contrast": (0, 0.5),
    "sharpness": (0, 0.5),
    "brightness": (0, 0.5),
    "posterize": (8, 4),
    "solarize": (256, 0),
}
"""Magnitudes of the grades 0 and 9, with equal steps between them; the other operations have none."""
_SIGNED = ("shearY", "translateX", "translateY", "color", "contrast", "sharpness", "brightness")
_GREY = 128  # fill of a rotation; translations and shears are filled with black
_FIXED_POINT = 40  # iterations for the inverse of a sharpness: the error falls to at most 0.47 of itself in each
_SEQUENCE = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})*")


class Operation(NamedTuple):
    """Operation with the grade of its magnitude, from 0 to 9."""

    name: OperationName
    grade: int = 0

    @property
    def magnitude(self) -> float:
        """Magnitude without its sign: a share of the side, a slope, degrees, bits, a level, or a factor's change."""
        first, last = _ENDS.get(self.name, (0, 0))
        value = first + (last - first) * self.grade / 9
        return round(value) if self.name == "posterize" else value

    @property
    def signs(self) -> tuple[int, ...]:
        """Signs that an image's magnitude may have, with equal probabilities."""
        return (1, -1) if self.name in _SIGNED and self.magnitude else (1,)


OPERATIONS: tuple[Operation, ...] = (
    *(Operation("invert"), Operation("contrast", 6), Operation("rotate", 2), Operation("translateX", 9)),
    *(Operation("sharpness", 1), Operation("sharpness", 3), Operation("shearY", 2), Operation("translateY", 2)),
    *(Operation("autocontrast"), Operation("equalize"), Operation("shearY", 5), Operation("posterize", 5)),
    *(Operation("color", 3), Operation("brightness", 5), Operation("sharpness", 9), Operation("brightness", 9)),
    *(Operation("equalize"), Operation("equalize"), Operation("contrast", 7), Operation("sharpness", 5)),
    *(Operation("color", 5), Operation("translateX", 5), Operation("equalize"), Operation("autocontrast")),
    *(Operation("translateY", 3), Operation("sharpness", 6), Operation("brightness", 6), Operation("color", 8)),
    *(Operation("solarize", 0), Operation("invert"), Operation("equalize"), Operation("autocontrast")),
    *(Operation("equalize"), Operation("equalize"), Operation("color", 5), Operation("equalize")),
    *(Operation("autocontrast"), Operation("solarize", 4), Operation("brightness", 3), Operation("color", 0)),
    *(Operation("solarize", 1), Operation("autocontrast"), Operation("translateY", 3), Operation("translateY", 3)),
    *(Operation("autocontrast"), Operation("solarize", 1), Operation("equalize"), Operation("invert")),
    *(Operation("translateY", 3), Operation("autocontrast")),
)
"""Operations by their ids, 0 to 49."""

Sequences: TypeAlias = tuple[tuple[Operation, ...], ...]
"""Sequences of a policy; an image gets one of them."""


class Step(NamedTuple):
    """Operation with the sign that it had on an image."""

    operation: Operation
    sign: int


def sequences(policy: str) -> Sequences:
    """Parse a policy.

    Raises:
        InputError: it is no policy, or names an unknown id.
    """
    parts = policy.split("+")
    form = "policy ids joined by - in sequences joined by +, such as 3-1-7+43-18-18"
    require(all(_SEQUENCE.fullmatch(part) for part in parts), form, policy=policy)
    ids = [[int(number) for number in part.split("-")] for part in parts]
    last = len(OPERATIONS) - 1
    require(all(number <= last for one in ids for number in one), f"policy ids from 0 to {last}", policy=policy)
    return tuple(tuple(OPERATIONS[number] for number in one) for one in ids)


def patterns(policy: Sequences) -> Iterator[tuple[Step, ...]]:
    """Yield all that a policy may do to an image: each sequence with each choice of its signs."""
    for sequence in policy:
        for signs in product(*(operation.signs for operation in sequence)):
            yield tuple(map(Step, sequence, signs))


def transformed(x: Tensor, policy: Sequences, rng: torch.Generator) -> Tensor:
    """Transform images by a policy: for each a sequence is drawn, and a sign for each of its operations.

    Args:
        x: raw images (B, C, H, W) in [0, 1]; they are rounded to bytes.
        policy: the sequences.
        rng: generator of the draws; their number depends on B and the policy alone.
    """
    chosen = torch.randint(len(policy), (len(x),), generator=rng)
    minus = torch.randint(2, (len(x), max(map(len, policy))), generator=rng).bool()
    images = as_bytes(x)
    for number, sequence in enumerate(policy):
        for index, operation in enumerate(sequence):
            for sign in operation.signs:
                rows = (chosen == number) & ((minus[:, index] == (sign < 0)) | (len(operation.signs) == 1))
                if rows.any():
                    images[rows] = forward(images[rows], Step(operation, sign))
    return as_raw(images)


def as_bytes(x: Tensor) -> Tensor:
    """Round raw images in [0, 1] to bytes."""
    return (x * 255).round().clamp(0, 255).to(torch.uint8)


def as_raw(images: Tensor) -> Tensor:
    """Return bytes as raw images in [0, 1]."""
    return images.float() / 255


def replayed(x: Tensor, steps: Sequence[Step]) -> Tensor:
    """Transform raw images (B, C, H, W) by known steps, one after the other."""
    images = as_bytes(x)
    for step in steps:
        images = forward(images, step)
    return as_raw(images)


def forward(images: Tensor, step: Step) -> Tensor:
    """Apply one operation to images (B, C, H, W) of bytes; color leaves images of one channel as they are."""
    from torchvision.transforms.v2 import functional as ops  # takes long to import

    (name, _), size, (height, width) = step.operation, step.operation.magnitude, images.shape[-2:]
    match name:
        case "invert" | "autocontrast" | "equalize":
            return getattr(ops, name)(images)
        case "posterize":
            return ops.posterize(images, int(size))
        case "solarize":
            return images if size > 255 else ops.solarize(images, size)
        case "rotate":
            return ops.rotate(images, size, fill=[_GREY])
        case "translateX":
            return ops.crop(images, 0, _pixels(step, width), height, width)
        case "translateY":
            return ops.crop(images, _pixels(step, height), 0, height, width)
        case "shearY":
            return _sheared(images, step.sign * size)
    return _enhanced(images, name, 1 + step.sign * size)


def undo(y: Tensor, step: Step) -> Tensor:
    """Undo one operation in raw images (B, C, H, W), as far as can be.

    A lost margin gets its nearest pixels. An enhancement is inverted; clipped pixels stay clipped. Of the levels that a
    posterized one stands for the middle is taken. Solarize maps two levels to one, and autocontrast and equalize lose
    the histogram: there y is the estimate.
    """
    from torchvision.transforms.v2 import functional as ops

    (name, _), size, (height, width) = step.operation, step.operation.magnitude, y.shape[-2:]
    match name:
        case "invert":
            return 1 - y
        case "autocontrast" | "equalize" | "solarize":
            return y
        case "posterize":
            return (y + (2 ** (8 - int(size)) - 1) / 2 / 255).clamp(max=1)
        case "rotate":
            wide = (max(height, width) + 1) // 2
            turned = ops.rotate(_continued(y, wide, wide), -size)
            return ops.center_crop(turned, [height, width])
        case "translateX":
            return y[..., _moved(width, _pixels(step, width))]
        case "translateY":
            return y[..., _moved(height, _pixels(step, height)), :]
        case "shearY":
            more = ceil(size * width)
            return ops.crop(_sheared(_continued(y, 0, more), -step.sign * size), more, 0, height, width).clamp(0, 1)
    factor = 1 + step.sign * size
    if name != "sharpness":
        return _enhanced(y, name, 1 / factor)
    estimate = y
    for _ in range(_FIXED_POINT):
        estimate = estimate + y - _enhanced(estimate.clamp(0, 1), name, factor)
    return estimate.clamp(0, 1)


def _enhanced(images: Tensor, name: str, factor: float) -> Tensor:
    from torchvision.transforms.v2 import functional as ops

    if factor == 1:
        return images
    match name:
        case "color":
            return ops.adjust_saturation(images, factor)
        case "contrast":
            return ops.adjust_contrast(images, factor)
        case "brightness":
            return ops.adjust_brightness(images, factor)
    return ops.adjust_sharpness(images, factor)


def _moved(side: int, shift: int) -> Tensor:
    """Return the places (side,) that a line of pixels is read from, the nearest ones beyond its ends."""
    return (torch.arange(side) - shift).clamp(0, side - 1)


def _pixels(step: Step, side: int) -> int:
    """Return how many pixels an image moves to the left or up, rounded as PIL does: nearest to a pixel's centre."""
    return floor(0.5 + step.sign * step.operation.magnitude * side)


def _continued(y: Tensor, across: int, down: int) -> Tensor:
    """Continue images at their edges by their nearest pixels."""
    from torchvision.transforms.v2 import functional as ops

    return ops.pad(y, [across, down, across, down], padding_mode="edge")


def _sheared(images: Tensor, slope: float) -> Tensor:
    """Apply a vertical shear about the upper left corner, channel by channel; bicubic, filled with black."""
    from PIL import Image

    channels = images.detach().cpu().reshape(-1, *images.shape[-2:]).numpy()
    size, matrix = channels.shape[:0:-1], (1, 0, 0, slope, 1, 0)
    results = [
        np.asarray(Image.fromarray(one).transform(size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC))
        for one in channels
    ]
    return torch.from_numpy(np.stack(results)).view(images.shape).to(images.device)
