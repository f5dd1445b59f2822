"""Results of all attacks on one example together, by keys that are equal for the same example in two sets of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from flfw.comparisons.rows import AttackSetting, FinishedRun

Victim: TypeAlias = tuple[object, ...]
Place: TypeAlias = tuple[str, str, str, int]
"""Attack with its vantage, source and round."""
_SAME_DRAW = ("split", "clients", "seed", "victim_batch")


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
    results: dict[Victim, VictimOutcome] = {}
    for row in (row for run in runs for row in run.rows if row.setting in counted):
        where = (row.setting.vantage, row.setting.source)
        # Equal label and position prove that the same slot held the same example.
        key = (*where, row.seed, row.place, row.label, row.example)
        results[key] = together(results.get(key), VictimOutcome(row.recovered, row.counted, row.seed, row.message))
    return results


def together(before: VictimOutcome | None, now: VictimOutcome) -> VictimOutcome:
    """Join the results of two attacks on one example."""
    if before is None:
        return now
    known = [value for value in (before.closeness, now.closeness) if value is not None]
    return now._replace(recovered=before.recovered or now.recovered, closeness=max(known, default=None))


def common_places(sides: Iterable[Iterable[FinishedRun]]) -> set[Place]:
    """Return the attacks, vantages, sources and rounds that all sides have; others would give one more chances."""
    each = [{_place(row.setting) for run in runs for row in run.rows} for runs in sides]
    attacked = [places for places in each if places]
    return set.intersection(*attacked) if attacked else set()


def across(runs: Iterable[FinishedRun], by_seed: bool, places: Set[Place]) -> dict[Victim, VictimOutcome]:
    """Return the same of any runs, whose seeds and clients need not be those of the runs they are compared with.

    The position in the training part identifies an example of the same data. Results of earlier versions lack it; there
    the same draw from the same data identifies it.

    Args:
        runs: the runs.
        by_seed: whether an example under two seeds counts as two, as where seeds are pooled.
        places: attacks, vantages, sources and rounds that count.
    """
    results: dict[Victim, VictimOutcome] = {}
    for run in runs:
        config, held = run.result["config"], (run.result.get("provenance") or {}).get("data") or {}
        data = held.get("digest"), config.get("dataset")
        draw = tuple(config.get(key) for key in _SAME_DRAW)
        for row in (row for row in run.rows if _place(row.setting) in places):
            which = (row.example,) if row.example else (row.place, *draw)
            where = (row.setting.vantage, row.setting.source)
            key = (*where, *data, row.label, *which, *([row.seed] if by_seed else []))
            results[key] = together(results.get(key), VictimOutcome(row.recovered, row.counted, row.seed, row.message))
    return results


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
