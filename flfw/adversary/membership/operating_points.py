"""Measures of a membership attack: area under the curve, and the true positive rate at false positive rates, exactly.

A client's members are compared with the same client's non-members. What is counted is given with an interval, and what
too few non-members cannot show is refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from flfw.errors import require

FALSE_POSITIVES = 10
"""Non-members above a threshold that a rate must rest on."""

CONFIDENCE = 0.95

_FEWEST_DRAWN = 8  # members without whom no interval is drawn: of two pairs that are right, all draws are right

_AT_ONCE = 1_000_000  # counts of the bootstrap that are held at once


@final
@dataclass(frozen=True)
class OperatingPoint:
    """True positive rate at the threshold that some non-members exceed.

    The threshold is one of the non-members' scores, so that the share of all non-members above it is a Beta variable:
    its interval is exact, without a second set of non-members to measure it. Members do not choose the threshold, so
    that theirs is the interval of Clopper and Pearson.

    Attributes:
        fpr: share of the non-members above the threshold, in [0, 1].
        fpr_high: upper end of the interval of the false positive rate.
        tpr: share of the members above it.
        tpr_low: lower end of the interval of the true positive rate.
        tpr_high: upper end of it.
        members: number of members.
        others: number of non-members.
    """

    fpr: float
    fpr_high: float
    tpr: float
    tpr_low: float
    tpr_high: float
    members: int
    others: int


@final
@dataclass(frozen=True)
class Area:
    """Area under the curve with its interval.

    Attributes:
        auc: probability that a member's score is above a non-member's of the same client; ties count half.
        low: lower end of the interval; None: not enough clients and examples, or fewer than eight members.
        high: upper end; None likewise.
        clients: number of clients.
    """

    auc: float
    low: float | None
    high: float | None
    clients: int


def smallest_fpr(others: int) -> float:
    """Return the smallest false positive rate that so many non-members can show, with `FALSE_POSITIVES` above it.

    >>> smallest_fpr(1000)
    0.01
    """
    require(others >= 1, "others >= 1", others=others)
    return min(1.0, FALSE_POSITIVES / others)


def at_rate(members: np.ndarray, others: np.ndarray, rate: float, confidence: float = CONFIDENCE) -> OperatingPoint:
    """Return the operating point at the largest false positive rate up to ``rate``.

    Args:
        members: (M,) scores of members.
        others: (M',) scores of non-members.
        rate: in (0, 1); at least `smallest_fpr`.
        confidence: of each interval, in (0, 1). Several points or statistics need a larger one, see
            `corrected`.

    Raises:
        InputError: a rate that so many non-members cannot show, no members, or scores that are not finite.
    """
    from scipy.stats import beta, binomtest

    _require_scores(members, others)
    minimum = smallest_fpr(len(others))
    require(minimum <= rate < 1, f"{minimum:.3g} <= rate < 1 with {len(others)} non-members", rate=rate)
    require(0 < confidence < 1, "0 < confidence < 1", confidence=confidence)
    above = int(rate * len(others) + 1e-9)
    # With ties fewer non-members than ``above`` exceed the threshold; the Beta variable is then an upper bound.
    threshold = np.sort(others)[len(others) - above - 1]
    hits = int((members > threshold).sum())
    ends = binomtest(hits, len(members)).proportion_ci(confidence_level=confidence, method="exact")
    high = float(beta.ppf((1 + confidence) / 2, above + 1, len(others) - above))
    false = float((others > threshold).mean())
    return OperatingPoint(
        false, high, hits / len(members), float(ends.low), float(ends.high), len(members), len(others)
    )


def corrected(tests: int, confidence: float = CONFIDENCE) -> float:
    """Return the confidence of each of several intervals with which all of them hold together (Bonferroni).

    >>> round(corrected(5), 3)
    0.99
    """
    require(tests >= 1, "tests >= 1", tests=tests)
    return 1 - (1 - confidence) / tests


def area(
    scores: np.ndarray, members: np.ndarray, clients: np.ndarray, rng: np.random.Generator, draws: int = 1000
) -> Area:
    """Compute the area under the curve within clients, and its bootstrap interval.

    Clients are drawn with replacement, then members and non-members of each drawn client: examples of one client share
    a model. With one client only its examples are drawn, and the interval says nothing of other clients.

    Args:
        scores: (N,).
        members: (N,) of bool.
        clients: (N,) client of each candidate; each client needs members and non-members.
        rng: generator of the draws.
        draws: number of draws.

    Raises:
        InputError: scores that are not finite, or a client with members or non-members only.
    """
    require(draws >= 1, "draws >= 1", draws=draws)
    names = np.unique(clients)
    wins, pairs, drawn = np.zeros(len(names)), np.zeros(len(names)), np.zeros((draws, len(names)))
    for index, (inside, outside) in enumerate(_by_client(scores, members, clients, names)):
        inside, outside = np.sort(inside), np.sort(outside)
        # A member is above the others below its first place among them, and ties with those up to its last one.
        first, last = np.searchsorted(outside, inside, "left"), np.searchsorted(outside, inside, "right")
        wins[index], pairs[index] = (first + last).sum() / 2, len(inside) * len(outside)
        one, two = _drawn(len(inside), draws, rng), _drawn(len(outside), draws, rng)
        for some in np.array_split(np.arange(draws), -(-draws * len(outside) // _AT_ONCE)):
            below = np.zeros((len(some), len(outside) + 1), dtype=int)
            np.cumsum(two[some], axis=1, out=below[:, 1:])
            drawn[some, index] = (one[some] * (below.take(first, 1) + below.take(last, 1))).sum(1) / 2
    auc = float(wins.sum() / pairs.sum())
    if max(len(names), pairs.max()) < 2 or members.sum() < _FEWEST_DRAWN:
        return Area(auc, None, None, len(names))
    chosen = rng.integers(len(names), size=(draws, len(names)))
    resampled = np.take_along_axis(drawn, chosen, 1).sum(1) / pairs[chosen].sum(1)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Area(auc, float(low), float(high), len(names))


def _by_client(
    scores: np.ndarray, members: np.ndarray, clients: np.ndarray, names: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for name in names:
        here = clients == name
        inside, outside = scores[here & members], scores[here & ~members]
        _require_scores(inside, outside)
        yield inside, outside


def _drawn(examples: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw as many examples as there are, with replacement: the count (draws, examples) of each."""
    chosen = rng.integers(examples, size=(draws, examples)) + examples * np.arange(draws)[:, None]
    return np.bincount(chosen.ravel(), minlength=draws * examples).reshape(draws, examples)


def _require_scores(members: np.ndarray, others: np.ndarray) -> None:
    require(len(members) >= 1 and len(others) >= 1, "members and non-members", members=len(members), others=len(others))
    finite = bool(np.isfinite(members).all() and np.isfinite(others).all())
    require(finite, "finite scores", scores="NaN or infinity")
