"""Input pipeline from stored pixels to a batch: the papers' augmentation on bytes, and their normalisation constants.

Pixels stay uint8 on disk and in memory; only a batch becomes float32, after augmentation.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from flfw.data.files.dataset import Augmentation
from flfw.errors import InputError

Normalisation = Literal["own", "imagenet", "half", "none"]
"""The data set's own constants, ImageNet's, 0.5 for mean and deviation, or none (0 and 1)."""

_SHIFT = 4  # pixels of black padding around an image before the random crop


def augment(images: Tensor, how: Augmentation, rng: torch.Generator) -> Tensor:
    """Augment images as torchvision's RandomCrop(size, padding=4) and RandomHorizontalFlip do, each with its own draws.

    Args:
        images: (B, C, H, W) of any type.
        how: ``none``, ``flip`` (mirror with probability 1/2), ``crop_flip`` (first shift by -4 to 4 pixels each way).
        rng: generator of the draws.

    Returns:
        (B, C, H, W), of the same type; ``images`` are not changed.
    """
    if how == "none":
        return images
    count, _, height, width = images.shape
    if how == "crop_flip":
        windows = pad(images, (_SHIFT,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        down, right = torch.randint(2 * _SHIFT + 1, (2, count), generator=rng)
        images = windows[torch.arange(count), :, down, right]
    mirrored = torch.rand(count, generator=rng) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


def batch(x: np.ndarray) -> Tensor:
    """Return stored inputs (B, ...) as a tensor of the same type."""
    return torch.from_numpy(np.ascontiguousarray(x))


def raw(x: Tensor) -> Tensor:
    """Return inputs (B, ...) as float32 in [0, 1]."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def constants(how: Normalisation, shape: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel, or per feature: ImageNet's, 0.5 for both, or 0 and 1.

    Raises:
        InputError: inputs are no images, or have not the three channels that ImageNet's constants are for.
    """
    channels = shape[0]
    if how == "none":
        return (0.0,) * channels, (1.0,) * channels
    if how == "half" and len(shape) == 3:
        return (0.5,) * channels, (0.5,) * channels
    if len(shape) == 3 and channels == 3:
        return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    raise InputError(
        f"Expected {'colour ' * (how == 'imagenet')}images for normalise={how}, got inputs of "
        f"{'x'.join(map(str, shape))}; leave --expert normalise out."
    )
