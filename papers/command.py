"""Command ``sim.py --table hyperfl.1 --scale quick``."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

from flfw.errors import InputError
from flfw.experiment import FREE_ON_RESUME, Experiment
from flfw.papers import published, show
from flfw.papers.cells import Outcome
from flfw.papers.layout import sheet
from flfw.papers.measured_table import MeasuredTable
from flfw.papers.preset import Scale, presets
from flfw.papers.reproduce import Reproduction
from flfw.runs import engine
from flfw.storage.checkpoint import locked
from flfw.storage.sealed import write_atomic

OUT = Path("runs/papers")


def names() -> tuple[str, ...]:
    """Return the names of all tables, for ``--list``."""
    return published.names()


def reproduce(table: str, cell: str, scale: Scale, given: Experiment) -> int:
    """Measure a table or some of its cells, print published beside measured numbers, and write the files.

    Args:
        table: name of the table; may be empty if ``cell`` contains it.
        cell: a path such as ``hyperfl.1/HyperFL/CIFAR-10/20``, or its beginning; empty: the whole table.
        scale: scale of the measurement.
        given: flags that decide no numbers, and the output folder; all others must be at their defaults.

    Returns:
        The exit code: 0, or 1 if a selected cell failed or none was measured.

    Raises:
        InputError: there is no such table or cell, or the table itself decides a flag that was given.
    """
    return run(asked(table, cell, scale, given), cell)


def asked(table: str, cell: str, scale: Scale, given: Experiment) -> Reproduction:
    """Return the reproduction that is asked for; the arguments are those of `reproduce`.

    Raises:
        InputError: there is no such table, or the table itself decides a flag that was given.
    """
    require_free(given)
    name = table or cell.partition("/")[0]
    whole = published.table(name)
    measure = published.outside(name).presets if ":" in name else presets(whole.name)
    out = (given.out or OUT).absolute()
    return Reproduction(whole, measure, scale, given, out)


def run(reproduction: Reproduction, cell: str) -> int:
    """Measure the selected cells of a reproduction, print them, and write the files; returns as `reproduce`."""
    table = measured(reproduction, cell)
    print(table.text, *table.files, sep="\n")
    return int(not table.complete)


def measured(reproduction: Reproduction, cell: str) -> MeasuredTable:
    """Measure the selected cells of a reproduction and write the files.

    OUT/TABLE-SCALE.csv, .md and .tex hold all cells of the table, OUT/cells the runs.
    """
    engine.check_resources(reproduction.given)
    table, out = reproduction.table, reproduction.out
    selected = table.select(cell)
    (out / "cells").mkdir(parents=True, exist_ok=True)
    known: Mapping[str, Outcome] = {}
    with locked(out / "cells" / ".run"):
        for known in reproduction.outcomes(selected):
            _write(reproduction, known, ".csv")
        _write(reproduction, known, ".csv", ".md", ".tex")
    shown = [known[chosen.path] for chosen in selected]
    width = shutil.get_terminal_size((120, 24)).columns
    text = show.terminal(sheet(table, shown, reproduction.scale), width)
    files = tuple(_path(reproduction, suffix) for suffix in (".csv", ".md", ".tex"))
    statuses = {outcome.status for outcome in shown}
    return MeasuredTable(text, files, "failed" not in statuses and "measured" in statuses)


def require_free(given: Experiment) -> None:
    """Refuse settings that decide numbers: beside a table all must be at their defaults.

    Raises:
        InputError: names the first setting that is not.
    """
    usual = Experiment()
    for field in dataclasses.fields(Experiment):
        value = getattr(given, field.name)
        if field.name not in FREE_ON_RESUME and value != getattr(usual, field.name):
            free = ", ".join(name.replace("_", "-") for name in FREE_ON_RESUME)
            raise InputError(
                f"Expected only flags that decide no numbers beside --table, got {field.name}={value}; "
                f"leave it out: the table decides it (free are {free})."
            )


def _path(reproduction: Reproduction, suffix: str) -> Path:
    return reproduction.out / f"{reproduction.table.name}-{reproduction.scale}{suffix}"


def _write(reproduction: Reproduction, known: Mapping[str, Outcome], *suffixes: str) -> None:
    table, scale, outcomes = reproduction.table, reproduction.scale, known.values()
    makers = {
        ".csv": lambda: show.csv(table, outcomes, scale),
        ".md": lambda: show.markdown(sheet(table, outcomes, scale)),
        ".tex": lambda: show.latex(sheet(table, outcomes, scale)),
    }
    for suffix in suffixes:
        write_atomic(_path(reproduction, suffix), makers[suffix]().encode())
