"""Tasks of the command line, each imported when it is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flfw.command.record import Command, parse
from flfw.errors import BadInput
from flfw.experiment import Experiment


def run(command: Command, arguments: list[str], program: str) -> Path:
    """Run, resume or audit again, as the command says; return the folder that was written.

    Args:
        command: the command line.
        arguments: its words, which are parsed anew upon the settings of the stored run.
        program: name of the command, for messages.
    """
    from flfw.runs import run as runs
    from flfw.storage.checkpoint import is_complete

    if command.from_:
        earlier = replace(runs.stored(command.from_), out=None)
        return runs.audit_again(command.from_, earlier, parse(arguments, earlier, program).experiment)
    if not command.resume:
        return runs.run(command.experiment)
    stored = runs.stored(command.resume)
    asked = parse(arguments, stored, program).experiment
    if asked.out != stored.out:
        raise BadInput(f"Expected a run to be resumed where it lies, {stored.out}, got --out {asked.out}.")
    complete, folder = is_complete(command.resume), runs.resume(asked)
    if complete and asked != stored:
        print("warning: the run is complete: flags that were given anew change nothing of it", file=sys.stderr)
    return folder


def listed(names: Sequence[str]) -> str:
    """Return all names by kind, the tables among them, or the cards of the given ones."""
    from flfw.papers.published import FRONTIER
    from flfw.papers.published import names as tables
    from flfw.runs.listing import listing

    return listing(names) if names else f"{listing(())}\ntables     {', '.join((*tables(), FRONTIER))}"


def compared(folders: Sequence[Path]) -> str:
    """Return finished runs beside each other."""
    from flfw.matrix.compare import table

    return table(folders)


def figures(command: Command) -> list[Path]:
    """Draw finished runs for a paper; return the paths of the files."""
    from flfw.papers.figures import write

    return write(command.figures, command.experiment.out, data_root=command.experiment.data_root)


def several(command: Command) -> int:
    """Run every combination of a matrix or every seed; return the exit code."""
    from flfw import matrix

    return matrix.main(command.matrix, command.seeds, command.experiment)


def purged(folder: Path) -> str:
    """Remove clients' data from a finished run; return what was removed."""
    from flfw.recording.retention import purge
    from flfw.report.report import write_report
    from flfw.runs.results import read_earlier

    for result in [folder / "result.json", *folder.glob("audit-*/result.json")]:
        read_earlier(result.parent)  # a damaged one is refused before anything is removed
    removed = purge(folder)
    for result in sorted([folder / "result.json", *folder.glob("audit-*/result.json")]):
        write_report(result.parent, pictures=False)
    return "\n".join(
        [*removed, "What stays are figures and a report without pictures. Copies and backups are not reached."]
    )


def table(command: Command) -> int:
    """Reproduce a table or some of its cells; return the exit code."""
    from flfw.papers.command import reproduce
    from flfw.papers.frontier.command import reproduce as measure_points
    from flfw.papers.published import FRONTIER

    name = command.table or command.cell.partition("/")[0]
    if name == FRONTIER:
        return measure_points(command.cell, command.scale, command.experiment)
    return reproduce(command.table, command.cell, command.scale, command.experiment)


def split_shown(experiment: Experiment) -> str:
    """Draw who would hold what; return the table and the path of the picture."""
    from flfw.data.splits import picture as shares
    from flfw.runs.run import check, make_folder

    resolved, task, notes = check(experiment)
    checked = resolved.experiment
    task.require_data("--show-split")
    assert checked.out is not None, "check names the folder"
    make_folder(checked.out)
    picture = checked.out / "split.png"
    shares.picture(task.dataset, task.split, picture, checked.split)
    return "\n".join([shares.table(task.dataset, task.split), *notes, str(picture)])


def estimated(experiment: Experiment) -> str:
    """Return the claims that a run would make, and its expected time and memory."""
    from flfw.command.summary import claimed
    from flfw.dp.ledger import Ledger
    from flfw.runs.engine import check_resources
    from flfw.runs.estimate import estimate, lines
    from flfw.runs.run import check, require_folder
    from flfw.runs.timing import since_start_s

    if experiment.ray_address:
        raise BadInput(f"Expected --estimate on this machine alone, got --ray-address {experiment.ray_address}.")
    resolved, task, notes = check(experiment)
    task.require_data("--estimate")
    check_resources(resolved.experiment)
    assert resolved.experiment.out is not None, "check names the folder"
    require_folder(resolved.experiment.out)
    own_s, began = since_start_s(), time.process_time()
    claims = claimed(Ledger(resolved, task.split).entries())
    expected = estimate(resolved, time.process_time() - began, own_s)
    return "\n".join([*claims, *notes, lines(expected)])
