"""Question of a matrix: its axes, and the experiment of each cell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, final

from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.experiment.fields import AXES, WITHIN, axes
from flfw.plans.run_plan import attack_fields
from flfw.plugins import short_name, split_assignment

NO_DEFENCE = "none"
SEARCHES = "searches"
"""Setting of attacks that search in another way when they know a mechanism; ``both`` makes each search."""
_VARIED = ("method", "defence", "attack", "seed", "set")


@final
@dataclass(frozen=True)
class Matrix:
    """Axes of a matrix; an empty axis takes the experiment's value.

    Attributes:
        methods: federated methods.
        defences: client-side defences, or pipelines of several such as ``soteria+prune``; ``none`` is the baseline.
        attacks: attacks, all run in every cell.
        seeds: seeds, one run each.
        datasets: data sets, each with a matrix of its own; see `flfw.comparisons.matrices`.

    Raises:
        InputError: a value is empty or occurs twice, or a seed is negative.
    """

    methods: tuple[str, ...] = ()
    defences: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    datasets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for axis in AXES:
            values = getattr(self, axis)
            require(all(str(value) for value in values), f"a value behind each comma of {axis}", **{axis: values})
            twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
            require(not twice, f"each of the {axis} once", twice=", ".join(map(str, twice)))
        require(min(self.seeds, default=0) >= 0, "seeds >= 0", seeds=self.seeds)

    def filled(self, experiment: Experiment) -> Matrix:
        """Return the matrix with empty axes filled from the experiment."""
        return Matrix(
            self.methods or (experiment.method,),
            self.defences or (experiment.defence,),
            self.attacks or experiment.attack,
            self.seeds or (experiment.seed,),
        )

    def with_equal_attackers(self, experiment: Experiment) -> Experiment:
        """Return the experiment in which clients of all combinations meet the same searches of an attack.

        An attack that searches in another way when it knows a defence has the setting ``searches``. Unless the user
        chose it, each of its searches is made everywhere: else a cell could leak less only because it met the weaker.

        Args:
            experiment: the experiment of a filled matrix.
        """
        if len(self.methods) * len(self.defences) == 1:
            return experiment
        names = [name for name in self.attacks if name != "none" and SEARCHES in attack_fields(name)]
        chosen = {split_assignment(one)[0] for one in experiment.set}
        wanted = [f"{short_name(name)}.{SEARCHES}" for name in names]
        added = tuple(f"{target}=both" for target in wanted if target not in chosen)
        return replace(experiment, set=(*experiment.set, *added))

    def cells(self, experiment: Experiment, folder: Path) -> tuple[Experiment, ...]:
        """Return an experiment for each method, defence and seed of a filled matrix; it has all other settings."""
        cells = []
        for method, defence, seed in product(self.methods, self.defences, self.seeds):
            out = folder / "-".join((*map(folder_name, (method, defence)), f"s{seed}"))
            varied = {"method": method, "defence": defence, "attack": self.attacks, "seed": seed, "out": out}
            cell = replace(experiment, **varied)
            cells.append(replace(cell, set=self._assignments(experiment, {method, *cell.defences})))
        require(len({cell.out for cell in cells}) == len(cells), "names that give different folders", matrix=self)
        return tuple(cells)

    def _assignments(self, experiment: Experiment, present: set[str]) -> tuple[str, ...]:
        """Return the ``--set`` assignments for a cell; a run refuses settings of plug-ins that it does not use."""
        stages = {name for defence in self.defences for name in replace(experiment, defence=defence).defences}
        absent = {short_name(name) for name in {*self.methods, *stages} - present}
        absent -= {short_name(name) for name in present}
        return tuple(a for a in experiment.set if self._meant(split_assignment(a)[0], absent))

    def _meant(self, target: str, absent: set[str]) -> bool:
        """Return whether ``plugin.field`` applies to a cell; an attack may have the name of an absent method."""
        plugin, _, field = target.rpartition(".")
        attacks = [name for name in self.attacks if short_name(name) == plugin]
        return plugin not in absent or any(field in attack_fields(name) for name in attacks)

    def question(self, experiment: Experiment) -> dict[str, Any]:
        """Return all settings that the numbers of a filled matrix depend on, as stored in matrix.json."""
        varied = {axis: list(getattr(self, axis)) for axis in WITHIN}
        shared = {key: value for key, value in experiment.decisive.items() if key not in _VARIED}
        return {**varied, "set": list(experiment.set), "experiment": shared}


def parse(words: Sequence[str]) -> Matrix:
    """Parse the axes of the command line, such as ``methods=fedavg,fedper seeds=0,1``.

    Raises:
        InputError: a word that is no axis, or an axis that is empty or occurs twice.

    >>> parse(["seeds=0,1"])
    Matrix(methods=(), defences=(), attacks=(), seeds=(0, 1), datasets=())
    """
    values = axes(words)
    return Matrix(**{**values, "seeds": tuple(map(int, values.get("seeds", ())))})


def require_same_question(stored: Mapping[str, Any], requested: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume in the folder of another matrix.

    Raises:
        InputError: the two questions differ; the message names the difference.
    """
    # A setting added by a later version has its default in an earlier matrix.
    usual = Experiment().decisive
    before, now = ({**usual, **question.get("experiment", {})} for question in (stored, requested))
    before, now = ({**shared, **question} for shared, question in ((before, stored), (now, requested)))
    for key in dict.fromkeys((*AXES, "set", *now)):
        if key != "experiment" and before.get(key) != now.get(key):
            raise InputError(
                f"Expected {key}={_words(before.get(key))} as in the matrix in {folder}, got "
                f"{key}={_words(now.get(key))}; choose another --out for that."
            )


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def folder_name(name: str) -> str:
    """Replace in a name all that a folder's name should not have."""
    return re.sub(r"[^\w.-]+", "-", name)
