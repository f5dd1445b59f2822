"""Matrices of runs, for one data set or for several, each in a folder of its own, and one table of them all.

The cells of a matrix are run one after the other. A killed matrix is resumed.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from flfw import data, nets
from flfw.comparisons import tables
from flfw.comparisons.question import Matrix, folder_name, parse, require_same_question
from flfw.comparisons.rows import MATRIX, read_matrix
from flfw.comparisons.significance import messages_needed
from flfw.comparisons.tables import latex, markdown
from flfw.errors import InputError, RunError, require
from flfw.experiment import FREE_ON_RESUME, Experiment
from flfw.files.folders import claimed
from flfw.files.progress import say
from flfw.files.result_file import read_result
from flfw.files.sealed import sealed, write_atomic
from flfw.plans.combinations import refuse_membership
from flfw.plans.run_plan import plan, without_auto
from flfw.runs import launch
from flfw.runs import run as whole
from flfw.server.checkpoint import is_complete, locked, stored_experiment

_TABLE = "matrix.md"
_WRITERS = {_TABLE: markdown, "matrix.tex": latex}
_LOCK = ".lock"


@final
@dataclass(frozen=True)
class PreparedMatrix:
    """Matrix of one data set whose cells have all been checked.

    Attributes:
        folder: its folder.
        question: all that its numbers depend on, as in matrix.json.
        cells: experiments of all cells, in their order.
    """

    folder: Path
    question: Mapping[str, Any]
    cells: tuple[Experiment, ...]


def prepare(matrix: Matrix, experiment: Experiment, folder: Path) -> PreparedMatrix:
    """Check all cells of a matrix of one data set; nothing is started or written.

    Raises:
        InputError: a setting of any cell does not exist or does not fit, or the folder holds something else.
    """
    matrix, experiment = fill_defaults(matrix, experiment)
    question = matrix.question(experiment)
    _check_cell_folder(folder, question)
    cells = matrix.cells(experiment, folder)
    for cell in cells:
        _check(cell)
    compared, messages = len(cells) // len(matrix.seeds), experiment.images * len(matrix.seeds)
    needed = messages_needed(compared * (compared - 1)) if experiment.attacks else 0  # two tests for each pair
    if messages < needed:
        say(f"warning: {messages} messages cannot tell {compared} combinations apart; {needed} could (--images)")
    return PreparedMatrix(folder, question, cells)


def carry_out(prepared: PreparedMatrix) -> dict[str, str]:
    """Run the cells that are not complete and write the tables; return the reasons of failed cells by name."""
    folder, question, cells = prepared.folder, prepared.question, prepared.cells
    (folder / _LOCK).mkdir(parents=True, exist_ok=True)
    with locked(folder / _LOCK / "run"):
        return _run_all(cells, lambda failures: tables.write(folder, question, cells, failures))


def fill_defaults(matrix: Matrix, experiment: Experiment) -> tuple[Matrix, Experiment]:
    """Return matrix and experiment with all defaults in place: every axis filled, the same attacks for all methods."""
    requested = dataclasses.replace(experiment, attack=matrix.attacks or experiment.attack)
    nets.look_in(requested.weights)
    run_plan = without_auto(requested, matrix.methods)
    filled = dataclasses.replace(matrix, attacks=run_plan.attack).filled(run_plan)
    return filled, filled.with_equal_attackers(run_plan)


def _check_cell_folder(folder: Path, question: Mapping[str, Any]) -> None:
    if not folder.exists():
        return
    path = folder / "matrix.json"
    if not path.is_file():
        if folder.is_dir() and all(entry.name == _LOCK for entry in folder.iterdir()):
            return  # a kill fell between the folder and its first file
        raise InputError(f"Expected a new folder or that of a matrix, got {folder} without matrix.json; take another.")
    require_same_question(read_matrix(path)["question"], question, folder)


def _check(cell: Experiment) -> None:
    """Refuse a cell that cannot be run or resumed.

    Raises:
        InputError: the message names the cell.
    """
    folder = cell.folder
    try:
        refuse_membership(plan(cell).audit, "in a matrix")
        checked = whole.check(cell, new=False)[0].experiment
        launch.check_resources(checked)
        if sealed(folder / "checkpoint", "experiment"):
            stored_experiment(folder).require_same(checked, folder)
        elif is_complete(folder):  # its checkpoint was purged
            _require_same_result(folder, checked)
        elif (folder / "result.json").exists():
            raise InputError(f"Expected a run with its checkpoint, got {folder} without; remove it to run anew.")
    except InputError as error:
        raise InputError(f"{folder.name}: {error}") from error


def _require_same_result(folder: Path, experiment: Experiment) -> None:
    config = read_result(folder).get("config", {})
    for field in dataclasses.fields(experiment):
        values = getattr(experiment, field.name), config.get(field.name, field.default)
        now, before = (list(value) if isinstance(value, tuple) else value for value in values)
        if field.name not in FREE_ON_RESUME and now != before:
            raise InputError(f"Expected {field.name}={now}, got {before} in {folder}; remove that folder.")


def _run_all(cells: Sequence[Experiment], write: Callable[[Mapping[str, str]], None]) -> dict[str, str]:
    """Run the cells that are not complete; return the reasons of failed cells by name."""
    failed: dict[str, str] = {}
    write(failed)
    for number, cell in enumerate(cells, 1):
        folder = cell.folder
        if is_complete(folder):
            continue
        title, started = f"[{number}/{len(cells)}] {folder.name}", time.monotonic()
        say(title)
        try:
            whole.run_or_resume(cell)
        except (InputError, RunError) as error:
            failed[folder.name] = str(error)
        ending = failed.get(folder.name)
        say(f"{title}: {f'failed: {ending}' if ending else 'done'} after {time.monotonic() - started:.0f} s")
        write(failed)
    return failed


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
            records = dict(_records([each.folder for each in prepared if (each.folder / "matrix.json").is_file()]))
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
