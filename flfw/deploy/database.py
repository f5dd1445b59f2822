"""Database of Flower's SuperLink: the runs in it, and the removal of what they left.

Flower deletes an array's row once it was fetched, but SQLite keeps the page with its bytes for later use, and rows of a
run that was killed stay. So the file grows with every run, and holds what clients sent.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from flfw.errors import InputError

FILE = "superlink.db"
_BESIDE = ("", "-wal", "-shm", "-journal")
_BY_RUN = ("message_ins", "message_res", "task_message", "task_event", "object_push_sessions", "run_objects")
_RUNS = "SELECT run_id FROM temp.gone"
_BY_OTHERS = {
    "task_logs": f"task_id IN (SELECT task_id FROM task WHERE run_id IN ({_RUNS}))",
    "series_context": f"series_id IN (SELECT series_id FROM series_runs WHERE run_id IN ({_RUNS}))",
    "objects": "object_id NOT IN (SELECT object_id FROM run_objects)",
    "object_children": "parent_id NOT IN (SELECT object_id FROM objects)",
}


@dataclass(frozen=True)
class RecordedRun:
    """Entry of a run in the database.

    Attributes:
        id: Flower's number of the run.
        out: the run's folder on the server's machine; None: another app, or it names none.
        last: last time at which something is known of it, in seconds since 1970.
    """

    id: int
    out: Path | None
    last: float


def runs(path: Path) -> tuple[RecordedRun, ...]:
    """Read the runs of a database, without changing it.

    Raises:
        InputError: it is no database of this version of Flower.
    """
    times = "COALESCE(task.finished_at, task.running_at, task.starting_at, task.pending_at)"
    query = f"SELECT run.run_id, run.override_config, {times} FROM run JOIN task ON task.task_id = run.primary_task_id"
    with _opened(path) as connection:
        return tuple(RecordedRun(one, _out(text), _seconds(when)) for one, text, when in connection.execute(query))


def shrink(path: Path, gone: Sequence[int]) -> int:
    """Remove the rows that runs left, and write the file anew without free pages; return its new size in bytes.

    These stay: registered keys, the apps, and of each run its settings, status and dates.

    Args:
        path: the file; no SuperLink uses it.
        gone: Flower's numbers of the runs.

    Raises:
        InputError: it is no database of this version of Flower, or it is in use.
    """
    with _opened(path) as connection:
        for table, which in _removable(connection, gone):
            connection.execute(f"DELETE FROM {table} WHERE {which}")
        connection.commit()
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return size(path)


def is_clean(path: Path, gone: Sequence[int]) -> bool:
    """Return whether `shrink` would find neither rows of these runs nor free pages.

    Raises:
        InputError: it is no database of this version of Flower.
    """
    with _opened(path) as connection:
        rows = _removable(connection, gone)
        there = (connection.execute(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {which})") for table, which in rows)
        free = connection.execute("PRAGMA freelist_count")
        return not any(count for cursor in (*there, free) for (count,) in cursor)


def _removable(connection: sqlite3.Connection, gone: Sequence[int]) -> list[tuple[str, str]]:
    """Return each table with rows that runs left, and the condition of these rows, in the order of their removal."""
    connection.execute("CREATE TEMP TABLE gone (run_id INTEGER)")
    connection.executemany("INSERT INTO temp.gone VALUES (?)", [(run,) for run in gone])
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    rows = [*((table, f"run_id IN ({_RUNS})") for table in _BY_RUN), *_BY_OTHERS.items()]
    return [(table, which) for table, which in rows if table in there]


def size(path: Path) -> int:
    """Return the bytes of a database with the files that SQLite keeps beside it."""
    files = (path.with_name(path.name + more) for more in _BESIDE)
    return sum(file.stat().st_size for file in files if file.is_file())


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=5)) as connection:
            yield connection
    except (sqlite3.DatabaseError, ValueError, TypeError) as error:
        raise InputError(f"Expected {path} as Flower's SuperLink leaves it at its end, got {error}.") from error


def _out(text: str | None) -> Path | None:
    config = json.loads(text or "{}")
    return Path(config["out"]) if config.get("out") else None


def _seconds(when: str | None) -> float:
    return datetime.fromisoformat(when).timestamp() if when else 0.0
