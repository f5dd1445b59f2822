"""Statistics beyond the probed images: intervals, shares, paired differences at 95 %, and significance.

The examples of one message (one batch) are not independent: one gradient gives them away together, or none of them.
The functions here therefore take the message of each value, or the number of messages, and treat a message as a whole.
"""

from dataclasses import dataclass
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
            if the settings were interchangeable for each message.
    """

    difference: Interval
    better: int
    worse: int
    ties: int
    p: float


def interval(
    values: np.ndarray,
    groups: np.ndarray | None,
    rng: np.random.Generator,
    draws: int = 2000,
    messages: np.ndarray | None = None,
) -> Interval:
    """Compute the percentile bootstrap of a mean over images, messages and seeds.

    Images of one seed share one trained model, so they are not independent: seeds are drawn first, with replacement,
    and then messages within each drawn seed, each with all of its images (a two-stage cluster bootstrap, Davison and
    Hinkley 1997, section 3.8). With one seed it is the bootstrap over messages, and says nothing of other seeds. With
    the usual two to five seeds the interval covers the true mean in fewer than 95 % of cases, because so few cannot
    show how far seeds vary; it is still much wider, and nearer the truth, than one that ignores the seeds. The same
    holds for few messages: with normal values, 4 messages cover in about 80 % of cases, 8 in 88 %, 30 in 93 %.

    Args:
        values: (n,) a value per image.
        groups: (n,) the image's seed, of any type that sorts; None: all of one seed.
        rng: generator of the resamples.
        draws: number of resamples.
        messages: (n,) the image's message, of any type that sorts; the same name in two seeds means two messages.
            None: each image is a message of its own.

    Returns:
        The mean of all values and its interval; with one message in all there is no interval.

    Raises:
        InputError: no values, values that are not finite, or groups or messages of another length.

    >>> interval(np.array([3.0]), None, np.random.default_rng(0))
    Interval(mean=3.0, low=None, high=None)
    >>> interval(np.full(8, 2.0), None, np.random.default_rng(0))
    Interval(mean=2.0, low=2.0, high=2.0)
    >>> interval(np.array([1.0, 3.0]), None, np.random.default_rng(0), messages=np.array([7, 7]))
    Interval(mean=2.0, low=None, high=None)
    """
    values = _checked(values, "values")
    require(draws >= 1, "draws >= 1", draws=draws)
    sums, counts, seeds = _by_message(values, groups, messages)
    mean = float(values.mean())
    if len(sums) == 1:
        return Interval(mean, None, None)
    low, high = np.quantile(_resampled_means(sums, counts, seeds, rng, draws), _TAILS)
    return Interval(mean, float(low), float(high))


def _by_message(
    values: np.ndarray, groups: np.ndarray | None, messages: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sum of each message's values, their number, and the number of its seed, in order of appearance."""
    seeds = np.zeros(len(values), int)
    for name, given in (("groups", groups), ("messages", messages)):
        length = len(values) if given is None else len(given)
        require(length == len(values), f"{len(values)} {name}, one a value", **{name: length})
    if groups is not None:
        seeds = np.unique(groups, return_inverse=True)[1].ravel()
    if messages is None:
        return values, np.ones(len(values), int), seeds
    names = np.unique(messages, return_inverse=True)[1].ravel()
    _, first, inverse = np.unique(seeds * (names.max() + 1) + names, return_index=True, return_inverse=True)
    numbers = first.argsort().argsort()[inverse.ravel()]
    return np.bincount(numbers, values), np.bincount(numbers), seeds[np.sort(first)]


def _resampled_means(
    sums: np.ndarray, counts: np.ndarray, seeds: np.ndarray, rng: np.random.Generator, draws: int
) -> np.ndarray:
    sizes = np.bincount(seeds)
    order = np.argsort(seeds, kind="stable")
    starts = np.cumsum(sizes) - sizes
    drawn = rng.integers(len(sizes), size=(draws, len(sizes)))
    # Seeds may have different numbers of messages: all get the largest number of places, and surplus places count 0.
    indices = rng.random((draws, len(sizes), sizes.max()))
    picked = order[starts[drawn][..., None] + (indices * sizes[drawn][..., None]).astype(np.intp)]
    taken, images = sums[picked], counts[picked]
    if (sizes != sizes[0]).any():
        kept = np.arange(sizes.max()) < sizes[drawn][..., None]
        taken *= kept
        images *= kept
    return taken.sum((1, 2)) / images.sum((1, 2))


def share_interval(successes: int, total: int, messages: int | None = None) -> tuple[float, float]:
    """Compute a two-sided 95 % interval of a share, both ends in [0, 1].

    Of independent trials it is the exact interval of Clopper and Pearson (1934). Of trials that came in fewer messages
    it is that of Korn and Graubard (1998): Clopper and Pearson with an effective number of trials, here the number of
    messages, as if the members of one message were copies of one another. That is the largest design effect that
    messages of equal size can have; it is not estimated, so the correction for its degrees of freedom is left out.

    It takes messages as independent; with several seeds it is therefore too narrow where seeds differ.

    Args:
        successes: number of successes, 0 to ``total``.
        total: number of trials.
        messages: number of messages that the trials came in, 1 to ``total``; None: each came by itself.

    Raises:
        InputError: no trials, more successes than trials, or more messages than trials.

    >>> low, high = share_interval(0, 8)
    >>> low, round(high, 4)
    (0.0, 0.3694)
    >>> share_interval(0, 128, messages=4) == share_interval(0, 4)  # not 0.028
    True
    """
    from scipy.stats import beta, binomtest

    require(total >= 1, "total >= 1", total=total)
    require(0 <= successes <= total, f"0 <= successes <= total={total}", successes=successes)
    messages = total if messages is None else messages
    require(1 <= messages <= total, f"1 <= messages <= total={total}", messages=messages)
    if (successes * messages) % total == 0:  # a whole number of messages
        test = binomtest(int(successes * messages // total), int(messages))
        ends = test.proportion_ci(confidence_level=0.95, method="exact")
        return float(ends.low), float(ends.high)
    count = successes * messages / total
    low, high = beta.ppf(_TAILS, [count, count + 1], [messages - count + 1, messages - count])
    return float(low), float(high)


def most_missed(messages: int) -> float:
    """Return the largest share of messages, in [0, 1], that could leak while none of those probed does, at 95 %.

    It is one-sided: were a larger share of all messages to leak, at least one of the probed ones would leak with a
    probability above 95 %.

    Args:
        messages: number of messages that were probed, none of which leaked; at least 1.

    >>> round(most_missed(1), 3), round(most_missed(4), 3), round(most_missed(59), 3)
    (0.95, 0.527, 0.05)
    """
    require(messages >= 1, "messages >= 1", messages=messages)
    return 1 - 0.05 ** (1 / messages)


def significant(p: float, num_tests: int, alpha: float = 0.01) -> bool:
    """Return whether a p-value is small enough, although it is one of many (Bonferroni's correction).

    Args:
        p: the p-value of one setting, in [0, 1].
        num_tests: number of tests whose p-values are looked at, this one included.
        alpha: the greatest probability with which any of the tests may be called significant by chance.

    Raises:
        InputError: ``p`` or ``alpha`` is no probability, or there are no tests.

    >>> significant(0.004, 1), significant(0.004, 5)
    (True, False)
    """
    require(0 <= p <= 1, "0 <= p <= 1", p=p)
    require(num_tests >= 1, "num_tests >= 1", num_tests=num_tests)
    require(0 < alpha < 1, "0 < alpha < 1", alpha=alpha)
    return p * num_tests <= alpha


def paired(
    a: np.ndarray,
    b: np.ndarray,
    groups: np.ndarray | None,
    rng: np.random.Generator,
    messages: np.ndarray | None = None,
) -> Paired:
    """Compare two settings on the same images.

    An image whose attack failed is counted, never dropped: the caller gives it the value of a guess without
    knowledge, its best floor. Dropping it would let a setting gain by failing.

    Args:
        a: (n,) values of the first setting.
        b: (n,) values of the second, in the order of the same images.
        groups: (n,) seeds, or None; the interval is over seeds and messages as in `interval`.
        rng: generator of the resamples and sign flips.
        messages: (n,) the image's message as in `interval`; None: each image is a message of its own.

    The test takes each message by itself, given the seeds that were run, and flips the signs of all its images
    together: of n messages its smallest p is 2 / 2^n. It goes through all flips for up to 13 messages and draws 9999
    for more. Better, worse and ties are counts of images.

    Raises:
        InputError: different lengths, none, or values that are not finite.

    >>> seen = paired(np.array([3.0, 4.0, 6.0]), np.array([1.0, 1.0, 1.0]), None, np.random.default_rng(0))
    >>> round(seen.difference.mean, 3), seen.better, seen.p  # of eight flips, only +++ and --- are as far from 0
    (3.333, 3, 0.25)
    """
    from scipy.stats import permutation_test

    a, b = _checked(a, "a"), _checked(b, "b")
    require(len(a) == len(b), f"{len(a)} values of b, as many as of a", b=len(b))
    gaps = a - b
    sums, _, _ = _by_message(gaps, groups, messages)
    p = 1.0  # with one message both flips are equally far from 0, and SciPy takes no fewer than two
    if len(sums) > 1:
        # With one sample and permutation type "samples", SciPy permutes the signs.
        options: dict[str, Any] = {"permutation_type": "samples", "vectorized": True, "n_resamples": _FLIPS}
        p = float(permutation_test((sums,), np.mean, rng=rng, **options).pvalue)
    better, worse, ties = (int((np.sign(gaps) == sign).sum()) for sign in (1, -1, 0))
    return Paired(interval(gaps, groups, rng, messages=messages), better, worse, ties, p)


def worst(values: np.ndarray) -> int:
    """Return the index of the largest of (n,) values, the image that leaks most; the first of equals.

    >>> worst(np.array([8.0, 31.0, 12.0]))
    1
    """
    return int(_checked(values, "values").argmax())


def _checked(values: np.ndarray, name: str) -> np.ndarray:
    values = np.asarray(values, np.float64)
    require(values.ndim == 1 and len(values) > 0, f"a row of at least one number for {name}", shape=values.shape)
    missing = int((~(np.abs(values) < 1e300)).sum())  # sums of them are finite, too
    require(missing == 0, f"finite numbers for {name} (a failed image counts as its floor)", not_finite=missing)
    return values
