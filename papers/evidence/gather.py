"""Gathering of evidence: the next cells of the list, at the lowest priority, until the time is over.

Each cell runs in a process of its own, in one thread, so that its numbers do not depend on the machine's cores. At the
end of the time the processes are ended; their runs go on from the last checkpoint at the next call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from flfw.errors import BadInput, RunFailed, require
from flfw.experiment import Experiment
from flfw.experiment.fields import require_at_least, require_finite
from flfw.papers import cells
from flfw.papers.evidence.priorities import Item, items
from flfw.papers.evidence.records import FOLDER, Record, changed, digest, is_there
from flfw.papers.preset import Figure, Preset, presets
from flfw.resolve import without_auto

RUNS = Path("runs/evidence")
_POLL = 1.0
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Gathering:
    """Limits of one call.

    Attributes:
        minutes: the time; 0: until the list is done.
        cores: number of cells at a time, a core each.
        runs: folder of the runs.
        folder: folder of the records.
        only: only cells whose path begins so.
        gpus: share of a GPU for each run; 0: the processor alone.
    """

    minutes: float
    cores: int = 1
    runs: Path = RUNS
    folder: Path = FOLDER
    only: str = ""
    gpus: float = 0.0

    def __post_init__(self) -> None:
        require_finite(self, ("minutes", "gpus"), zero=True)
        require_at_least(self, 1, ("cores",))
        known = any(True for _ in items(self.only))
        require(known, "the beginning of a cell's path, as --list has them", only=self.only)


def gather(limits: Gathering) -> int:
    """Measure the missing items, one after the other, and return the number of new records."""
    ends = time.monotonic() + 60 * limits.minutes if limits.minutes else float("inf")
    waiting, busy, count = _missing(limits), list[_Worker](), 0
    try:
        while time.monotonic() < ends:
            while len(busy) < limits.cores and (item := next(waiting, None)) is not None:
                busy.append(_Worker(item, limits))
                _say(f"{item.name}: begins")
            if not busy:
                break
            time.sleep(_POLL)
            for worker in [worker for worker in busy if worker.code is not None]:
                busy.remove(worker)
                count += worker.code == 0
                took = time.monotonic() - worker.started
                _say(f"{worker.item.name}: {'recorded' if worker.code == 0 else 'not recorded'} after {took:.0f} s")
    finally:
        for worker in busy:
            worker.end()
            _say(f"{worker.item.name}: interrupted, goes on at the next call")
    return count


def _missing(limits: Gathering) -> Iterator[Item]:
    return (item for item in items(limits.only) if not is_there(item, limits.folder))


@final
class _Worker:
    """Process that measures one item.

    Attributes:
        item: the item.
        started: when it began, in seconds.
    """

    def __init__(self, item: Item, limits: Gathering) -> None:
        self.item, self.started = item, time.monotonic()
        key = json.dumps([item.cell.path, item.variant, item.seed, item.choice])
        command = [sys.executable, "-m", "flfw.papers.evidence", "--item", key, "--runs", str(limits.runs.absolute())]
        command += ["--folder", str(limits.folder.absolute()), "--gpus", str(limits.gpus)]
        self._process = subprocess.Popen(command, env={**os.environ, **dict.fromkeys(_THREADS, "1")})

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End it; its run has a checkpoint after each round."""
        self._process.terminate()
        self._process.wait()


def measure(key: str, runs: Path, folder: Path, gpus: float) -> int:
    """Measure one item in this process and write its record; return the exit code.

    Args:
        key: path, variant, seed and choice as JSON.
        runs: folder of the runs.
        folder: folder of the records.
        gpus: share of a GPU for the run.
    """
    os.nice(19)
    try:
        path, variant, seed, choice = json.loads(key)
    except (ValueError, TypeError) as error:
        raise BadInput(f"Expected an item as [PATH, VARIANT, SEED, CHOICE] in JSON, got {key}.") from error
    matching = [
        item
        for item in items(path)
        if (item.cell.path, item.variant, item.seed, item.choice) == (path, variant, seed, choice)
    ]
    if not matching:
        raise BadInput(f"Expected an item of the list, got {key}.")
    item = matching[0]
    given = Experiment(engine="inproc", gpus_per_client=gpus, attack_server="inline")
    preset = cells.placed(together(item.preset) if gpus else item.preset, given, runs / "cells")
    outcome = cells.measured(item.cell, preset, _say)
    if outcome.value is None:
        _say(f"{item.name}: {outcome.status}: {outcome.reason}")
        return 1
    _record(item, preset, outcome).write(folder)
    return 0


def together(preset: Preset) -> Preset:
    """Have clients compute their steps together: one by one, a GPU waits for the processor."""
    choices = tuple(tuple(replace(run, cohort="auto") for run in runs) for runs in preset.choices)
    return replace(preset, choices=choices)


def _record(item: Item, preset: Preset, outcome: cells.Outcome) -> Record:
    run = preset.choices[0][0]
    assert run.out is not None and outcome.value is not None, "it was placed and measured"
    result = json.loads((run.out / "result.json").read_text())
    provenance = result["provenance"]
    codes = [provenance["code"], *(one["code"] for one in provenance.get("resumed", []))]
    return Record(
        cell=item.cell.path,
        variant=item.variant,
        seed=item.seed,
        choice=item.choice,
        value=outcome.value,
        also=dict(outcome.also),
        chosen_by=_chosen_by(item, preset),
        settings=dict(changed(without_auto(item.run))),
        digest=digest(item.run),
        code=tuple(dict.fromkeys(codes)),
        hardware=result["environment"]["hardware"],
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(sum(one["seconds"] for one in result["rounds"]), 1),
        notes=outcome.notes,
    )


def _chosen_by(item: Item, preset: Preset) -> float | None:
    """Return the value by which the paper chose this setting, if it chose."""
    make = presets(item.cell.table)
    by: Figure | None = make(item.cell, "full").chosen_by if make else None
    if by is None:
        return None
    value: Any = cells.read(item.cell, replace(preset, figure=by, also=())).value
    if not isinstance(value, int | float):
        raise RunFailed(f"{item.name} has no {by.name}.")
    return float(value)


def _say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)
