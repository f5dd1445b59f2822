"""Attribute inference: for each column of a table, the share of values recovered, and by guessing.

The best guess without the update is a constant, `flfw.audit.measures.public.PublicData.typical`. In batches it is not
enough to beat it: the guesses are matched with the truths first. On UCI Adult, rows of other people in batches of 32
match 93.2 % of all features where the constants match 92.5 %, and up to 22 points more of a column; McNemar's test
calls 6 % of the columns significant at 0.01. `column_chance` is the null that knows of the matching.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flfw.audit.measures.permutations import GuessedBatch, Numbered, arrangements, numbered, rankings
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.recovery import column_matches
from flfw.audit.measures.statistics import share_interval
from flfw.errors import require


@final
@dataclass(frozen=True)
class ColumnRate:
    """Recovery of one column.

    Attributes:
        share: share of the rows, in [0, 1], in which the column was recovered.
        low: the lower end of its 95 % interval, clustered by message.
        high: the upper end.
        floor: share that the best constant guess matches.
        chance: mean share that the same guesses match in rows they cannot know; None where it was not asked for.
        p: one-sided p-value that the share is above the floor, and above chance where that is known.
    """

    share: float
    low: float
    high: float
    floor: float
    chance: float | None
    p: float


@final
@dataclass(frozen=True, eq=False)
class ColumnChance:
    """Columns matched by guesses that cannot know the rows.

    Attributes:
        share: (d,) mean share of the rows matched, in [0, 1].
        p: (d,) probability that at least as many rows match as were seen to.
    """

    share: np.ndarray
    p: np.ndarray


def column_rates(
    matches: np.ndarray, floors: np.ndarray, messages: np.ndarray | None = None, chance: ColumnChance | None = None
) -> list[ColumnRate]:
    """Sum up the matched features of rows, column by column.

    The p-value is that of a sign-flip test on the discordant rows, those that only one of attack and constant guess
    matches: how often at least as large a surplus would arise if the two were interchangeable for each message. With
    one row a message this is McNemar's exact test. Where chance is given too, it is the larger of both p-values, that
    is, of the hypothesis that the attack is no better than at least one of them. Many columns are tested at once: call
    `flfw.audit.measures.statistics.significant` with the columns times the settings.

    Rows of one client are alike. A constant guess that suits this client better than the public rows' constant may be
    significant without any knowledge of single rows; compare share and chance.

    Args:
        matches: (n, d) of bool, from `flfw.audit.measures.recovery.column_matches`.
        floors: (n, d) of bool, the same for the constant guess of each row's class.
        messages: (n,) the row's message, of any type that sorts; None: each row came by itself.
        chance: from `column_chance`; needed where batches have more than one row.

    Raises:
        InputError: no rows, or arrays that do not fit.

    >>> attack, constant = np.array([[True]] * 5 + [[False]]), np.array([[False]] * 4 + [[True]] * 2)
    >>> rate = column_rates(attack, constant)[0]  # 4 rows by the attack only, 1 by the constant only: 6 of 32 flips
    >>> round(rate.share, 3), round(rate.floor, 3), rate.p
    (0.833, 0.333, 0.1875)
    """
    require(matches.ndim == 2 and matches.size > 0, "matches of at least one row (n, d)", shape=matches.shape)
    require(floors.shape == matches.shape, f"floors of shape {matches.shape}", shape=floors.shape)
    count, width = matches.shape
    owners = np.arange(count) if messages is None else np.unique(messages, return_inverse=True)[1].ravel()
    require(len(owners) == count, f"{count} messages, one a row", messages=len(owners))
    surplus = np.zeros((owners.max() + 1, width), int)
    np.add.at(surplus, owners, matches.astype(int) - floors.astype(int))
    rates = []
    for column in range(width):
        hits = int(matches[:, column].sum())
        low, high = share_interval(hits, count, len(surplus))
        p = _surplus_p(surplus[:, column])
        if chance is not None:
            p = max(p, float(chance.p[column]))
        by_chance = None if chance is None else float(chance.share[column])
        rates.append(ColumnRate(hits / count, low, high, float(floors[:, column].mean()), by_chance, p))
    return rates


def column_chance(
    attempts: Sequence[GuessedBatch], public: PublicData, rng: np.random.Generator, draws: int = 4999
) -> ColumnChance:
    """Match the columns of the same guesses in rows they cannot know; see `flfw.audit.measures.permutations`.

    Args:
        attempts: the messages of a setting, all with rows.
        public: the source of the look-alikes; without look-alikes of its class a row stays in its place.
        rng: generator of the arrangements.
        draws: number of arrangements besides the true one; the smallest p-value is 1 / (1 + draws).

    Raises:
        InputError: no messages, no draws, or images; else as `flfw.audit.measures.identification.identify`.
    """
    require(draws >= 1, "draws >= 1", draws=draws)
    require(len(attempts) >= 1, "at least one message", messages=len(attempts))
    messages = numbered(attempts, public)
    ranked, pools, inputs = rankings(messages, public)
    pairs = [(one, _matches(message, inputs, public)) for one, message in zip(ranked, messages, strict=True)]
    matched = [
        sum(table[drawn[:, one.truth], one.matched(drawn)].sum(1) for one, table in pairs)
        for drawn in arrangements(pools, draws, rng)
    ]
    counts = np.concatenate(matched)  # (1 + draws, d)
    rows = sum(len(message.truth) for message in messages)
    return ColumnChance(counts.mean(0) / rows, (counts >= counts[0]).mean(0))


def _matches(message: Numbered, inputs: np.ndarray, public: PublicData) -> np.ndarray:
    """Return whether each guess matches each feature of each element (elements, B, d)."""
    guesses, binary = message.attempt.guesses, public.binary
    matched = [column_matches(inputs, np.broadcast_to(x, inputs.shape), binary) for x in guesses]
    return public.cells(np.stack(matched, axis=1))


def _surplus_p(surplus: np.ndarray) -> float:
    """Return how often random signs of the messages' surpluses (M,) give a sum at least as large, in (0, 1]."""
    from scipy.stats import binom

    sizes, numbers = np.unique(np.abs(surplus[surplus != 0]), return_counts=True)
    chances = np.ones(1)  # of the sum of the surpluses with a positive sign
    for size, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        steps = np.zeros(size * number + 1)
        steps[::size] = binom.pmf(np.arange(number + 1), number, 0.5)
        chances = np.convolve(chances, steps)
    return min(1.0, float(chances[int(surplus[surplus > 0].sum()) :].sum()))
