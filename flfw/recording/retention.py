"""Retention of recordings, and removal of all files of a run that may give away clients' data."""

import json
import os
import re
import shutil
from collections.abc import Container, Sequence
from contextlib import ExitStack
from pathlib import Path

from flfw.errors import require
from flfw.files.folders import in_units, require_over
from flfw.recording.format import MANIFEST, Line, sweep
from flfw.recording.manifest import forgotten, is_exchange, read_manifest, rewrite
from flfw.recording.reader import places
from flfw.server.checkpoint import locked

_GIVES_AWAY = (
    *("observations", "examples", "truth", "reconstructions", "queue", "state", "checkpoint"),
    *("pictures", "report.html", "report.pdf"),  # a report has the pictures inside
    "wandb/results",  # the report that a tracker was handed
    "figures",  # clients' embeddings and their dominant classes
)
_LOCKS = (".run", ".server")


def keep_last(folder: Path, rounds: int) -> list[Path]:
    """Keep the recordings of the last recorded rounds and delete all others; the manifest lists the deleted rounds.

    No process may be recording in the folder. The run cannot be resumed afterwards: its checkpoint needs all
    recordings. Damaged lines of the manifest are removed too, with the files that no other line names; that they were
    damaged stays noted, and is said whenever the recordings are read. Deletion is not secure erasure: see `purge`.

    Args:
        folder: folder of recordings, as `flfw.recording.reader.Recordings` reads them.
        rounds: number of rounds to keep, >= 0; rounds without recordings do not count.

    Returns:
        The files that were deleted.

    Raises:
        InputError: there are no recordings, or ``rounds`` is negative.
    """
    require(rounds >= 0, "rounds >= 0", rounds=rounds)
    read = {place: read_manifest(place) for place in places(folder)}
    manifests = {place: rows for place, (rows, _) in read.items()}
    recorded = sorted({row["round"] for rows in manifests.values() for row in rows if is_exchange(row)})
    kept = set(recorded[len(recorded) - min(rounds, len(recorded)) :])
    return [path for place, (rows, damaged) in read.items() for path in _keep(place, rows, damaged, kept)]


def _keep(folder: Path, rows: Sequence[Line], damaged: Sequence[str], kept: Container[object]) -> list[Path]:
    recorded = {row["round"] for row in rows if is_exchange(row)}
    gone = sorted(number for number in {*forgotten(rows), *recorded} if number not in kept)
    lines = [row for row in rows if "forgotten" not in row and row.get("round") in kept]
    if gone:
        header = json.loads((folder / MANIFEST).read_bytes().partition(b"\n")[0])
        # First, so that after a kill the next call removes the files without a line.
        rewrite(folder, [header, {"forgotten": {"rounds": gone}, "damaged": list(damaged)}, *lines])
    ways = ("sent_to_client", "sent_by_client")
    return sweep(folder, {row[way]["file"] for row in lines if is_exchange(row) for way in ways})


def purge(run_folder: Path) -> list[str]:
    """Remove all files that may reveal clients' data or models: recordings, truth, state, checkpoints, pictures.

    The numbers stay: ``result.json`` and the tables. The report is removed, since it contains pictures; it can be
    written again without them. Audits in ``audit-N`` and repetitions in ``verify-N`` are treated alike. The run can be
    neither resumed nor audited again. Links are removed, and their targets are left. Deletion is not secure erasure:
    the blocks stay on the disk until they are overwritten, and copies, snapshots and backups are not reached.

    Args:
        run_folder: folder of a finished run.

    Returns:
        The removed files and folders, one sentence each.

    Raises:
        InputError: the folder holds no result, or a run is active in it.
    """
    require_over(run_folder)
    inner = sorted(path for path in run_folder.iterdir() if re.fullmatch(r"(audit|verify)-[0-9]+", path.name))
    folders = [run_folder, *(path for path in inner if path.is_dir() and not path.is_symlink())]
    with ExitStack() as locks:
        for lock in (folder / "checkpoint" / name for folder in folders for name in _LOCKS):
            if lock.is_file():  # an active run has made it
                locks.enter_context(locked(lock))
        sentences = [_remove(folder / name, run_folder) for folder in folders for name in _GIVES_AWAY]
    sentences += [_remove(path, run_folder) for path in inner if path.is_symlink()]
    return [sentence for sentence in sentences if sentence]


def results_in(run_folder: Path) -> list[Path]:
    """List the result files of a run, of the audits of its recordings and of its repetitions."""
    inner = [path for kind in ("audit", "verify") for path in sorted(run_folder.glob(f"{kind}-*/result.json"))]
    return [run_folder / "result.json", *inner]


def _remove(path: Path, run_folder: Path) -> str:
    """Remove a file, a link or a folder; return a description, or an empty string if there was none."""
    name = path.relative_to(run_folder)
    if path.is_symlink():
        target = path.readlink()
        path.unlink()
        return f"{name}: a link to {target}, which is left as it is."
    if path.is_dir():
        sizes = [(Path(at) / file).lstat().st_size for at, _, files in os.walk(path) for file in files]
        shutil.rmtree(path)
        return f"{name}/: {len(sizes)} file{'' if len(sizes) == 1 else 's'}, {in_units(sum(sizes))}."
    if path.exists():
        size = path.stat().st_size
        path.unlink()
        return f"{name}: {in_units(size)}."
    return ""
