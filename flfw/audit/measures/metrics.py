"""Distances between two inputs: RMSD, PSNR, SSIM.

Numbers are compared by their differences. Tokens of text, which are stored as whole numbers, are equal or not, and two
texts differ by the number of places in which they do: each such place counts as a squared difference of 1.
"""

from __future__ import annotations

import numpy as np

_WINDOW = 11  # pixels; SSIM's Gaussian window of deviation 1.5


def is_text(x: np.ndarray) -> bool:
    """Return whether inputs are tokens, which are stored as whole numbers."""
    return x.dtype.kind in "iu"


def squared_distances(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Compute the squared distances (n, m) of inputs (n, ...) to others (m, ...), in float64.

    Args:
        ones: inputs in [0, 1], or tokens.
        others: numbers are clamped to [0, 1].

    >>> squared_distances(np.array([[7, 8]]), np.array([[7, 8], [7, 9], [200, 0]])).tolist()
    [[0.0, 1.0, 2.0]]
    """
    from scipy.spatial.distance import cdist

    a, b = (x.reshape(len(x), -1) for x in (ones, others))
    if is_text(ones):
        return np.rint(cdist(a, b, "hamming") * a.shape[1])
    return cdist(a.astype(np.float64), np.clip(b, 0, 1).astype(np.float64), "sqeuclidean")


def rmsd(truth: np.ndarray, reconstruction: np.ndarray) -> float:
    """Compute the root mean square deviation of two inputs of one shape, in [0, 1]; 0 is exact.

    Of text it is the root of the share of wrong tokens.

    >>> rmsd(np.zeros(4), np.full(4, 0.1)), rmsd(np.array([7, 7, 7, 7]), np.array([7, 7, 7, 200]))
    (0.1, 0.5)
    """
    if is_text(truth):
        return float(np.sqrt(np.mean(truth != reconstruction)))
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
