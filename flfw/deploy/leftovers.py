"""Leftovers of ended runs in a federation's folder: what may go, what stays and why, and its removal.

Private tensors of a site go only if their run is known on this machine to be over: the server's database names the
folder of each run, that folder's checkpoint has the id under which sites keep tensors, and its result is complete. A
run that is not complete can be resumed; a run that nobody here knows may be resumed from elsewhere. Both stay.

The database of Flower's SuperLink is made smaller as well. Flower deletes an array's row once it was fetched, but
SQLite keeps the page with its bytes for later use, and rows of a run that was killed stay. So the file grows with every
run, and holds what clients sent.
"""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from math import inf, isfinite
from pathlib import Path

from flfw.engines.layout import FederationLayout
from flfw.errors import InputError, require
from flfw.files.folders import in_units

ALSO = ("truth", "logs", "unknown")
"""What goes only if it is asked for: true examples of audits, logs, and private tensors of runs unknown here."""

_DAY_S = 86400.0
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


def _recorded_runs(path: Path) -> tuple[RecordedRun, ...]:
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


def _is_clean(path: Path, gone: Sequence[int]) -> bool:
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


@dataclass(frozen=True)
class Leftover:
    """File or folder that goes, or stays.

    Attributes:
        path: the file or folder.
        reason: why, in words.
        size: in bytes.
    """

    path: Path
    reason: str
    size: int


@dataclass(frozen=True)
class Removal:
    """Plan of a removal.

    Attributes:
        folder: folder of the federation.
        goes: what is removed.
        stays: what is not removed, and might be expected to be.
        runs: runs whose rows go from the server's database; None: there is no database.
    """

    folder: Path
    goes: tuple[Leftover, ...]
    stays: tuple[Leftover, ...]
    runs: tuple[int, ...] | None

    def lines(self) -> Iterator[str]:
        """Yield a line for each path, first for those that go."""
        for word, leftovers in (("goes", self.goes), ("stays", self.stays)):
            for one in leftovers:
                yield f"{word:<5}  {one.path.relative_to(self.folder)}: {in_units(one.size)}, {one.reason}"

    def carry_out(self) -> int:
        """Remove the leftovers that go; return the number of freed bytes."""
        freed = 0
        for one in self.goes:
            if one.path.name == FILE:
                freed += one.size - shrink(one.path, self.runs or ())
            else:
                _remove(one.path)
                freed += one.size
        return freed


@dataclass(frozen=True)
class _Known:
    """Folder of a run on this machine, and whether the run is over."""

    out: Path
    over: bool
    kept: bool


def plan(layout: FederationLayout, days: float = 0.0, also: Sequence[str] = ()) -> Removal:
    """Plan the removal of the leftovers of ended runs; nothing is changed.

    Args:
        layout: the federation, whose processes have ended.
        days: only what was last changed so many days ago; 0: at any time.
        also: names of `ALSO`.

    Raises:
        InputError: a value is out of range, or the server's database is not one.
    """
    require(isfinite(days) and days >= 0, "0 <= older-than < inf", older_than=days)
    before = time.time() - days * _DAY_S if days else inf
    path = layout.superlink / FILE
    runs = _recorded_runs(path) if path.is_file() else ()
    known = _known([run.out for run in runs if run.out])
    goes, stays, chosen = [], [], None
    if path.is_file():
        ended = [run for run in runs if run.last < before]
        chosen = tuple(run.id for run in ended)
        words = f"messages, arrays and logs of {len(ended)} of {len(runs)} runs; keys and the runs' dates stay in it"
        if not _is_clean(path, chosen):
            goes.append(Leftover(path, words, size(path)))
    for leftover, over in _candidates(layout, known, also):
        late = _changed(leftover.path) >= before
        if over and not late:
            goes.append(leftover)
        else:
            newer = f"changed within {days:g} days" if over else leftover.reason
            stays.append(Leftover(leftover.path, newer, leftover.size))
    return Removal(layout.folder, tuple(goes), tuple(stays), chosen)


def _candidates(
    layout: FederationLayout, known: dict[str, _Known], also: Collection[str]
) -> Iterator[tuple[Leftover, bool]]:
    """Yield every leftover beside the database, and whether it may go at all."""
    sites = [layout.site(number) for number in range(layout.clients)]
    for site in sites:
        for path in _inside(site / "state"):
            reason, over = _about(path.name, known, "unknown" in also)
            yield Leftover(path, f"private tensors: {reason}", _size(path)), over
        for path in _inside(site / "truth"):
            reason, over = _about(path.name, known, "unknown" in also)
            requested = reason if "truth" in also else f"{reason}; --also truth removes it"
            yield Leftover(path, f"true examples: {requested}", _size(path)), over and "truth" in also
    for place in (layout.superlink, *sites):
        for path in _inside(place / "home" / "apps"):
            yield Leftover(path, "received app", _size(path)), True
        for path in sorted(place.glob("*.log")) if "logs" in also else ():
            yield Leftover(path, "log", _size(path)), True


def _about(experiment: str, known: dict[str, _Known], unknown: bool) -> tuple[str, bool]:
    """Return why the files of a run may go or stay, and whether they may go."""
    run = known.get(experiment)
    if run is None:
        return f"of a run unknown here{'' if unknown else '; --also unknown removes it'}", unknown
    if not run.over:
        return f"{run.out} can be resumed", False
    if run.kept:
        return f"{run.out} was run with --expert keep_state=true", False
    return f"{run.out} is over", True


def _known(outs: Collection[Path]) -> dict[str, _Known]:
    """Return the runs with a checkpoint on this machine by the id under which sites keep private tensors."""
    from flfw.server.checkpoint import is_complete, stored_experiment  # with PyTorch, which a status does not need

    known = {}
    for out in dict.fromkeys(outs):
        try:
            stored = stored_experiment(out)
        except (InputError, OSError):  # moved, removed or damaged: nobody here knows that it is over
            continue
        known[stored.id] = _Known(out, is_complete(out), stored.experiment.keep_state)
    return known


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from (Path(at) / name for at, _, names in os.walk(path) for name in names)
    else:
        yield path


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in _files(path))


def _changed(path: Path) -> float:
    return max((file.lstat().st_mtime for file in _files(path)), default=path.lstat().st_mtime)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
