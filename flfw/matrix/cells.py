"""Runner of a matrix of one data set, one cell after the other; a killed matrix is resumed."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from flfw import nets
from flfw.combinations import refuse_membership
from flfw.errors import InputError, RunError
from flfw.experiment import FREE_ON_RESUME, Experiment
from flfw.formats.result_file import read_result
from flfw.matrix import tables
from flfw.matrix.question import Matrix, MatrixCell, require_same_question
from flfw.matrix.record import read_matrix
from flfw.plan import plan, without_auto
from flfw.runs import engine
from flfw.runs import run as whole
from flfw.storage.checkpoint import is_complete, locked, stored_experiment
from flfw.storage.sealed import sealed

_LOCK = ".lock"


@final
@dataclass(frozen=True)
class PreparedMatrix:
    """Matrix of one data set whose cells have all been checked.

    Attributes:
        folder: its folder.
        question: all that its numbers depend on, as in matrix.json.
        cells: all cells, in their order.
    """

    folder: Path
    question: Mapping[str, Any]
    cells: tuple[MatrixCell, ...]


def prepare(matrix: Matrix, experiment: Experiment, folder: Path) -> PreparedMatrix:
    """Check all cells of a matrix of one data set; nothing is started or written.

    Raises:
        InputError: a setting of any cell does not exist or does not fit, or the folder holds something else.
    """
    matrix, experiment = fill_defaults(matrix, experiment)
    question = matrix.question(experiment)
    _check_folder(folder, question)
    cells = matrix.cells(experiment, folder)
    for cell in cells:
        _check(cell)
    return PreparedMatrix(folder, question, cells)


def carry_out(prepared: PreparedMatrix) -> dict[str, str]:
    """Run the cells that are not complete and write the tables; return the reasons of failed cells by name."""
    folder, question, cells = prepared.folder, prepared.question, prepared.cells
    (folder / _LOCK).mkdir(parents=True, exist_ok=True)
    with locked(folder / _LOCK / "run"):
        return _run_all(cells, lambda failures: tables.write(folder, question, cells, failures))


def fill_defaults(matrix: Matrix, experiment: Experiment) -> tuple[Matrix, Experiment]:
    """Return matrix and experiment with all defaults in place: every axis filled, the same attacks for all methods."""
    asked = dataclasses.replace(experiment, attack=matrix.attacks or experiment.attack)
    nets.look_in(asked.weights)
    run_plan = without_auto(asked, matrix.methods)
    filled = dataclasses.replace(matrix, attacks=run_plan.attack).filled(run_plan)
    return filled, filled.with_equal_attackers(run_plan)


def _check_folder(folder: Path, question: Mapping[str, Any]) -> None:
    if not folder.exists():
        return
    path = folder / "matrix.json"
    if not path.is_file():
        if folder.is_dir() and all(entry.name == _LOCK for entry in folder.iterdir()):
            return  # a kill fell between the folder and its first file
        raise InputError(
            f"Expected a new folder or that of a matrix, got {folder} without matrix.json; choose another."
        )
    require_same_question(read_matrix(path)["question"], question, folder)


def _check(cell: MatrixCell) -> None:
    """Refuse a cell that cannot be run or resumed.

    Raises:
        InputError: the message names the cell.
    """
    try:
        refuse_membership(plan(cell.experiment).audit, "in a matrix")
        checked = whole.check(cell.experiment, new=False)[0].experiment
        engine.check_resources(checked)
        if sealed(cell.folder / "checkpoint", "experiment"):
            stored_experiment(cell.folder).require_same(checked, cell.folder)
        elif is_complete(cell.folder):  # its checkpoint was purged
            _require_same_result(cell.folder, checked)
        elif (cell.folder / "result.json").exists():
            raise InputError(
                f"Expected a run with its checkpoint, got {cell.folder} without; remove it to run it anew."
            )
    except InputError as error:
        raise InputError(f"{cell.folder.name}: {error}") from error


def _require_same_result(folder: Path, experiment: Experiment) -> None:
    config = read_result(folder).get("config", {})
    for field in dataclasses.fields(experiment):
        values = getattr(experiment, field.name), config.get(field.name, field.default)
        now, before = (list(value) if isinstance(value, tuple) else value for value in values)
        if field.name not in FREE_ON_RESUME and now != before:
            raise InputError(f"Expected {field.name}={now}, got {before} in {folder}; remove that folder.")


def _run_all(cells: Sequence[MatrixCell], write: Callable[[Mapping[str, str]], None]) -> dict[str, str]:
    """Run the cells that are not complete; return the reasons of failed cells by name."""
    failed: dict[str, str] = {}
    write(failed)
    for number, cell in enumerate(cells, 1):
        if is_complete(cell.folder):
            continue
        title, started = f"[{number}/{len(cells)}] {cell.folder.name}", time.monotonic()
        say(title)
        try:
            _run_or_resume(cell)
        except (InputError, RunError) as error:
            failed[cell.folder.name] = str(error)
        ending = failed.get(cell.folder.name)
        say(f"{title}: {f'failed: {ending}' if ending else 'done'} after {time.monotonic() - started:.0f} s")
        write(failed)
    return failed


def _run_or_resume(cell: MatrixCell) -> None:
    if sealed(cell.folder / "checkpoint", "experiment"):
        whole.resume(cell.experiment)
        return
    if cell.folder.exists():  # a kill fell between the folder and its first file
        shutil.rmtree(cell.folder)
    whole.run(cell.experiment)


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
