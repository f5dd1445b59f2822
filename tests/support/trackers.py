"""Trackers for tests: one that writes down its calls, one that fails, one whose package nobody has."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flfw.runs.tracking import AuditMetrics, RunEnd, TrackedRun, Tracker


class Noting(Tracker):
    """Appends each call to ``calls.jsonl`` in the run's folder."""

    def on_start(self, run: TrackedRun) -> str:
        self._path = run.folder / "calls.jsonl"
        self._note("start", run.name, run.earlier, run.after)
        return "record-7"

    def on_round(self, number: int, figures: Mapping[str, float]) -> None:
        self._note("round", number, dict(figures))

    def on_audit(self, audited: Sequence[AuditMetrics]) -> None:
        self._note("audit", *[[one.name, one.round, one.verdict] for one in audited])

    def on_end(self, end: RunEnd) -> None:
        pictures = [b"data:image" in path.read_bytes() for path in end.files]
        self._note("end", end.status, dict(end.figures), [path.name for path in end.files], pictures)

    def _note(self, *words: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(words) + "\n")


class Unanswered(Noting):
    """Begins when the run's third round has been written, or after ten seconds."""

    def on_start(self, run: TrackedRun) -> str:
        journal = run.folder / "checkpoint" / "history.jsonl"
        for _ in range(100):
            if journal.exists() and b'"round": 3' in journal.read_bytes():
                break
            time.sleep(0.1)
        record = super().on_start(run)
        self._note("has round 3", b'"round": 3' in journal.read_bytes())
        return record


class Failing(Tracker):
    """Takes one round, and no other."""

    def on_start(self, run: TrackedRun) -> str:
        return ""

    def on_round(self, number: int, figures: Mapping[str, float]) -> None:
        if number > 1:
            raise ConnectionError("the server\nis gone")

    def on_audit(self, audited: Sequence[AuditMetrics]) -> None:
        raise AssertionError("called after it failed")

    def on_end(self, end: RunEnd) -> None:
        raise AssertionError("called after it failed")


class Lacking(Failing):  # of a package that nobody has
    packages = ("json", "no_such_package_here")
