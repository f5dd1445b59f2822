"""How close a reconstruction is to the truth, and how close one gets knowing nothing; pure functions of arrays.

Everything is measured on raw inputs in [0, 1], clamped, one example at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_WINDOW = 11  # pixels; SSIM's Gaussian window of deviation 1.5

IMAGE_RECOVERED_DB = 20.0
ROW_RECOVERED_RMSD = 0.1


def rmsd(truth: np.ndarray, found: np.ndarray) -> float:
    """Root mean square deviation of two inputs of one shape; 0 is exact.

    >>> rmsd(np.zeros(4), np.full(4, 0.1))
    0.1
    """
    return float(np.sqrt(np.mean((np.clip(found, 0, 1).astype(np.float64) - truth) ** 2)))


def psnr(truth: np.ndarray, found: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB with peak 1, ``-20 log10(rmsd)``; capped at 200 where they are equal.

    >>> psnr(np.zeros((1, 2, 2)), np.full((1, 2, 2), 0.1))
    20.0
    """
    return float(-20 * np.log10(max(rmsd(truth, found), 1e-10)))


def ssim(truth: np.ndarray, found: np.ndarray) -> float | None:
    """Structural similarity of two images (C, H, W), in [-1, 1]; None where the window of 11 pixels does not fit.

    Gaussian weights of deviation 1.5 and population covariances, as Wang et al. (2004) define it.
    """
    from skimage.metrics import structural_similarity

    if min(truth.shape[1:]) < _WINDOW:
        return None
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    value = structural_similarity(truth, np.clip(found, 0, 1), data_range=1.0, channel_axis=0, **options)
    return float(value)  # type: ignore[arg-type]


def assign(truth: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Which of the found examples (B, ...) is compared with each true one: the one-to-one match of least squares."""
    from scipy.optimize import linear_sum_assignment

    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (truth, np.clip(found, 0, 1)))
    return linear_sum_assignment(((a[:, None] - b[None]) ** 2).sum(-1))[1]


@dataclass(frozen=True)
class Public:
    """Data an attacker may hold: never a victim.

    Attributes:
        samples: (N, ...) raw inputs in [0, 1].
        labels: (N,).
    """

    samples: np.ndarray
    labels: np.ndarray

    def floors(self, truth: np.ndarray, label: int, rng: np.random.Generator) -> dict[str, float]:
        """PSNR in dB of guesses made without seeing the client's update.

        ``noise`` is uniform, ``grey`` is 0.5 everywhere, ``mean`` and ``class_mean`` are averages of the public data,
        ``random_public`` is one of them, and ``nearest_public`` is the closest of them: an oracle's choice, the most
        that public data could be mistaken for a reconstruction.
        """
        same = self.samples[self.labels == label]
        distances = ((self.samples - truth) ** 2).reshape(len(self.samples), -1).mean(1)
        guesses = {
            "noise": rng.random(truth.shape),
            "grey": np.full(truth.shape, 0.5),
            "mean": self.samples.mean(0),
            "class_mean": (same if len(same) else self.samples).mean(0),
            "random_public": self.samples[rng.integers(len(self.samples))],
            "nearest_public": self.samples[distances.argmin()],
        }
        return {name: psnr(truth, guess) for name, guess in guesses.items()}


def recovered(truth: np.ndarray, found: np.ndarray, floors: dict[str, float]) -> bool:
    """Whether an example counts as reconstructed: recognisable, and closer than any public look-alike.

    An image is recognisable from 20 dB on, a row of numbers from a deviation of 0.1 on.
    """
    close = psnr(truth, found) >= IMAGE_RECOVERED_DB if truth.ndim > 1 else rmsd(truth, found) <= ROW_RECOVERED_RMSD
    return bool(close and psnr(truth, found) > floors["nearest_public"])
