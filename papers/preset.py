"""Presets: the runs that a cell of a table needs, and the figure of their results that is compared with the paper's."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, TypeAlias

from flfw import plugins
from flfw.experiment import Experiment
from flfw.papers.published import Cell
from flfw.task.method import Method

Scale = Literal["quick", "full"]

Variant = Literal["authors", "ours"]
"""The methods as in their authors' code, or as here."""

Source = Literal["run", "plan", "clock"]
"""Source of the figures: a whole run; the plan before a run, without training; or the local steps of one client."""


@dataclass(frozen=True)
class ResultMetric:
    """A number of result.json.

    Attributes:
        name: path of the number: ``final.acc_local``. In a list, it selects the only entry with some values:
            ``audit.attack=ig,round=0.seconds``, or without a value: ``audit.adaptation!=None.seconds``. Or it is the
            mean over all entries: ``rounds.*.seconds``.
        words: description of the number.
        factor: factor from its unit to the paper's; accuracies are shares and the papers print per cent.
        yes: where the paper prints Y or N, the smallest mean that is a Y; None: it prints the number.
        absent: text that is printed if a result has no such number; empty: a figure beside another is then left out;
            None: that is a failure.
    """

    name: str
    words: str
    factor: float = 100.0
    yes: float | None = None
    absent: str | None = None

    def printed(self, mean: float) -> float | str:
        """Return the table entry for a mean over the seeds, in the paper's unit."""
        return mean if self.yes is None else "Y" if mean >= self.yes else "N"


@dataclass(frozen=True)
class Further:
    """Figure from runs of its own, which is shown beside a cell's.

    Attributes:
        name: key of its mean among the figures beside the cell's.
        experiments: the runs, one for each seed.
        figure: the figure.
    """

    name: str
    experiments: tuple[Experiment, ...]
    figure: ResultMetric


@dataclass(frozen=True)
class Preset:
    """Runs and figures of one cell.

    Attributes:
        choices: settings that the paper chose among, mostly one; each has one experiment per seed, with equal seeds.
        figure: the figure whose mean over the seeds is compared with the published value.
        also: figures that are shown beside it.
        chosen_by: the choice with the largest mean of this figure is chosen; never a figure of test data.
        source: the way in which the experiments are measured.
        beside: the same experiments in the variant ``ours``, shown beside; empty: there is no difference.
        further: figures from other runs, shown beside.
    """

    choices: tuple[tuple[Experiment, ...], ...]
    figure: ResultMetric
    also: tuple[ResultMetric, ...] = ()
    chosen_by: ResultMetric | None = None
    source: Source = "run"
    beside: tuple[Experiment, ...] = ()
    further: tuple[Further, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.choices) == 1 or self.chosen_by, "several choices, and nothing to choose by"
        assert len({tuple(run.seed for run in runs) for runs in self.choices}) == 1, "other seeds in each choice"

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """Experiments that must be run, each once: of all choices, and those beside."""
        others = (experiment for one in self.further for experiment in one.experiments)
        every = (*(experiment for runs in self.choices for experiment in runs), *self.beside, *others)
        return tuple(dict.fromkeys(every))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds over which the mean is taken."""
        return tuple(experiment.seed for experiment in self.choices[0])


Presets: TypeAlias = Callable[[Cell, Scale], Preset]


def presets(table: str) -> Presets | None:
    """Return the presets of a table from the paper's own file, such as ``papers/hyperfl.py``.

    None: this version has no presets for it.
    """
    module = f"flfw.papers.{table.partition('.')[0]}"
    return import_module(module).TABLES.get(table) if find_spec(module) else None


def at_seeds(run: Experiment, seeds: Iterable[int]) -> tuple[Experiment, ...]:
    """Return the run with each of the seeds."""
    return tuple(replace(run, seed=seed) for seed in seeds)


def as_authors(experiment: Experiment) -> Experiment:
    """Return the experiment with the method as in its authors' code, where that is another one."""
    name = experiment.method
    differs = (
        name in plugins.names(plugins.METHOD) and "authors" in plugins.load_class(plugins.METHOD, name, Method).variants
    )
    return replace(experiment, variant="authors") if differs else experiment


def varied(preset: Preset, table: str, variant: Variant) -> Preset:
    """Return the preset in a variant; for ``authors`` the runs of ``ours`` stand beside, where the two differ.

    Args:
        preset: the preset of the variant ``ours``.
        table: its table; the paper's file may have a function ``authors`` that changes more than the method.
        variant: the variant.
    """
    module = f"flfw.papers.{table.partition('.')[0]}"
    change = getattr(import_module(module), "authors", as_authors) if find_spec(module) else as_authors
    if variant == "ours" or preset.source != "run":
        return preset
    choices = tuple(tuple(map(change, runs)) for runs in preset.choices)
    further = tuple(replace(one, experiments=tuple(map(change, one.experiments))) for one in preset.further)
    if choices == preset.choices:
        return preset
    beside = preset.choices[0] if len(preset.choices) == 1 else ()
    return replace(preset, choices=choices, beside=beside, further=further)
