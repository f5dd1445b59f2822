"""Command ``sim.py --table hyperfl.1 --scale quick``: reproduction of a paper's table, cell by cell.

Measured cells are on disk, so an interrupted call goes on from them. The table goes to a terminal and to files.
"""

import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flfw.errors import InputError, RunError
from flfw.experiment import FREE_ON_RESUME, Experiment
from flfw.files.progress import say
from flfw.files.sealed import write_atomic
from flfw.papers import cells, layout, published
from flfw.papers.cells import Outcome
from flfw.papers.layout import sheet
from flfw.papers.preset import Preset, Presets, Scale, presets, varied
from flfw.papers.published import Cell, Table
from flfw.runs import launch
from flfw.server.checkpoint import locked

OUT = Path("runs/papers")
PENDING = "not reached yet"


@dataclass(frozen=True)
class Reproduction:
    """Table at a scale, in a folder.

    Attributes:
        table: the published table.
        presets: presets of its cells; None: this version has none.
        scale: scale of the measurement.
        given: source of the settings that decide no numbers.
        out: the output folder; the runs lie in ``cells`` below it.
    """

    table: Table
    presets: Presets | None
    scale: Scale
    given: Experiment
    out: Path

    def outcomes(self, selected: Sequence[Cell]) -> Iterator[dict[str, Outcome]]:
        """Measure the selected cells one after the other, with progress on stderr.

        Args:
            selected: cells of the table; for other cells only finished runs are read.

        Yields:
            The present outcomes of all cells by path: first before any measurement, then after each measured cell.
        """
        chosen = {cell.path for cell in selected}
        known = {cell.path: self._known(cell, cell.path in chosen) for cell in self.table.cells}
        yield dict(known)
        waiting = [outcome for outcome in known.values() if outcome.reason == PENDING]
        for number, pending in enumerate(waiting, 1):
            assert pending.preset is not None, "only what has a preset waits"
            title, started = f"[{number}/{len(waiting)}] {pending.cell.path}", time.monotonic()
            say(f"{title}: {_runs(pending.preset)}")
            outcome = cells.measured(pending.cell, pending.preset, say)
            known[pending.cell.path] = outcome
            say(f"{title}: after {time.monotonic() - started:.0f} s {_ending(outcome)}")
            yield dict(known)

    def _known(self, cell: Cell, wanted: bool) -> Outcome:
        """Return the outcome of a cell without running anything."""
        preset = self.presets(cell, self.scale) if self.presets else None
        preset = preset and varied(preset, self.table.name, "authors")
        reason = cells.obstacle(cell, preset)
        if preset is None or reason:
            return Outcome(cell, "not run", reason, preset)
        try:
            preset = cells.placed(preset, self.given, self.out / "cells")
            if cells.is_complete(preset):
                return cells.read(cell, preset)
        except InputError as error:
            return Outcome(cell, "not run", str(error), preset)
        except RunError as error:
            return Outcome(cell, "failed", str(error), preset)
        return Outcome(cell, "not run", PENDING if wanted else "not asked for", preset)


def _runs(preset: Preset) -> str:
    count = len(preset.experiments)
    return f"{count} {'run' if count == 1 else 'runs'}"


def _ending(outcome: Outcome) -> str:
    if outcome.value is None:
        return f"{outcome.status}: {outcome.reason}"
    published = "not available" if outcome.cell.lost else outcome.cell.value
    return f"{layout.number(outcome.value, outcome.cell.unit)}, published {published}"


@final
@dataclass(frozen=True)
class MeasuredTable:
    """Table after its measurement.

    Attributes:
        text: published beside measured numbers, of the selected cells.
        files: paths of the files, each with all cells.
        complete: whether no selected cell failed, and one was measured.
    """

    text: str
    files: tuple[Path, ...]
    complete: bool


def names() -> tuple[str, ...]:
    """Return the names of all tables, for ``--list``."""
    return published.names()


def asked(table: str, cell: str, scale: Scale, given: Experiment) -> Reproduction:
    """Return the reproduction that is asked for.

    Args:
        table: name of the table; may be empty if ``cell`` contains it.
        cell: a path such as ``hyperfl.1/HyperFL/CIFAR-10/20``, or its beginning; empty: the whole table.
        scale: scale of the measurement.
        given: flags that decide no numbers, and the output folder; all others must be at their defaults.

    Raises:
        InputError: there is no such table, or the table itself decides a flag that was given.
    """
    require_free(given)
    name = table or cell.partition("/")[0]
    whole = published.table(name)
    measure = published.outside(name).presets if ":" in name else presets(whole.name)
    return Reproduction(whole, measure, scale, given, (given.out or OUT).absolute())


def measured(reproduction: Reproduction, cell: str) -> MeasuredTable:
    """Measure the selected cells of a reproduction and write the files.

    OUT/TABLE-SCALE.csv, .md and .tex hold all cells of the table, OUT/cells the runs.
    """
    launch.check_resources(reproduction.given)
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
    text = layout.terminal(sheet(table, shown, reproduction.scale), width)
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
        ".csv": lambda: layout.csv(table, outcomes, scale),
        ".md": lambda: layout.markdown(sheet(table, outcomes, scale)),
        ".tex": lambda: layout.latex(sheet(table, outcomes, scale)),
    }
    for suffix in suffixes:
        write_atomic(_path(reproduction, suffix), makers[suffix]().encode())
