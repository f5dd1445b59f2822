"""Notes of which tracker has which record and rounds of a run: ``tracking.json`` in the run's folder."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flfw.formats.typed import read_json
from flfw.storage.sealed import write_atomic

NOTES = "tracking.json"


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
