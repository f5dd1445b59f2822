"""Ranks of combinations: which leak more than which, tested over the same victims; those that do not differ share them.

What an example gave under all attacks together is keyed alike for the same example in two sets of runs. Each pair of
combinations is compared twice, and Holm's correction is over all of these tests together: the probability that a page
calls any difference real where there is none is at most 5 %. As elsewhere, a message counts as a whole.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from math import ceil, log2
from string import ascii_lowercase
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np

from flfw.audit.measures.statistics import Interval, interval, paired, share_interval
from flfw.comparisons.rows import AttackSetting, FinishedRun, MatrixRow
from flfw.rng import numpy_generator

Victim: TypeAlias = tuple[object, ...]
Place: TypeAlias = tuple[str, str, str, int]
"""Attack with its vantage, source and round."""


class VictimOutcome(NamedTuple):
    """Result of all attacks together on one example, as an attacker who makes all of them has it.

    ``closeness``: of the closest result in dB; where all attacks failed, of the best guess; None: neither is known.
    """

    recovered: bool
    closeness: float | None
    seed: int
    message: str


Outcomes: TypeAlias = Mapping[Victim, VictimOutcome]


def strongest(runs: Iterable[FinishedRun], settings: Iterable[AttackSetting]) -> dict[Victim, VictimOutcome]:
    """Return for each attacked example of some runs the result of all attacks of one vantage at all rounds together.

    Args:
        runs: runs of different seeds.
        settings: the attacks that count.
    """
    counted = set(settings)
    rows = (row for run in runs for row in run.rows if row.setting in counted)
    # Equal label and position prove that the same slot held the same example.
    return _joined(((row.seed, row.place, row.label, row.example), row) for row in rows)


def _joined(keyed: Iterable[tuple[Victim, MatrixRow]]) -> dict[Victim, VictimOutcome]:
    results: dict[Victim, VictimOutcome] = {}
    for example, row in keyed:
        key = (row.setting.vantage, row.setting.source, *example)
        results[key] = together(results.get(key), VictimOutcome(row.recovered, row.counted, row.seed, row.message))
    return results


def together(before: VictimOutcome | None, now: VictimOutcome) -> VictimOutcome:
    """Join the results of two attacks on one example."""
    if before is None:
        return now
    known = [value for value in (before.closeness, now.closeness) if value is not None]
    return now._replace(recovered=before.recovered or now.recovered, closeness=max(known, default=None))


def mean_closeness(results: Iterable[VictimOutcome | MatrixRow]) -> Interval | None:
    """Return the mean closeness of results over seeds and messages, with its interval; None: none has one."""
    known = [(one.closeness, one.seed, one.message) for one in results if one.closeness is not None]
    if not known:
        return None
    values, seeds, messages = map(np.array, zip(*known, strict=True))
    return interval(values, seeds, numpy_generator(0, "matrix"), messages=messages)


def common_places(sides: Iterable[Iterable[FinishedRun]]) -> set[Place]:
    """Return the attacks, vantages, sources and rounds that all sides have; others would give one more chances."""
    each = [{_place(row.setting) for run in runs for row in run.rows} for runs in sides]
    attacked = [places for places in each if places]
    return set.intersection(*attacked) if attacked else set()


def across(runs: Iterable[FinishedRun], by_seed: bool, places: Set[Place]) -> dict[Victim, VictimOutcome]:
    """Return the same of any runs, whose seeds and clients need not be those of the runs they are compared with.

    The position in the training part identifies an example of the same data.

    Args:
        runs: the runs.
        by_seed: whether an example under two seeds counts as two, as where seeds are pooled.
        places: attacks, vantages, sources and rounds that count.
    """
    rows = ((run.data, row) for run in runs for row in run.rows if _place(row.setting) in places)
    return _joined(((*data, row.label, row.example, *([row.seed] if by_seed else [])), row) for data, row in rows)


def _place(setting: AttackSetting) -> Place:
    return setting.attack, setting.vantage, setting.source, setting.round


def joined_messages(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Return for each example, by its messages on two sides, the number of the group that has to count as a whole.

    Sides may put the same examples into batches of different sizes: those that came in one message on either side are
    not independent, so that messages with a common example are one group.

    >>> joined_messages([("a", "x"), ("b", "x"), ("c", "y")])
    [0, 0, 1]
    """
    group: dict[tuple[int, str], int] = {}
    for number, (ours, theirs) in enumerate(pairs):
        ends = (0, ours), (1, theirs)
        met = {group[end] for end in ends if end in group}
        minimum = min(met, default=number)
        group |= {end: minimum for end, before in group.items() if before in met}
        group |= dict.fromkeys(ends, minimum)
    places = {number: index for index, number in enumerate(sorted(set(group.values())))}
    return [places[group[0, ours]] for ours, _ in pairs]


ALPHA = 0.05
"""Greatest probability with which a ranking may call any difference real where there is none."""
Measure: TypeAlias = Literal["recovered", "closeness"]
_EXACT = 13  # messages up to which all flips are counted where there are ties; beyond, the normal distribution serves


@final
@dataclass(frozen=True)
class CombinationStanding:
    """Leakage of a combination under all attacks together.

    Attributes:
        combination: name of the combination.
        images: attacked examples.
        recovered: examples that at least one attack recovered.
        share_interval: 95 % interval of the share recovered.
        closeness: mean closeness in dB of the closest results, with its interval; None: there is none.
        letters: letters of its groups; combinations with a common letter do not differ significantly.
    """

    combination: str
    images: int
    recovered: int
    share_interval: tuple[float, float]
    closeness: Interval | None
    letters: str


@final
@dataclass(frozen=True)
class PairTest:
    """Test of one pair by one measure over their common examples.

    Attributes:
        first: name of a combination.
        second: name of another.
        measure: the measure.
        images: common examples.
        messages: messages that they came in.
        difference: mean difference, first minus second: a share, or dB.
        p: two-sided p-value of the test alone.
        adjusted: p-value by Holm's correction over all tests of the ranking.
    """

    first: str
    second: str
    measure: Measure
    images: int
    messages: int
    difference: float
    p: float
    adjusted: float

    @property
    def significant(self) -> bool:
        """True if the difference is called real."""
        return self.adjusted <= ALPHA


def messages_needed(tests: int) -> int:
    """Return the fewest messages with which one of so many tests could be significant; 0 for no tests."""
    return ceil(log2(2 * tests / ALPHA)) if tests else 0


@final
@dataclass(frozen=True)
class CombinationRanking:
    """Ranking of combinations, as far as it is significant.

    Attributes:
        standings: the combinations, the one with the largest leakage first.
        tests: all tests, two for each pair with common examples.
    """

    standings: tuple[CombinationStanding, ...]
    tests: tuple[PairTest, ...]

    def leaks_more(self, one: str, other: str) -> bool:
        """Return whether one combination leaks significantly more than another, and by no measure less."""
        signs = set[float]()
        for test in self.tests:
            if test.significant and {test.first, test.second} == {one, other}:
                signs.add(np.sign(test.difference) * (1 if test.first == one else -1))
        return signs == {1.0}

    @property
    def most(self) -> list[str]:
        """Names of the combinations than which none leaks significantly more."""
        names = [one.combination for one in self.standings]
        return [name for name in names if not any(self.leaks_more(other, name) for other in names)]

    @property
    def least(self) -> list[str]:
        """Names of the combinations than which none leaks significantly less."""
        names = [one.combination for one in self.standings]
        return [name for name in names if not any(self.leaks_more(name, other) for other in names)]

    @property
    def alike(self) -> list[list[str]]:
        """Groups of two or more combinations that do not differ significantly, one for each letter."""
        every = dict.fromkeys(letter for one in self.standings for letter in one.letters)
        groups = [[one.combination for one in self.standings if letter in one.letters] for letter in every]
        return [group for group in groups if len(group) > 1]

    @property
    def too_few(self) -> int:
        """Fewest messages with which any difference could be significant, if there are fewer; else 0."""
        maximum = max((test.messages for test in self.tests), default=0)
        needed = messages_needed(len(self.tests))
        return needed if maximum < needed else 0

    @property
    def sentences(self) -> list[str]:
        """Sentences on it: groups without a difference, pairs that were not compared, power."""
        lines = [f"These {len(group)} do not differ at 5 %: {listed(group)}." for group in self.alike]
        compared = {frozenset((test.first, test.second)) for test in self.tests}
        pairs = combinations([one.combination for one in self.standings], 2)
        missing = [f"{a} with {b}" for a, b in pairs if frozenset((a, b)) not in compared]
        lines += [f"Not compared, for they have no common example: {'; '.join(missing)}."] if missing else []
        if self.too_few:
            lines.append(
                f"No difference could be found here: {len(self.tests)} test{'s' * (len(self.tests) > 1)} need at least "
                f"{self.too_few} messages in common. That none was found is no evidence that there is none."
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return it as matrix.json holds it."""
        return {
            "alpha": ALPHA,
            "standings": [asdict(each) for each in self.standings],
            "tests": [vars(test) | {"significant": test.significant} for test in self.tests],
            "alike": self.alike,
            "most": self.most,
            "least": self.least,
            "sentences": self.sentences,
            "messages_needed": self.too_few or None,
        }


def listed(names: Sequence[str]) -> str:
    """Join names in words.

    >>> listed("a"), listed("ab"), listed("abc")
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def ranked(outcomes: Mapping[str, Outcomes]) -> CombinationRanking:
    """Rank combinations by the results of all attacks together, and test each pair over its common examples.

    Whether an example was recovered is compared by McNemar's exact test (of batches, by flips of whole messages), the
    closeness by Wilcoxon's signed-rank test of the messages' means. Pairs without common examples are not compared.

    Args:
        outcomes: results by the combination's name.
    """
    attacked = {name: each for name, each in outcomes.items() if each}
    raw = [test for pair in combinations(attacked, 2) for test in _tests(*pair, attacked)]
    adjusted = holm([test.p for test in raw])
    tests = [replace(test, adjusted=value) for test, value in zip(raw, adjusted, strict=True)]
    known: dict[str, tuple[float, float]] = {}
    closeness = {name: mean_closeness(each.values()) for name, each in attacked.items()}
    for name, each in attacked.items():
        mean = closeness[name]
        known[name] = sum(one.recovered for one in each.values()) / len(each), mean.mean if mean else -np.inf
    order = sorted(attacked, key=lambda name: known[name], reverse=True)
    differing = {frozenset((test.first, test.second)) for test in tests if test.significant}
    compared = {frozenset((test.first, test.second)) for test in tests}
    apart = differing | {pair for pair in map(frozenset, combinations(order, 2)) if pair not in compared}
    marks = letters(order, apart)
    standings = [_standing(name, attacked[name], closeness[name], marks[name]) for name in order]
    return CombinationRanking(tuple(standings), tuple(tests))


def holm(values: Sequence[float]) -> list[float]:
    """Return the p-values of several tests, adjusted so that all may be read together (Holm 1979).

    >>> holm([0.01, 0.04, 0.02])
    [0.03, 0.04, 0.04]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    adjusted, largest = [0.0] * len(values), 0.0
    for index, i in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - index) * values[i]))
        adjusted[i] = largest
    return adjusted


def letters(names: Sequence[str], apart: Iterable[frozenset[str]]) -> dict[str, str]:
    """Give letters to names so that two share one exactly if they are not apart (Piepho 2004, insert and absorb).

    >>> letters(["x", "y", "z"], [frozenset(("x", "z"))])
    {'x': 'a', 'y': 'ab', 'z': 'b'}
    """
    groups = [frozenset(names)]
    for pair in sorted(apart, key=lambda pair: sorted(map(list(names).index, pair))):
        split = [part for group in groups for part in ([group - {one} for one in pair] if pair <= group else [group])]
        groups = [part for part in dict.fromkeys(split) if part and not any(part < other for other in split)]
    groups.sort(key=lambda group: [name not in group for name in names])
    marks = [*ascii_lowercase, *(f"({number})" for number in range(len(ascii_lowercase) + 1, len(groups) + 1))]
    return {name: "".join(m for m, group in zip(marks, groups, strict=False) if name in group) for name in names}


def _standing(name: str, each: Outcomes, closeness: Interval | None, marks: str) -> CombinationStanding:
    recovered, messages = sum(one.recovered for one in each.values()), len({o.message for o in each.values()})
    share = share_interval(recovered, len(each), messages)
    return CombinationStanding(name, len(each), recovered, share, closeness, marks)


def _tests(first: str, second: str, outcomes: Mapping[str, Outcomes]) -> list[PairTest]:
    ours, theirs = outcomes[first], outcomes[second]
    both = [(ours[key], theirs[key]) for key in ours if key in theirs]
    tests = []
    for measure in ("recovered", "closeness"):
        groups = joined_messages([(a.message, b.message) for a, b in both])
        values = [(getattr(a, measure), getattr(b, measure), group) for (a, b), group in zip(both, groups, strict=True)]
        known = [(float(a), float(b), group) for a, b, group in values if a is not None and b is not None]
        if known:
            a, b, messages = map(np.array, zip(*known, strict=True))
            count = len(np.unique(messages))
            p = _of_shares(a, b, messages) if measure == "recovered" else _of_closeness(a - b, messages)
            tests.append(PairTest(first, second, measure, len(a), count, float((a - b).mean()), p, p))
    return tests


def _of_shares(a: np.ndarray, b: np.ndarray, messages: np.ndarray) -> float:
    """Return the p-value of McNemar's exact test, or of batches that of the flips of whole messages."""
    from scipy.stats import binomtest

    if len(np.unique(messages)) < len(a):
        return paired(a, b, None, numpy_generator(0, "matrix"), messages).p
    more, less = int((a > b).sum()), int((a < b).sum())
    return float(binomtest(more, more + less).pvalue) if more + less else 1.0


def _of_closeness(gaps: np.ndarray, messages: np.ndarray) -> float:
    """Return the p-value of Wilcoxon's signed-rank test of the messages' mean differences."""
    from scipy.stats import PermutationMethod, wilcoxon

    inverse = np.unique(messages, return_inverse=True)[1].ravel()
    means = np.bincount(inverse, gaps) / np.bincount(inverse)
    means = means[means != 0]
    if len(means) < 2:
        return 1.0  # one message may fall either way
    tied = len(np.unique(abs(means))) < len(means)  # without ties SciPy has the exact distribution, up to 50
    method: Any = PermutationMethod(n_resamples=2**_EXACT) if tied and len(means) <= _EXACT else "auto"
    result: Any = wilcoxon(means, method=method)
    return float(result.pvalue)
