"""Reproduction of a table, cell by cell; measured cells are on disk, so an interrupted call goes on from them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.papers import cells, layout
from flfw.papers.cells import Outcome
from flfw.papers.preset import Preset, Presets, Scale, varied
from flfw.papers.published import Cell, Table

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
            _say(f"{title}: {_runs(pending.preset)}")
            outcome = cells.measured(pending.cell, pending.preset, _say)
            known[pending.cell.path] = outcome
            _say(f"{title}: after {time.monotonic() - started:.0f} s {_ending(outcome)}")
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


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
