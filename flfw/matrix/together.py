"""Results of all attacks on one example together, by keys that are equal for the same example in two sets of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple, TypeAlias

from flfw.matrix.rows import AttackSetting, Finished

Victim: TypeAlias = tuple[object, ...]
Place: TypeAlias = tuple[str, str, int]
"""Vantage, source and round of an attack."""
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


def strongest(runs: Iterable[Finished], settings: Iterable[AttackSetting]) -> dict[Victim, VictimOutcome]:
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


def common_places(sides: Iterable[Iterable[Finished]]) -> set[Place]:
    """Return the vantages, sources and rounds at which all sides were attacked; at others one has more chances."""
    each = [{_place(row.setting) for run in runs for row in run.rows} for runs in sides]
    attacked = [places for places in each if places]
    return set.intersection(*attacked) if attacked else set()


def across(runs: Iterable[Finished], by_seed: bool, places: Set[Place]) -> dict[Victim, VictimOutcome]:
    """Return the same of any runs, whose seeds and clients need not be those of the runs they are compared with.

    The position in the training part identifies an example of the same data. Results of earlier versions lack it; there
    the same draw from the same data identifies it.

    Args:
        runs: the runs.
        by_seed: whether an example under two seeds counts as two, as where seeds are pooled.
        places: vantages, sources and rounds that count.
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
    return setting.vantage, setting.source, setting.round
