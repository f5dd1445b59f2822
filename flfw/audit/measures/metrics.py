"""Distances between two images: RMSD, PSNR, SSIM."""

from __future__ import annotations

import numpy as np

_WINDOW = 11  # pixels; SSIM's Gaussian window of deviation 1.5


def rmsd(truth: np.ndarray, reconstruction: np.ndarray) -> float:
    """Compute the root mean square deviation of two inputs of one shape, in [0, 1]; 0 is exact.

    >>> rmsd(np.zeros(4), np.full(4, 0.1))
    0.1
    """
    return float(np.sqrt(np.mean((np.clip(reconstruction, 0, 1).astype(np.float64) - truth) ** 2)))


def psnr(truth: np.ndarray, reconstruction: np.ndarray) -> float:
    """Compute the peak signal-to-noise ratio in dB with peak 1, ``-20 log10(rmsd)``; 200 for equal inputs.

    >>> psnr(np.zeros((1, 2, 2)), np.full((1, 2, 2), 0.1))
    20.0
    """
    return float(-20 * np.log10(max(rmsd(truth, reconstruction), 1e-10)))


def ssim(truth: np.ndarray, reconstruction: np.ndarray) -> float | None:
    """Compute the structural similarity of two images (C, H, W), in [-1, 1]; None if the 11-pixel window does not fit.

    Gaussian weights of deviation 1.5 and population covariances, as Wang et al. (2004) define it.
    """
    from skimage.metrics import structural_similarity

    if min(truth.shape[1:]) < _WINDOW:
        return None
    a, b = truth.astype(np.float64), np.clip(reconstruction, 0, 1).astype(np.float64)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    return float(structural_similarity(a, b, data_range=1.0, channel_axis=0, **options))  # type: ignore[arg-type]
