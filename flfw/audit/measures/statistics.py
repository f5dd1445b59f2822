"""Statistics beyond the probed images: intervals, shares and paired differences at 95 %."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from flfw.errors import require

_TAILS = (0.025, 0.975)
_FLIPS = 9999  # sign flips drawn where all of them are too many


@final
@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval.

    Attributes:
        mean: mean of the values, in their unit.
        low: the lower end; None where there is one value only, for which there is no interval.
        high: the upper end; None likewise.
    """

    mean: float
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, float | None]:
        """Return the interval as result.json holds it."""
        return asdict(self)


@final
@dataclass(frozen=True)
class Paired:
    """Comparison of the same images in two settings, a and b.

    Attributes:
        difference: mean of a - b with its interval.
        better: images for which a is larger.
        worse: images for which b is larger.
        ties: images for which they are equal.
        p: two-sided p-value of a sign-flip permutation test: how often a mean difference at least as large would arise
            if the settings were interchangeable for each image.
    """

    difference: Interval
    better: int
    worse: int
    ties: int
    p: float


def interval(values: np.ndarray, groups: np.ndarray | None, rng: np.random.Generator, draws: int = 2000) -> Interval:
    """Compute the percentile bootstrap of a mean over images and seeds.

    Images of one seed share one trained model, so they are not independent: seeds are drawn first, with replacement,
    and then images within each drawn seed (a two-stage cluster bootstrap, Davison and Hinkley 1997, section 3.8). With
    one seed it is the plain bootstrap over images, and says nothing of other seeds. With the usual two to five seeds
    the interval covers the true mean in fewer than 95 % of cases, because so few cannot show how far seeds vary; it is
    still much wider, and nearer the truth, than one that ignores the seeds.

    Args:
        values: (n,) a value per image.
        groups: (n,) the image's seed, of any type that sorts; None: all of one seed.
        rng: generator of the resamples.
        draws: number of resamples.

    Raises:
        BadInput: no values, values that are not finite, or groups of another length.

    >>> interval(np.array([3.0]), None, np.random.default_rng(0))
    Interval(mean=3.0, low=None, high=None)
    >>> interval(np.full(8, 2.0), None, np.random.default_rng(0))
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    values = _checked(values, "values")
    require(draws >= 1, "draws >= 1", draws=draws)
    numbers = np.zeros(len(values), int)
    if groups is not None:
        require(len(groups) == len(values), f"{len(values)} groups, one a value", groups=len(groups))
        numbers = np.unique(groups, return_inverse=True)[1].ravel()
    mean = float(values.mean())
    if len(values) == 1:
        return Interval(mean, None, None)
    low, high = np.quantile(_resampled_means(values, numbers, rng, draws), _TAILS)
    return Interval(mean, float(low), float(high))


def _resampled_means(values: np.ndarray, numbers: np.ndarray, rng: np.random.Generator, draws: int) -> np.ndarray:
    sizes = np.bincount(numbers)
    ordered = values[np.argsort(numbers, kind="stable")]
    starts = np.cumsum(sizes) - sizes
    drawn = rng.integers(len(sizes), size=(draws, len(sizes)))
    # Seeds may have different numbers of images: all get the largest number of places, and surplus places count 0.
    places = rng.random((draws, len(sizes), sizes.max()))
    picked = starts[drawn][..., None] + (places * sizes[drawn][..., None]).astype(np.intp)
    taken = ordered[picked]
    if (sizes != sizes[0]).any():
        taken *= np.arange(sizes.max()) < sizes[drawn][..., None]
    return taken.sum((1, 2)) / sizes[drawn].sum(1)


def share_interval(successes: int, total: int) -> tuple[float, float]:
    """Compute the exact (Clopper and Pearson, 1934) two-sided 95 % interval of a share, both ends in [0, 1].

    It takes the trials as independent; with several seeds it is therefore too narrow where seeds differ.

    Raises:
        BadInput: no trials, or more successes than trials.

    >>> low, high = share_interval(0, 8)
    >>> low, round(high, 4)
    (0.0, 0.3694)
    """
    from scipy.stats import binomtest

    require(total >= 1, "total >= 1", total=total)
    require(0 <= successes <= total, f"0 <= successes <= total={total}", successes=successes)
    ends = binomtest(int(successes), int(total)).proportion_ci(confidence_level=0.95, method="exact")
    return float(ends.low), float(ends.high)


def paired(a: np.ndarray, b: np.ndarray, groups: np.ndarray | None, rng: np.random.Generator) -> Paired:
    """Compare two settings on the same images.

    An image whose attack failed is counted, never dropped: the caller gives it the value of a guess without
    knowledge, its best floor. Dropping it would let a setting gain by failing.

    Args:
        a: (n,) values of the first setting.
        b: (n,) values of the second, in the order of the same images.
        groups: (n,) seeds, or None; the interval is over seeds and images as in `interval`.
        rng: generator of the resamples and sign flips.

    The test takes each image by itself, given the seeds that were run: of n images its smallest p is 2 / 2^n. It
    goes through all flips for up to 13 images and draws 9999 for more.

    Raises:
        BadInput: different lengths, none, or values that are not finite.

    >>> seen = paired(np.array([3.0, 4.0, 6.0]), np.array([1.0, 1.0, 1.0]), None, np.random.default_rng(0))
    >>> round(seen.difference.mean, 3), seen.better, seen.p  # of eight flips, only +++ and --- are as far from 0
    (3.333, 3, 0.25)
    """
    from scipy.stats import permutation_test

    a, b = _checked(a, "a"), _checked(b, "b")
    require(len(a) == len(b), f"{len(a)} values of b, as many as of a", b=len(b))
    gaps = a - b
    p = 1.0  # with one image both flips are equally far from 0, and SciPy takes no fewer than two
    if len(gaps) > 1:
        # With one sample and permutation type "samples", SciPy permutes the signs.
        options: dict[str, Any] = {"permutation_type": "samples", "vectorized": True, "n_resamples": _FLIPS}
        p = float(permutation_test((gaps,), np.mean, rng=rng, **options).pvalue)
    better, worse, ties = (int((np.sign(gaps) == sign).sum()) for sign in (1, -1, 0))
    return Paired(interval(gaps, groups, rng), better, worse, ties, p)


def worst(values: np.ndarray) -> int:
    """Return the index of the largest of (n,) values, the image that leaks most; the first of equals.

    >>> worst(np.array([8.0, 31.0, 12.0]))
    1
    """
    return int(_checked(values, "values").argmax())


def share_above(values: np.ndarray, threshold: float) -> float:
    """Return the share, in [0, 1], of (n,) values strictly above a threshold.

    >>> share_above(np.array([8.0, 31.0, 20.0, 24.0]), 20.0)
    0.5
    """
    return float((_checked(values, "values") > threshold).mean())


def _checked(values: np.ndarray, name: str) -> np.ndarray:
    values = np.asarray(values, np.float64)
    require(values.ndim == 1 and len(values) > 0, f"a row of at least one number for {name}", shape=values.shape)
    missing = int((~np.isfinite(values)).sum())
    require(missing == 0, f"finite numbers for {name} (a failed image counts as its floor)", not_finite=missing)
    return values
