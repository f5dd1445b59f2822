"""Tables for Python programs: `flfw.reproduce_table`, and the names that it knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final, get_args

from flfw.command.api.arguments import experiment_of, word_of
from flfw.command.api.library_calls import library_call
from flfw.errors import InputError, RunError, require
from flfw.experiment import Experiment
from flfw.papers import command
from flfw.papers.command import MeasuredTable
from flfw.papers.frontier import command as frontier
from flfw.papers.frontier.points import NAME
from flfw.papers.preset import Scale

if TYPE_CHECKING:
    import pandas as pd


@final
@dataclass(frozen=True)
class TableResult:
    """Reproduction of a paper's table; as text, published beside measured numbers of the selected cells.

    Attributes:
        text: as the command line prints it.
        files: paths of the files that hold all cells.
    """

    text: str
    files: tuple[Path, ...]

    @property
    def cells(self) -> pd.DataFrame:
        """Cells of the whole table, a row each: the columns of the CSV."""
        from flfw.command.api.frames import read_table

        return read_table(next(file for file in self.files if file.suffix == ".csv"), {})

    def __str__(self) -> str:
        return self.text


def names() -> tuple[str, ...]:
    """Return the names of all tables: the papers', and the frontier."""
    return *command.names(), NAME


def measured(table: str, cell: str, scale: Scale, given: Experiment) -> MeasuredTable:
    """Measure a table or some of its cells, and write the files.

    Args:
        table: name of the table; may be empty if ``cell`` contains it.
        cell: path of a cell, or its beginning; empty: the whole table.
        scale: scale of the measurement.
        given: settings that decide no numbers, and the output folder.

    Raises:
        InputError: there is no such table or cell, or the table itself decides a setting that was given.
    """
    name = table or cell.partition("/")[0]
    if ":" not in name and name not in names():
        raise InputError(f"Expected a table among {', '.join(names())}; got --table {name}.")
    if name == NAME:
        return frontier.measured(cell, scale, given)
    return command.measured(command.asked(table, cell, scale, given), cell)


def reproduce_table(table: str = "", *, cell: str = "", scale: Scale = "quick", **fields: Any) -> TableResult:
    """Measure a paper's table, as ``sim.py --table`` does; it goes on where it was cut short.

    Args:
        table: name of the table, such as ``hyperfl.1``; may be left out if ``cell`` contains it.
        cell: path of a cell, or its beginning: only these are measured.
        scale: ``quick``, which is marked as such, or ``full``, with the paper's own settings.
        fields: fields of `Experiment` that decide no numbers, such as ``engine`` and ``out``.

    Raises:
        InputError: there is no such table or cell, or the table itself decides a field that was given.
        RunError: a selected cell failed, or none was measured; the files say why.
    """
    with library_call():
        require(scale in get_args(Scale), "scale=quick or full", scale=scale)
        name, place = word_of(table, "table"), word_of(cell, "cell")
        done = measured(name, place, scale, experiment_of(None, fields))
        if not done.complete:
            raise RunError(f"Not all selected cells of {table or cell} were measured; {done.files[0]} says why.")
        return TableResult(done.text, done.files)
