"""Gathering of evidence: the next cells of the list, one after the other in this process, until the time is over.

At the end of the time an alarm interrupts the run as Ctrl-C would. Its last checkpoint is where the next call goes on.
"""

import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, final

import torch

from flfw.bounds import BoundedSettings, NonNegativeFinite
from flfw.errors import InputError, RunError, require
from flfw.experiment import Experiment
from flfw.files.provenance import hardware
from flfw.files.result_file import read_result
from flfw.files.sealed import sealed
from flfw.papers import cells
from flfw.papers.evidence.records import FOLDER, Record, digest
from flfw.papers.preset import Preset, ResultMetric, presets
from flfw.plans.run_plan import without_auto
from flfw.server import checkpoint
from research.evidence.items import Item, changed, is_there, items

RUNS = Path("runs/evidence")
_NO_DEADLINE = 1e9
"""Seconds of a round, some thirty years: in process, too, an answer after the deadline ends a run."""
_AGAIN_S = 60.0  # the alarm repeats: Python drops an error that is raised while it collects garbage


@dataclass(frozen=True)
class Gathering(BoundedSettings):
    """Limits of one call.

    Attributes:
        minutes: the time; 0: until the list is done.
        runs: folder of the runs.
        folder: folder of the records.
        known: further folder of records; what it has is not measured again.
        only: only cells whose path begins so.
        gpus: share of a GPU for each run; 0: the processor alone.
    """

    minutes: NonNegativeFinite
    runs: Path = RUNS
    folder: Path = FOLDER
    known: Path | None = None
    only: str = ""
    gpus: NonNegativeFinite = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        known = any(True for _ in items(self.only))
        require(known, "the beginning of a cell's path, as --list has them", only=self.only)

    def has(self, item: Item) -> bool:
        """Return whether an item is recorded."""
        return is_there(item, self.folder) or (self.known is not None and is_there(item, self.known))


@final
class TimeOver(KeyboardInterrupt):
    """Interrupt at the end of the time: a run ends as by Ctrl-C."""


def gather(limits: Gathering) -> int:
    """Measure the missing items, one after the other, and return the number of new records.

    Other processes may gather into the same folders at the same time: each item is measured by one of them.
    """
    ends = time.monotonic() + 60 * limits.minutes if limits.minutes else inf
    count = 0
    for item in items(limits.only):
        if time.monotonic() >= ends:
            break
        if limits.has(item):
            continue
        with _claimed(item, limits.runs) as mine:
            if not mine:
                continue
            _say(f"{item.name}: begins")
            began = time.monotonic()
            try:
                recorded = measure(item, limits, ends)
            except Exception:  # a run that breaks is no reason to leave out all others
                traceback.print_exc()
                recorded = False
            except KeyboardInterrupt as stop:
                _say(f"{item.name}: interrupted, goes on at the next call")
                if isinstance(stop, TimeOver):
                    break
                raise
        count += recorded
        _say(f"{item.name}: {'recorded' if recorded else 'not recorded'} after {time.monotonic() - began:.0f} s")
    return count


@contextmanager
def _claimed(item: Item, runs: Path) -> Iterator[bool]:
    """Hold an item's run for this process; False: another one is at work on it."""
    runs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as claim:
        try:
            claim.enter_context(checkpoint.locked(runs / f".{digest(item.run)}.lock"))
            mine = True
        except InputError:
            mine = False
        yield mine


@contextmanager
def _until(ends: float) -> Iterator[None]:
    """Raise `TimeOver` in the main thread when the monotonic clock has come to ``ends``."""
    if ends == inf:
        yield
        return
    handler = signal.signal(signal.SIGALRM, _over)
    timer = signal.setitimer(signal.ITIMER_REAL, max(ends - time.monotonic(), 1e-3), _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _over(_signal: int, _frame: FrameType | None) -> None:
    raise TimeOver


def measure(item: Item, limits: Gathering, ends: float = inf) -> bool:
    """Measure an item on one thread and write its record; return whether there is a number.

    Raises:
        TimeOver: the monotonic clock has come to ``ends``; the run goes on at the next call.
    """
    torch.set_num_threads(1)  # numbers must not depend on the machine's cores
    given = Experiment(
        engine="inproc", attack_process="inline", gpus_per_client=limits.gpus, round_deadline=_NO_DEADLINE
    )
    preset = cells.placed(together(item.preset) if limits.gpus else item.preset, given, limits.runs / "cells")
    with _until(ends):
        _drop_what_cannot_go_on(limits.runs / "cells" / cells.folder_name(preset.choices[0][0]))
        outcome = cells.measured(item.cell, preset, _say)
    if outcome.value is None:
        _say(f"{item.name}: {outcome.status}: {outcome.reason}")
        return False
    _record(item, preset, outcome).write(limits.folder)
    return True


def _drop_what_cannot_go_on(folder: Path) -> None:
    """Remove a cut run whose settings have other names than in this code: it can never go on, and is in the way."""
    if checkpoint.is_complete(folder) or not sealed(folder / "checkpoint", "experiment"):
        return
    try:
        checkpoint.stored_experiment(folder)
    except InputError as error:
        _say(f"begun anew: {error}")
        shutil.rmtree(folder)


def together(preset: Preset) -> Preset:
    """Have clients compute their steps together: one by one, a GPU waits for the processor."""
    choices = tuple(tuple(replace(run, batched_clients="auto") for run in runs) for runs in preset.choices)
    return replace(preset, choices=choices)


def _record(item: Item, preset: Preset, outcome: cells.Outcome) -> Record:
    run = preset.choices[0][0]
    assert outcome.value is not None, "it was measured"
    result = read_result(run.folder)
    provenance = result["provenance"]
    codes = [*(one["code"] for one in provenance.get("sessions", ())), provenance["code"]]
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
        hardware=hardware(),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(sum(one["seconds"] for one in result.get("rounds", ())), 1),
        notes=outcome.notes,
    )


def _chosen_by(item: Item, preset: Preset) -> float | None:
    """Return the value by which the paper chose this setting, if it chose."""
    make = presets(item.cell.table)
    by: ResultMetric | None = make(item.cell, "full").chosen_by if make else None
    if by is None:
        return None
    value: Any = cells.read(item.cell, replace(preset, figure=by, also=())).value
    if not isinstance(value, int | float):
        raise RunError(f"{item.name} has no {by.name}.")
    return float(value)


def _say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)
