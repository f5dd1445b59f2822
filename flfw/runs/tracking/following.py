"""Followers of a run: they read the rounds that the run writes to disk, and hand their figures to the trackers.

The server may be another process (``--engine flwr``, a federation), so what is followed is the run's journal, in which
every engine writes a round once it is complete. A thread for each tracker begins its record and reads the journal, so
one that is slow, or whose server does not answer, holds up no round and no other tracker. Which rounds were handed over
is noted in ``tracking.json`` in the run's folder; a run that is resumed hands over only later ones.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from flfw.data.catalogue import without_folders
from flfw.errors import printable
from flfw.experiment import Experiment, Scalar
from flfw.experiment.curves import Point
from flfw.files.outcomes import in_words
from flfw.files.result_file import read_result
from flfw.files.sealed import write_atomic
from flfw.files.typed import read_json
from flfw.report.findings import setting_name
from flfw.report.report import render
from flfw.runs.tracking.tracker import AuditMetrics, RunEnd, TrackedRun, Tracker, chosen

_PLACES = ("out", "data-root", "federation", "ray-address", "weights", "lpips-weights")  # folders of this machine
_LOOK_S = 0.5  # interval between two looks at the journal
_PATIENCE_S = 300.0  # time for the trackers to end once the run is over
Status: TypeAlias = Literal["finished", "failed", "interrupted"]
NOTES = "tracking.json"
_AUDITED = (
    "psnr", "ssim", "lpips", "feature_error", "exact_match", "rouge", "identification_rate", "label_accuracy",
    "share_recovered", "share_expected", "images", "failures", "seconds",
)  # fmt: skip
_MEMBERSHIP = (
    "auc", "auc_low", "auc_high", "tpr", "fpr", "epsilon_low", "claimed_epsilon", "accuracy_gap", "pairs",
)  # fmt: skip
_FINAL = ("acc_global", "acc_local", "acc_central", "acc_protected")


def _of_round(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a round's row; further ones of the method bear ``extra/`` before their name.

    >>> _of_round({"round": 3, "loss": 0.5, "acc_local": None, "extra": {"norm": 2.0}, "failed": []})
    {'loss': 0.5, 'extra/norm': 2.0}
    """
    return dict(_numbers({name: value for name, value in row.items() if name != "round"}))


def of_audit(result: Mapping[str, Any]) -> list[AuditMetrics]:
    """Return the figures of all attacks of a result; none is left out because two bear one name."""
    entries = result.get("audit") or []
    audited = [
        AuditMetrics(_name(entry, entries), entry["round"], _chosen(entry, _AUDITED), in_words(entry))
        for entry in entries
    ]
    for entry in result.get("membership") or []:
        name = _slug(f"{setting_name(entry, result['membership'])} {entry['statistic']}")
        last = max(entry["rounds"], default=0)
        audited.append(AuditMetrics(name, last, _chosen(entry, _MEMBERSHIP), entry["verdict"]))
    return _told_apart(audited)


def of_end(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the final accuracies of a result, and its privacy claims as ``epsilon/UNIT/ADVERSARY``."""
    figures = {f"final/{name}": value for name, value in _chosen(result.get("final") or {}, _FINAL).items()}
    for claim in result.get("privacy") or []:
        published = "" if claim["accounting"] != "as published" else "published-"
        name = f"{published}epsilon/{_slug(claim['unit'])}/{_slug(claim['adversary'])}"
        figures |= _numbers({name: claim["epsilon"]})
    return figures


def _chosen(entry: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    return dict(_numbers({name: entry.get(name) for name in names}))


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a table and of the tables in it, joined by ``/``; all else, and NaN, is left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in _numbers(value))
            continue
        counts = isinstance(value, int | float) and not isinstance(value, bool)
        if (counts or value in ("inf", "-inf")) and not isnan(number := float(value)):
            yield name, number


def _name(entry: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> str:
    words = setting_name(entry, entries)
    if curve := entry.get("curve"):
        words += f" {Point(curve, entry['batch'], entry['steps']).name}"
    return _slug(words)


def _slug(text: str) -> str:
    """Join words by hyphens; characters that some tool takes in no name are left out.

    >>> _slug("ig told of prune (server, client 3)")
    'ig-told-of-prune-server-client-3'
    """
    return re.sub(r"[^\w.]+", "-", text).strip("-")


def _told_apart(audited: Sequence[AuditMetrics]) -> list[AuditMetrics]:
    """Number those that share name and round, from the second on."""
    seen: dict[tuple[str, int], int] = {}
    apart = []
    for one in audited:
        count = seen[one.name, one.round] = seen.get((one.name, one.round), 0) + 1
        name = one.name if count == 1 else f"{one.name}-{count}"
        apart.append(AuditMetrics(name, one.round, one.figures, one.verdict))
    return apart


@dataclass(frozen=True)
class TrackerNote:
    """Line of ``tracking.json``.

    Attributes:
        record: name under which the tool finds its record again.
        round: last round that was handed over; 0: none.
    """

    record: str
    round: int = 0


@final
class TrackerNotes:
    """Notes of a run, in which the threads of its trackers write.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._lock = folder / NOTES, threading.Lock()
        self._notes = read_json(self._path, dict[str, TrackerNote]) if self._path.exists() else {}

    def of(self, tracker: str) -> TrackerNote:
        """Return the note of a tracker; one without a record where there is none."""
        return self._notes.get(tracker, TrackerNote(""))

    def write(self, tracker: str, note: TrackerNote) -> None:
        """Replace the note of a tracker, and write all of them."""
        with self._lock:
            self._notes[tracker] = note
            notes = {name: {"record": note.record, "round": note.round} for name, note in self._notes.items()}
            try:
                write_atomic(self._path, json.dumps(notes, indent=1).encode())
            except OSError as error:
                warn(f"{self._path} cannot be written ({error.strerror}): a resumed run is tracked anew")


def warn(line: str) -> None:
    """Print a line about a tracker on stderr."""
    print(f"warning: {line}", file=sys.stderr, flush=True)


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
    journal, notes = None if source else folder / "checkpoint" / "history.jsonl", TrackerNotes(folder)
    followers = [Follower(one, experiment, folder, name, journal, notes) for one in experiment.trackers]
    status: Status = "failed"
    try:
        yield
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        _end(followers, status)


def _end(followers: Sequence[Follower], status: Status) -> None:
    """Have all trackers end at once; those that do not within some minutes are left behind."""
    for one in followers:
        one.finish(status)
    until = time.monotonic() + _PATIENCE_S
    if late := [one.tracker for one in followers if not one.ends(max(0.0, until - time.monotonic()))]:
        warn(f"{', '.join(late)} did not take the run's figures within {_PATIENCE_S:.0f} s")


@final
class Follower:
    """Thread that hands a run's figures to one tracker, begun by its making.

    Args:
        tracker: name of the tracker.
        experiment: the experiment.
        folder: the run's folder.
        name: name of the run.
        journal: file of the run's rounds; None: it has none of its own.
        notes: notes of the run's trackers.
    """

    def __init__(
        self, tracker: str, experiment: Experiment, folder: Path, name: str, journal: Path | None, notes: TrackerNotes
    ) -> None:
        self.tracker = tracker
        self._experiment, self._folder, self._name, self._journal = experiment, folder, name, journal
        self._notes, self._has_rounds = notes, journal is not None
        self._writer: Tracker | None = None
        self._offset, self._over, self._status = 0, threading.Event(), "failed"
        self._thread = threading.Thread(target=self._follow, name=f"tracker {tracker}", daemon=True)
        self._thread.start()

    def finish(self, status: Status) -> None:
        """Have the tracker take the rest and the result.

        Args:
            status: how the run ended.
        """
        self._status = status
        self._over.set()

    def ends(self, seconds: float) -> bool:
        """Wait for the tracker to end; return whether it did."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _follow(self) -> None:
        self._start()
        while not self._over.wait(_LOOK_S):
            self._hand_over(self._rows())
        self._hand_over(self._rows())
        if self._writer is not None:
            self._finish()

    def _start(self) -> None:
        """Begin or find the tool's record."""
        earlier = self._notes.of(self.tracker)
        run = TrackedRun(self._name, self._folder, _settings(self._experiment), earlier.record, earlier.round)

        def begin() -> None:
            self._writer = chosen((self.tracker,))[self.tracker]()
            self._notes.write(self.tracker, replace(earlier, record=str(self._writer.on_start(run))))

        self._called(begin)

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
            warn(f"{self.tracker} gets the rounds at the end only: {error}")
            return []

    def _hand_over(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if (writer := self._writer) is None or row["round"] <= self._notes.of(self.tracker).round:
                continue
            self._called(lambda writer=writer, row=row: writer.on_round(row["round"], _of_round(row)))
            if self._writer is not None:
                self._notes.write(self.tracker, replace(self._notes.of(self.tracker), round=row["round"]))

    def _finish(self) -> None:
        """Give over the audit, the final figures and the files; of a run without a result, that it ended."""
        status: Any = self._status
        with tempfile.TemporaryDirectory(prefix="flfw-tracking-") as name:
            end, audited, rounds = RunEnd(status, {}, ()), [], []
            if (self._folder / "result.json").exists() and status != "interrupted":
                try:
                    result = read_result(self._folder)
                    rounds, audited = result.get("rounds") or [], of_audit(result)
                    end = RunEnd(status, of_end(result), [self._folder / "result.json", self._report(Path(name))])
                except Exception as error:  # a result that cannot be read ends no run that was completed
                    warn(f"{self.tracker} gets no result: {error}")
            self._hand_over(rounds if self._has_rounds else [])  # those whose journal could not be read meanwhile
            if audited and (writer := self._writer) is not None:
                self._called(lambda writer=writer: writer.on_audit(audited))
            if (writer := self._writer) is not None:
                self._called(lambda writer=writer: writer.on_end(end))

    def _report(self, folder: Path) -> Path:
        """Write the report that may leave the machine."""
        pictures = None if self._experiment.show_samples == "yes" else False
        path = folder / "report.html"
        path.write_bytes(render(self._folder, pictures))
        return path

    def _called(self, call: Callable[[], Any]) -> None:
        """Call the tracker; one that fails is said, and is called no more."""
        try:
            call()
        except Exception as error:  # of a foreign tool, which may raise anything
            self._writer = None
            why = printable(" ".join(str(error).split())[:300]) or type(error).__name__
            warn(f"{self.tracker} gets no further figures of this run, which goes on: {why}")


def _settings(experiment: Experiment) -> dict[str, Scalar]:
    """Return the settings by flag as trackers get them: without folders of this machine."""
    settings = {key: value for key, value in experiment.to_run_config().items() if key not in _PLACES}
    words = (re.sub("=.*/", "=", word) for word in experiment.set)
    return settings | {"dataset": without_folders(experiment.dataset), "set": shlex.join(words)}
