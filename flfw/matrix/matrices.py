"""Matrices of several data sets, each in a folder of its own, and one table of them all; or the matrix of one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flfw import data
from flfw.errors import InputError, RunError, require
from flfw.experiment import Experiment
from flfw.matrix import tables
from flfw.matrix.cells import PreparedMatrix, carry_out, prepare, say
from flfw.matrix.latex import latex
from flfw.matrix.markdown import markdown
from flfw.matrix.question import Matrix, folder_name, parse
from flfw.matrix.record import MATRIX, read_matrix
from flfw.storage.folders import claimed
from flfw.storage.sealed import write_atomic

_TABLE = "matrix.md"
_WRITERS = {_TABLE: markdown, "matrix.tex": latex}


def main(words: Sequence[str], seeds: Sequence[int], experiment: Experiment) -> int:
    """Run ``sim.py --matrix`` or ``--seeds`` and print a line for each combination.

    Args:
        words: the axes, as `parse` takes them.
        seeds: seeds of ``--seeds``; empty: those of the axis or of the experiment.
        experiment: everything else; its ``out`` is the matrix's folder.

    Returns:
        The exit code: 0, or 1 if a run failed.

    Raises:
        InputError: as `run` does.
    """
    matrix = parse(words)
    if seeds:
        require(not matrix.seeds, "--seeds or the axis seeds, not both", seeds=",".join(map(str, seeds)))
        matrix = replace(matrix, seeds=tuple(seeds))
    folder, complaint = _run(matrix, experiment, None)
    print(summary(folder))
    if complaint:
        say(f"sim.py: {complaint}")
    return 1 if complaint else 0


def run(matrix: Matrix, experiment: Experiment, out: Path | None = None) -> Path:
    """Run each method with each defence and seed, all attacks in it, and write matrix.json, .csv, .md, .tex and .html.

    With the axis ``datasets`` these files lie in a folder for each data set; ``matrix.md`` and ``matrix.tex`` beside
    the folders have all of them.

    Args:
        matrix: axes of the matrix; an empty axis takes the experiment's value.
        experiment: all other settings, the same for all runs.
        out: a new folder, or that of the same matrix to resume it: complete runs are kept, and interrupted runs are
            resumed. None: the experiment's, else ``runs/matrix-DATASET-TIME``.

    Returns:
        The folder.

    Raises:
        InputError: a setting of any cell does not exist or does not fit, or the folder holds something else; nothing
            has been started or written.
        RunError: one or several runs failed; the others were run and are in the tables.
    """
    folder, complaint = _run(matrix, experiment, out)
    if complaint:
        raise RunError(complaint)
    return folder


def summary(folder: Path) -> str:
    """Return a line for each combination of finished matrices, their notes, and the paths of the pages."""
    alone = (folder / "matrix.json").is_file()
    lines: list[str] = []
    for name, record in _records([folder] if alone else sorted(path for path in folder.iterdir() if path.is_dir())):
        lines += [] if alone else [f"{name}:"]
        lines += [*tables.lines(record), *record["notes"], str((folder if alone else folder / name) / "matrix.html")]
    return "\n".join(lines if alone else [*lines, str(folder / _TABLE)])


def _run(matrix: Matrix, experiment: Experiment, out: Path | None) -> tuple[Path, str]:
    """Run all matrices; return their folder, and a sentence about the runs that failed, if any did."""
    honest = "--matrix without --malicious-server, as its verdicts on methods are on servers that follow the protocol"
    require(not experiment.malicious_server, honest, malicious_server=experiment.malicious_server)
    named = out or experiment.out
    if named:
        return _run_in(named.absolute(), matrix, experiment)
    with claimed((Path("runs") / _default_name(matrix, experiment)).absolute()) as folder:
        return _run_in(folder, matrix, experiment)


def _run_in(folder: Path, matrix: Matrix, experiment: Experiment) -> tuple[Path, str]:
    """Run all matrices in a folder: a new one, an empty one or their own."""
    if matrix.datasets:
        _check_folder(folder, matrix.datasets)
    one = replace(matrix, datasets=())
    prepared = [_prepared(one, experiment, folder, name) for name in matrix.datasets]
    prepared = prepared or [prepare(one, experiment, folder)]
    different = len({each.folder for each in prepared}) == len(prepared)
    require(different, "names that give different folders", datasets=matrix.datasets)
    failed: dict[str, str] = {}
    for each in prepared:
        if matrix.datasets:
            say(f"{each.folder.name}: {len(each.cells)} runs")
        failed |= {_path(each, folder, name): reason for name, reason in carry_out(each).items()}
        if matrix.datasets:
            records = dict(_records(_begun(prepared)))
            for name_of_table, render in _WRITERS.items():
                write_atomic(folder / name_of_table, render(records).encode())
    if not failed:
        return folder, ""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    count = sum(len(each.cells) for each in prepared)
    return folder, f"{len(failed)} of {count} runs failed ({reasons}); the tables are in {folder}."


def _prepared(matrix: Matrix, experiment: Experiment, folder: Path, name: str) -> PreparedMatrix:
    """Check the matrix of one data set of several; a complaint names it."""
    try:
        return prepare(matrix, replace(experiment, dataset=name), folder / folder_name(name))
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _path(each: PreparedMatrix, folder: Path, name: str) -> str:
    return name if each.folder == folder else f"{each.folder.name}/{name}"


def _begun(prepared: Iterable[PreparedMatrix]) -> list[Path]:
    return [each.folder for each in prepared if (each.folder / "matrix.json").is_file()]


def _records(folders: Iterable[Path]) -> list[tuple[str, Mapping[str, Any]]]:
    """Read the matrix of each folder, by the folder's name."""
    return [(path.name, read_matrix(path / MATRIX)) for path in folders]


def _check_folder(folder: Path, datasets: Iterable[str]) -> None:
    """Refuse a folder that has anything but matrices of these data sets."""
    allowed = {*_WRITERS, *map(folder_name, datasets)}
    other = sorted(path.name for path in folder.iterdir() if path.name not in allowed) if folder.is_dir() else []
    if other or folder.is_file():
        raise InputError(
            f"Expected a new folder or that of matrices of {', '.join(datasets)}, got {folder} with "
            f"{', '.join(other) or 'a file of its name'}; choose another --out."
        )


def _default_name(matrix: Matrix, experiment: Experiment) -> str:
    names = [data.title(name) for name in matrix.datasets or (experiment.dataset,)]
    return f"matrix-{'-'.join(map(folder_name, names))}-{time.strftime('%Y%m%d-%H%M%S')}"
