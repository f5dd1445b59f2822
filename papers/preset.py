"""A preset: what must be run for a cell of a table, and which figure of the result is compared with the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, TypeAlias

from flfw.experiment import Experiment
from papers.published import Cell

Scale = Literal["quick", "full"]

Source = Literal["run", "plan", "clock"]
"""Where figures come from: a whole run; what is known before one, with nothing trained; or one client's local steps."""


@dataclass(frozen=True)
class Figure:
    """A number of result.json.

    Attributes:
        name: where it stands: ``final.acc_local``; in a list, in the only entry with some values:
            ``audit.attack=ig,round=0.seconds``, or without one: ``audit.adaptation!=None.seconds``; or in each of its
            entries, for their mean: ``rounds.*.seconds``.
        words: what it is.
        factor: from its unit to the paper's; accuracies are shares and the papers print per cent.
        yes: where the paper prints Y or N, the least mean that is a Y; None: it prints the number.
        absent: what is printed where a result has no such number; empty: a figure beside another is then left out;
            None: that is a failure.
    """

    name: str
    words: str
    factor: float = 100.0
    yes: float | None = None
    absent: str | None = None

    def printed(self, mean: float) -> float | str:
        """What stands in the table for a mean over the seeds, in the paper's unit."""
        if self.yes is None:
            return mean
        return "Y" if mean >= self.yes else "N"


@dataclass(frozen=True)
class Preset:
    """Runs and figures of one cell.

    Attributes:
        variants: settings the paper chose among, mostly one; of each an experiment a seed, the same seeds for all.
        figure: what is compared with the published value: its mean over the seeds.
        also: figures that are shown beside it.
        chosen_by: the figure whose mean over the seeds is largest for the variant that counts; never one of test data.
        source: what is done with the experiments.
    """

    variants: tuple[tuple[Experiment, ...], ...]
    figure: Figure
    also: tuple[Figure, ...] = ()
    chosen_by: Figure | None = None
    source: Source = "run"

    def __post_init__(self) -> None:
        assert len(self.variants) == 1 or self.chosen_by, "several variants, and nothing to choose by"
        assert len({tuple(run.seed for run in runs) for runs in self.variants}) == 1, "other seeds in each variant"

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """Everything that must be run."""
        return tuple(experiment for runs in self.variants for experiment in runs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds over which the mean is taken."""
        return tuple(experiment.seed for experiment in self.variants[0])


Presets: TypeAlias = Callable[[Cell, Scale], Preset]


def presets(table: str) -> Presets | None:
    """How the cells of a table are measured: what the paper's own file, such as ``papers/hyperfl.py``, says of it.

    None: this version has no preset for it.
    """
    module = f"papers.{table.partition('.')[0]}"
    return import_module(module).TABLES.get(table) if find_spec(module) else None
