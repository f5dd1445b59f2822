"""Significance of identification: how often guesses that cannot know the truth are nearest to it all the same.

`flfw.audit.measures.recovery.identification` ranks a true example among its look-alikes. By chance it is first once in
(1 + look-alikes), but only in a batch of one: the guesses of a larger batch are first matched with the truths, so that
more of them are identified. In `flfw.audit.measures.permutations` stand the null hypothesis, and its limits.

Messages whose examples share look-alikes are rearranged together. They are not independent: if one constant guess
happens to lie far from the few public examples of a class, it identifies the truths of all messages at once. Messages
that share none are independent, and their counts are convolved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flfw.audit.measures.permutations import GuessedBatch, Numbered, arrangements, numbered, rankings, sharing
from flfw.audit.measures.public import PublicData
from flfw.errors import require

CONTROLLED = 0.01  # p-value from which on a result is held against its control


@final
@dataclass(frozen=True, eq=False)
class Identified:
    """Examples identified in all messages of a setting, and their number by chance.

    Attributes:
        count: examples that are nearer to their guesses than all of their look-alikes.
        compared: examples with look-alikes.
        null: (1 + compared,) probability of each count for guesses that do not depend on the messages.
        p: probability of this count or a larger one by chance, in (0, 1]; 1 where nothing was compared.
    """

    count: int
    compared: int
    null: np.ndarray
    p: float

    @property
    def chance(self) -> float | None:
        """Mean share of the examples, in [0, 1], that chance identifies; None where nothing was compared."""
        return float(self.null @ np.arange(len(self.null))) / self.compared if self.compared else None


def identify(
    attempts: Sequence[GuessedBatch], public: PublicData, rng: np.random.Generator, draws: int = 4999
) -> Identified:
    """Count the identified examples of all messages of a setting, and test whether chance explains them.

    For a batch of one that shares no example with others the null is exact: 1 in (1 + look-alikes). Otherwise it is
    drawn; the smallest p-value is then 1 / (1 + draws), multiplied by those of messages that share no examples.

    Args:
        attempts: the messages; those without guesses are left out by the caller.
        public: the source of the look-alikes.
        rng: generator of the arrangements.
        draws: number of arrangements besides the true one.

    Raises:
        InputError: no draws, shapes that do not fit, guesses that are not finite, or look-alikes of another class.

    >>> public = PublicData(np.array([[0.0], [0.4], [1.0]]), np.array([0, 0, 0]))
    >>> one = GuessedBatch(np.array([[0.6]]), np.array([[0.62]]), np.array([0]), [np.array([0, 1, 2])])
    >>> seen = identify([one], public, np.random.default_rng(0))
    >>> seen.count, seen.compared, seen.null.tolist(), seen.p
    (1, 1, [0.75, 0.25], 0.25)
    """
    require(draws >= 1, "draws >= 1", draws=draws)
    tests = [_tested(group, public, rng, draws) for group in sharing(numbered(attempts, public))]
    counts, nulls = [count for count, _ in tests], [null for _, null in tests]
    null = convolved(nulls)
    return Identified(sum(counts), len(null) - 1, null, identified_p(counts, nulls))


def identified_p(counts: Sequence[int], nulls: Sequence[np.ndarray]) -> float:
    """Return the probability that independent counts sum up to at least the observed total, in [0, 1].

    The nulls of `identify` need no smoothing. They contain the observed counts; so the share of all combinations of
    arrangements that reach the total is itself a valid p-value, and never 0.

    Args:
        counts: the observed counts.
        nulls: for each, the probabilities of 0, 1, 2, ... by chance.

    Raises:
        InputError: another number of nulls than of counts.

    >>> round(27000 * identified_p([1, 1, 1], [np.array([29 / 30, 1 / 30])] * 3), 9)
    1.0
    """
    require(len(counts) == len(nulls), f"{len(counts)} nulls, one a count", nulls=len(nulls))
    return min(1.0, float(convolved(nulls)[sum(counts) :].sum())) if sum(counts) else 1.0


def against_controls(result: Identified, controls: Sequence[Identified]) -> float:
    """Return the probability of a count if examples were identified as often as in the controls at the most, in [0, 1].

    The rate is the upper end of the controls' one-sided 95 % interval (Clopper and Pearson), with all of them pooled.
    So few messages, whose controls show little, prove nothing. It takes examples as independent.

    >>> one = Identified(3, 3, np.array([0.97, 0.01, 0.01, 0.01]), 1e-6)
    >>> none = Identified(0, 3, one.null, 1.0)
    >>> round(against_controls(one, [none, none]), 3)
    0.061
    """
    from scipy.stats import beta, binom

    hits, trials = sum(one.count for one in controls), sum(one.compared for one in controls)
    if hits == trials:
        return 1.0
    rate = float(beta.ppf(0.95, hits + 1, trials - hits))
    return float(binom.sf(result.count - 1, result.compared, rate))


def convolved(nulls: Sequence[np.ndarray]) -> np.ndarray:
    """Return the probabilities of the sum of independent counts, from those of each; a sum of none is 0.

    >>> convolved([np.array([0.5, 0.5]), np.array([0.5, 0.5])]).tolist()
    [0.25, 0.5, 0.25]
    """
    total = np.ones(1)
    for null in nulls:
        total = np.convolve(total, null)
    return total


def _tested(
    messages: Sequence[Numbered], public: PublicData, rng: np.random.Generator, draws: int
) -> tuple[int, np.ndarray]:
    """Return the count of messages that share examples, and the probabilities of every count by chance."""
    ranked, pools, inputs = rankings(messages, public)
    compared = sum(int(ranking.ranked.sum()) for ranking in ranked)
    alone = len(messages) == 1 and len(messages[0].truth) == 1
    if alone and compared:
        count = ranked[0].identified(np.arange(len(inputs) + 1)[None])
        return int(count[0]), np.array([1 - 1 / len(inputs), 1 / len(inputs)])
    if not compared:
        return 0, np.ones(1)
    counts = np.concatenate(
        [np.sum([ranking.identified(drawn) for ranking in ranked], axis=0) for drawn in arrangements(pools, draws, rng)]
    )
    return int(counts[0]), np.bincount(counts, minlength=compared + 1) / len(counts)
