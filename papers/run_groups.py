"""Groups of finished runs that differ in their seeds alone, which a figure shows as one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from flfw.experiment import FREE_ON_RESUME
from flfw.matrix.findings import Combination, combine
from flfw.matrix.record import MATRIX, read_matrix
from flfw.matrix.rows import FinishedRun
from flfw.papers.comparisons import kind

_APART = {*FREE_ON_RESUME, "out", "seed"}  # settings in which the runs of a group may differ


@final
@dataclass(frozen=True)
class RunGroup:
    """Runs of one experiment with different seeds.

    Attributes:
        name: name in figures.
        runs: the runs, at least one.
    """

    name: str
    runs: tuple[FinishedRun, ...]

    @cached_property
    def combination(self) -> Combination:
        """The runs with their leakage pooled over the seeds."""
        config = self.runs[0].result["config"]
        return combine(self.name, str(config.get("defence") or "none"), self.runs)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs."""
        return [run.seed for run in self.runs]


def expanded(folders: Sequence[Path]) -> list[Path]:
    """Replace the folder of a matrix, or of several seeds, by those of its complete runs.

    Raises:
        InputError: its matrix.json is damaged.
    """
    runs: list[Path] = []
    for folder in folders:
        if (folder / MATRIX).is_file():
            cells = read_matrix(folder / MATRIX)["cells"]
            runs += [folder / cell["folder"] for cell in cells if cell["state"] == "complete" and "folder" in cell]
        else:
            runs.append(folder)
    return runs


def grouped(runs: Sequence[FinishedRun]) -> list[RunGroup]:
    """Group runs by all settings but the seed; runs of equal settings and seed stay apart."""
    groups: dict[tuple[str, int], list[FinishedRun]] = {}
    for run in runs:
        config = {key: value for key, value in run.result["config"].items() if key not in _APART}
        same = json.dumps(config, sort_keys=True, default=str)
        turn = 0
        while any(run.seed == other.seed for other in groups.get((same, turn), [])):
            turn += 1
        groups.setdefault((same, turn), []).append(run)
    each = [tuple(group) for group in groups.values()]
    return [RunGroup(name, group) for name, group in zip(names([group[0] for group in each]), each, strict=True)]


def names(runs: Sequence[FinishedRun]) -> list[str]:
    """Return different names for runs: their kinds, or else the shortest ends of their paths that differ."""
    places = [one.folder.resolve().parts for one in runs]
    ends = ([str(Path(*place[-depth:])) for place in places] for depth in range(1, max(map(len, places)) + 1))
    return next(labels for labels in (list(map(kind, runs)), *ends) if len(set(labels)) == len(labels))
