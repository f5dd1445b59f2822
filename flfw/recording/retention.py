"""How long recordings are kept, and how all that may give away clients' data is removed from a run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Container, Sequence
from contextlib import ExitStack
from pathlib import Path

from flfw.errors import BadInput, require
from flfw.recording.format import MANIFEST, Line, sweep
from flfw.recording.reader import forgotten, is_exchange, manifest, places
from flfw.storage.checkpoint import locked
from flfw.storage.sealed import write_whole

_GIVES_AWAY = (
    *("observations", "examples", "truth", "reconstructions", "queue", "state", "checkpoint"),
    *("pictures", "report.html", "report.pdf"),  # a report has the pictures inside
    "figures",  # clients' embeddings, and which classes they hold most of
)
_LOCKS = (".run", ".server")


def keep_last(folder: Path, rounds: int) -> list[Path]:
    """Keep the recordings of the last recorded rounds and delete all others; the manifest says which were.

    Nobody may be recording there, and a run whose recordings were thinned out cannot be resumed: its checkpoint knows
    them whole. Damaged lines of the manifest go too, with the files that no other line names. Deletion is not secure
    erasure: see `purge`.

    Args:
        folder: of recordings, as `flfw.recording.reader.Recordings` reads them.
        rounds: how many rounds to keep, >= 0; rounds in which nothing was recorded do not count.

    Returns:
        The files that were deleted.

    Raises:
        BadInput: there are no recordings, or ``rounds`` is negative.
    """
    require(rounds >= 0, "rounds >= 0", rounds=rounds)
    found = {place: manifest(place)[0] for place in places(folder)}
    recorded = sorted({row["round"] for rows in found.values() for row in rows if is_exchange(row)})
    kept = set(recorded[len(recorded) - min(rounds, len(recorded)) :])
    return [path for place, rows in found.items() for path in _keep(place, rows, kept)]


def _keep(folder: Path, rows: Sequence[Line], kept: Container[object]) -> list[Path]:
    recorded = {row["round"] for row in rows if is_exchange(row)}
    gone = sorted(number for number in {*forgotten(rows), *recorded} if number not in kept)
    lines = [row for row in rows if "forgotten" not in row and row.get("round") in kept]
    if gone:
        header, _, _ = (folder / MANIFEST).read_bytes().partition(b"\n")
        parts = [header, *(json.dumps(row).encode() for row in ({"forgotten": {"rounds": gone}}, *lines))]
        write_whole(folder / MANIFEST, b"\n".join(parts) + b"\n")  # first: files no line names are swept the next time
    ways = ("sent_to_client", "sent_by_client")
    return sweep(folder, {row[way]["file"] for row in lines if is_exchange(row) for way in ways})


def purge(run_folder: Path) -> list[str]:
    """Remove what holds or may give away clients' data or models: recordings, truth, state, checkpoints, pictures.

    What stays are the numbers: ``result.json`` and the tables. The report goes, for the pictures are inside; it can be
    written again without. Audits in ``audit-N`` folders are treated alike. The run can be neither resumed nor audited
    again. Links are removed and what they point to is left. Deletion is not secure erasure: the blocks stay on the disk
    until they are written over, and copies, snapshots and backups are not reached.

    Args:
        run_folder: of a run that is over.

    Returns:
        What was removed, a sentence each.

    Raises:
        BadInput: the folder holds no result, or a run is at work in it.
    """
    if not (run_folder / "result.json").is_file():
        raise BadInput(f"Expected a run that is over, got {run_folder} without result.json; finish it or remove it.")
    inner = sorted(path for path in run_folder.iterdir() if re.fullmatch(r"audit-[0-9]+", path.name))
    folders = [run_folder, *(path for path in inner if path.is_dir() and not path.is_symlink())]
    with ExitStack() as locks:
        for lock in (folder / "checkpoint" / name for folder in folders for name in _LOCKS):
            if lock.is_file():  # whoever is at work has made it
                locks.enter_context(locked(lock))
        said = [_remove(folder / name, run_folder) for folder in folders for name in _GIVES_AWAY]
    said += [_remove(path, run_folder) for path in inner if path.is_symlink()]
    return [sentence for sentence in said if sentence]


def _remove(path: Path, run_folder: Path) -> str:
    """Remove a file, a link or a folder; what it was, or nothing if there was none."""
    name = path.relative_to(run_folder)
    if path.is_symlink():
        target = path.readlink()
        path.unlink()
        return f"{name}: a link to {target}, which is left as it is."
    if path.is_dir():
        sizes = _sizes(path)
        shutil.rmtree(path)
        return f"{name}/: {len(sizes)} file{'' if len(sizes) == 1 else 's'}, {_in_units(sum(sizes))}."
    if path.exists():
        size = path.stat().st_size
        path.unlink()
        return f"{name}: {_in_units(size)}."
    return ""


def _sizes(folder: Path) -> list[int]:
    return [(Path(at) / file).lstat().st_size for at, _, files in os.walk(folder) for file in files]


def _in_units(size: float) -> str:
    """Bytes in words.

    >>> _in_units(999), _in_units(1_234_567_890)
    ('999 bytes', '1.2 GB')
    """
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
