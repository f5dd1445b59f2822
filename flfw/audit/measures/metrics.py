"""Distances of two inputs: RMSD, PSNR and SSIM, for enlarged images in their published size, and ROUGE of texts.

Numbers are compared by their differences. Tokens of text, which are stored as whole numbers, are equal or not: each
place in which two texts differ counts as a squared difference of 1.

ROUGE is the F-measure, on words in lower case (Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004). A
sequence of bytes may begin and end within words, whose parts count as words here.
"""

import re
from collections import Counter

import numpy as np

from flfw.errors import require

_WINDOW = 11  # pixels; SSIM's Gaussian window of deviation 1.5


def reduced(image: np.ndarray, side: int) -> np.ndarray:
    """Resize an image (C, H, W) to (C, side, side): bilinear, antialiased, as `flfw.data.readers.pixels.resize` does.

    >>> reduced(np.full((1, 8, 8), 0.5, np.float32), 2).round(6).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    import torch  # scores of other data need none of it
    from torch.nn.functional import interpolate

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
    return {"reduced_psnr": psnr(a, b), "reduced_ssim": ssim(a, b)}


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


GRAMS = (1, 2)
"""Lengths of the runs of words that are compared."""


def decoded(tokens: np.ndarray) -> str:
    """Return the text of bytes (T,), without the zero bytes that fill it up; a broken character becomes a mark.

    >>> decoded(np.array([72, 105, 255, 0, 0], np.uint8))
    'Hi\\ufffd'
    """
    require(is_text(tokens), "tokens", dtype=tokens.dtype)
    return tokens.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace")


def rouge(truth: str, guess: str, grams: int) -> float:
    """Compute the F-measure, in [0, 1], of the runs of ``grams`` words in two texts; without any run it is 0.

    >>> rouge("the cat sat", "the cat ran off", 1)  # 2 of 3 words, and 2 of 4
    0.5714285714285714
    >>> rouge("the cat sat", "cat the sat", 2)
    0.0
    """
    a, b = (_runs(text, grams) for text in (truth, guess))
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 0.0


def rouges(truth: np.ndarray, guess: np.ndarray | None, floor: np.ndarray) -> dict[str, float | None]:
    """Compute the scores ``rouge_1`` and ``rouge_2`` of a guess, and those of a guess without the message.

    Args:
        truth: bytes (T,).
        guess: bytes (T,); None: the attack gave nothing, and its scores are None.
        floor: bytes (T,) of a random public text, for ``floor_rouge_1`` and ``floor_rouge_2``.
    """
    true, beside = decoded(truth), decoded(floor)
    scores = {f"rouge_{n}": None if guess is None else rouge(true, decoded(guess), n) for n in GRAMS}
    return scores | {f"floor_rouge_{n}": rouge(true, beside, n) for n in GRAMS}


def _runs(text: str, grams: int) -> Counter[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return Counter(zip(*(words[start:] for start in range(grams)), strict=False))
