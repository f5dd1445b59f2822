"""Scores of enlarged images in the size in which their data set has them."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import interpolate

from flfw.audit.measures import metrics


def reduced(image: np.ndarray, side: int) -> np.ndarray:
    """Resize an image (C, H, W) to (C, side, side): bilinear, antialiased, as `flfw.data.readers.pixels.resize` does.

    >>> reduced(np.full((1, 8, 8), 0.5, np.float32), 2).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    block = torch.from_numpy(np.ascontiguousarray(image, np.float32))[None]
    return interpolate(block, size=(side, side), mode="bilinear", antialias=True, align_corners=False)[0].numpy()


def reduced_scores(truth: np.ndarray, guess: np.ndarray | None, side: int) -> dict[str, float | None]:
    """Return PSNR in dB and SSIM of a reconstruction, both images reduced.

    The truth is reduced too, as enlarging and reducing it blurs it: a reconstruction that has all of it scores 200 dB.

    Args:
        truth: (C, H, W) in [0, 1].
        guess: the same; None: the attack gave none.
        side: pixels of the data set's own images; 0: they were not enlarged, and there are no such scores.
    """
    if not side:
        return {}
    if guess is None:
        return {"reduced_psnr": None, "reduced_ssim": None}
    a, b = reduced(truth, side), reduced(np.clip(guess, 0, 1), side)
    return {"reduced_psnr": metrics.psnr(a, b), "reduced_ssim": metrics.ssim(a, b)}
