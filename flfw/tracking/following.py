"""Follower of a run: it reads the rounds that the run writes to disk, and hands them to the trackers.

The server may be another process (``--engine flwr``, a federation), so what is followed is the run's journal, in which
every engine writes a round once it is complete. A thread reads it, so a slow tracker holds up no round. Which rounds
were handed over is noted in ``tracking.json``; a run that is resumed hands over only later ones.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from flfw.errors import printable
from flfw.experiment import Experiment
from flfw.formats.result_file import read_result
from flfw.formats.typed import read_json
from flfw.report.report import render
from flfw.storage.sealed import write_whole
from flfw.tracking import figures
from flfw.tracking.choice import chosen
from flfw.tracking.tracker import RunEnd, TrackedRun, Tracker

NOTES = "tracking.json"
_PLACES = ("out", "data-root", "federation", "ray-address", "weights", "lpips-weights")  # folders of this machine
_LOOK_S = 0.5  # interval between two looks at the journal
_PATIENCE_S = 300.0  # time for the trackers to end once the run is over

Status: TypeAlias = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True)
class TrackerNote:
    """Line of ``tracking.json``.

    Attributes:
        record: name under which the tool finds its record again.
        round: last round that was handed over; 0: none.
    """

    record: str
    round: int = 0


@contextmanager
def tracked(experiment: Experiment, folder: Path, source: Path | None = None) -> Iterator[None]:
    """Give a run's figures to its trackers while it goes on, and its result at the end.

    Args:
        experiment: the experiment, with its trackers.
        folder: the run's folder, which exists.
        source: of an audit of an earlier run, that run's folder.
    """
    if not experiment.trackers:
        yield
        return
    name = f"{source.name}/{folder.name}" if source else folder.name
    follower = Follower(experiment, folder, name, journal=None if source else folder / "checkpoint" / "history.jsonl")
    status: Status = "failed"
    try:
        yield
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        follower.end(status)


@final
class Follower:
    """Thread that hands a run's figures to its trackers, begun by its making.

    Args:
        experiment: the experiment, with its trackers.
        folder: the run's folder.
        name: name of the run.
        journal: file of the run's rounds; None: it has none of its own.
    """

    def __init__(self, experiment: Experiment, folder: Path, name: str, journal: Path | None) -> None:
        self._experiment, self._folder, self._journal = experiment, folder, journal
        self._notes = _read_notes(folder / NOTES)
        self._trackers: dict[str, Tracker] = {}
        self._has_rounds = journal is not None
        self._offset, self._over, self._status = 0, threading.Event(), "failed"
        config = {key: value for key, value in experiment.to_run_config().items() if key not in _PLACES}
        for tracker, cls in chosen(experiment.trackers).items():
            self._trackers[tracker] = cls()
            earlier = self._notes.get(tracker, TrackerNote(""))
            run = TrackedRun(name, folder, config, earlier.record, earlier.round)
            record = self._called(tracker, lambda writer, run=run: writer.on_start(run))
            if tracker in self._trackers:
                self._notes[tracker] = replace(earlier, record=str(record))
        self._write_notes()
        self._thread = threading.Thread(target=self._follow, name="trackers", daemon=True)
        self._thread.start()

    def end(self, status: Status) -> None:
        """Give over the rest and the result; a tracker that does not come to its end is left behind.

        Args:
            status: how the run ended.
        """
        self._status = status
        self._over.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            _warn(f"{', '.join(self._trackers)} did not take the run's figures within {_PATIENCE_S:.0f} s")

    def _follow(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._hand_over(self._rows())
        self._hand_over(self._rows())
        self._finish()

    def _rows(self) -> list[dict[str, Any]]:
        """Read the rounds that were appended to the journal since the last call; an unfinished line is left."""
        try:
            if self._journal is None or not self._journal.exists():
                return []
            if self._journal.stat().st_size < self._offset:  # a resumed run has cut it back
                self._offset = 0
            with self._journal.open("rb") as file:
                file.seek(self._offset)
                whole, end, _ = file.read().rpartition(b"\n")
            self._offset += len(whole) + len(end)
            return [row for line in whole.split(b"\n") if line for row in json.loads(line)["rounds"]]
        except (OSError, ValueError, KeyError, TypeError) as error:  # the run itself refuses a damaged journal
            self._journal = None
            _warn(f"trackers get the rounds at the end only: {error}")
            return []

    def _hand_over(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            for name in list(self._trackers):
                if row["round"] <= self._notes[name].round:
                    continue
                self._called(name, lambda tracker, row=row: tracker.on_round(row["round"], figures.of_round(row)))
                if name in self._trackers:
                    self._notes[name] = replace(self._notes[name], round=row["round"])
        if rows:
            self._write_notes()

    def _finish(self) -> None:
        """Give over the audit, the final figures and the files; of a run without a result, that it ended."""
        status: Any = self._status
        with tempfile.TemporaryDirectory(prefix="flfw-tracking-") as name:
            end, audited, rounds = RunEnd(status, {}, ()), [], []
            if (self._folder / "result.json").exists() and status != "interrupted":
                try:
                    result = read_result(self._folder)
                    rounds, audited = result.get("rounds") or [], figures.of_audit(result)
                    files = [self._folder / "result.json", self._report(Path(name))]
                    end = RunEnd(status, figures.of_end(result), files)
                except Exception as error:  # a result that cannot be read ends no run that was completed
                    _warn(f"trackers get no result: {error}")
            self._hand_over(rounds if self._has_rounds else [])  # those whose journal could not be read meanwhile
            for tracker in list(self._trackers):
                if audited:
                    self._called(tracker, lambda writer: writer.on_audit(audited))
                self._called(tracker, lambda writer: writer.on_end(end))

    def _report(self, folder: Path) -> Path:
        """Write the report that may leave the machine."""
        pictures = None if self._experiment.pictures == "yes" else False
        path = folder / "report.html"
        path.write_bytes(render(self._folder, pictures))
        return path

    def _called(self, name: str, call: Callable[[Tracker], Any]) -> Any:
        """Call a tracker; one that fails is said, and is called no more."""
        if (tracker := self._trackers.get(name)) is None:
            return None
        try:
            return call(tracker)
        except Exception as error:  # of a foreign tool, which may raise anything
            del self._trackers[name]
            why = printable(" ".join(str(error).split())[:300]) or type(error).__name__
            _warn(f"{name} gets no further figures of this run, which goes on: {why}")
            return None

    def _write_notes(self) -> None:
        notes = {name: {"record": note.record, "round": note.round} for name, note in self._notes.items()}
        try:
            write_whole(self._folder / NOTES, json.dumps(notes, indent=1).encode())
        except OSError as error:
            _warn(f"{self._folder / NOTES} cannot be written ({error.strerror}): a resumed run is tracked anew")


def _read_notes(path: Path) -> dict[str, TrackerNote]:
    return read_json(path, dict[str, TrackerNote]) if path.exists() else {}


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)
