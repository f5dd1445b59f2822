"""Command line of the project: ``python sim.py --method hyperfl --dataset mnist --attack ig``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.report.pdf import browser, write_pdfs
from flfw.terminal.exit_code import exit_code
from flfw.terminal.flags import parsed, piped


@dataclass(frozen=True)
class Command:
    """Run a federated method, audit what it leaks, and write a report.

    Without any flag: HyperFL on the embedded digits, ten clients, audited; a few minutes on two cores.
    """

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    no_pictures: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """The report shows nobody's samples; the same as --pictures no."""
    seeds: tuple[int, ...] = ()
    """Run once for each seed, and pool what the audits found."""
    matrix: tuple[str, ...] = ()
    """Run every combination, with equal budgets: methods=A,B defences=none,C attacks=D seeds=0,1 datasets=E,F; goes on
    where it was cut short."""
    compare: tuple[Path, ...] = ()
    """Print two or more finished runs beside each other, image for image where they share them, and stop."""
    figures: tuple[Path, ...] = ()
    """Draw finished runs for a paper, into --out or the first one's figures/, with the numbers as CSV, and stop."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Attack what an earlier run recorded; writes into --out, or beside it as audit-N."""
    purge: Path | None = None
    """Remove from a finished run all that holds or may give away clients' data, and stop."""
    pdf: tuple[Path, ...] | None = None
    """Print the report as a PDF, too, by Chromium, Chrome or Edge; with folders behind it, print theirs, and stop."""
    resume: Path | None = None
    """Go on with a run that was cut short, from its last checkpoint; flags that decide no numbers may be given anew."""
    verify: Path | None = None
    """Repeat a finished run or audit in a new folder, compare every number, and stop; 0: all repeat."""
    estimate: bool = False
    """Measure for a moment, print the expected time and memory, and stop."""
    show_split: bool = False
    """Print who would hold what, draw it, and stop."""
    table: str = ""
    """Reproduce a table of a paper, published beside measured, such as hyperfl.1; goes on where it was cut short."""
    cell: str = ""
    """Only the cells of a table whose path begins so, such as hyperfl.1/HyperFL/CIFAR-10/20."""
    scale: Literal["quick", "full"] = "quick"
    """Of a table: quick is marked as such, full has the paper's own settings."""
    list: tuple[str, ...] | None = None
    """Print what there is, or all about one method, defence, attack, network or data set, and stop."""


def main(arguments: list[str]) -> int:
    """Parse and run; return the exit code: 0 done, 1 failed, 2 bad input."""
    return exit_code("sim.py", lambda: _do(arguments))


def _do(arguments: list[str]) -> int:
    command = parse(arguments)
    if command.list is not None:
        from flfw.runs.listing import listing

        tables = ", ".join(_tables())
        print(listing(command.list) if command.list else f"{listing(())}\ntables     {tables}")
        return 0
    _refuse_two_tasks(command)
    if command.estimate:
        print(_estimate(command.experiment))
        return 0
    if command.show_split:
        print(_show_split(command.experiment))
        return 0
    if command.compare:
        from flfw.matrix.compare import table

        print(table(command.compare))
        return 0
    if command.figures:
        from flfw.papers.figures import write

        print(*write(command.figures, command.experiment.out, data_root=command.experiment.data_root), sep="\n")
        return 0
    if command.purge or command.pdf:
        print(_purge(command.purge) if command.purge else "\n".join(map(str, write_pdfs(command.pdf or ()))))
        return 0
    if command.verify:
        from flfw.verification.verify import verify

        return verify(command.verify, lambda stored: parse(arguments, stored).experiment)
    if command.matrix or command.seeds:
        return _matrix(command)
    if command.table or command.cell:
        return _table(command)
    printer = browser() if command.pdf is not None else ""  # looked for before the run
    print(_summary(folder := _run(command, arguments)))
    if printer:
        print(*write_pdfs([folder]))
    return 0


def parse(arguments: list[str], stored: Experiment | None = None) -> Command:
    """Parse the command line into a `Command`.

    Args:
        arguments: as the shell gives them.
        stored: values of the flags that are not given; None: their defaults.

    Raises:
        BadInput: tyro's message, in one line instead of a box.
    """
    command = parsed(arguments, Command(stored or Experiment()), "sim.py")
    if command.matrix and piped(arguments) != arguments:
        raise BadInput(
            "Expected one name behind --defence with --matrix, got several; write a pipeline as one value, such as "
            f"{command.experiment.defence}, or an axis as defences=A,B."
        )
    experiment = command.experiment
    _refuse_without_value(command, arguments)
    named = any(word.partition("=")[0] == "--metrics" for word in arguments)
    if stored is None and experiment.federation and not (named or command.table or command.cell):
        experiment = replace(experiment, metrics="auto")
    pictures = "no" if command.no_pictures else experiment.pictures
    return replace(command, experiment=replace(experiment, pictures=pictures))


def _refuse_without_value(command: Command, arguments: list[str]) -> None:
    """Refuse flags with nothing behind them, which would count as not given and start a run."""
    behind = {"--seeds": command.seeds, "--matrix": command.matrix, "--compare": command.compare}
    behind |= {"--figures": command.figures, "--table": command.table, "--cell": command.cell}
    behind |= {"--set": command.experiment.set, "--curve": command.experiment.curve}
    behind |= {"--track": command.experiment.track}
    for word in arguments:
        flag = word.partition("=")[0]
        if not behind.get(flag, True):
            raise BadInput(f"Expected a value behind {flag}, got none; see sim.py --help.")
    if command.no_pictures and command.experiment.pictures == "yes":
        raise BadInput("Expected --pictures auto or no with --no-pictures, got --pictures yes.")


def _refuse_two_tasks(command: Command) -> None:
    if command.scale == "full" and not (command.table or command.cell):
        raise BadInput("Expected --table or --cell with --scale full, got neither; a run of its own has --rounds.")
    asked = {"--resume": command.resume, "--estimate": command.estimate, "--show-split": command.show_split}
    asked |= {"--table or --cell": command.table or command.cell, "--from": command.from_, "--purge": command.purge}
    asked |= {"--matrix or --seeds": command.matrix or command.seeds, "--compare": command.compare}
    asked |= {"--figures": command.figures, "--verify": command.verify, "--pdf FOLDER": command.pdf}
    given = [flag for flag, value in asked.items() if value]
    if command.pdf == () and given and given[0] not in ("--resume", "--from"):
        raise BadInput(
            f"Expected --pdf with one run, got it with {given[0]}; print each page afterwards: --pdf FOLDER."
        )
    if len(given) > 1:
        raise BadInput(f"Expected one of {', '.join(asked)}, got {' and '.join(given)}; each does a thing of its own.")


def _run(command: Command, arguments: list[str]) -> Path:
    from flfw.api import earlier
    from flfw.runs import run

    if command.from_:
        return earlier.audit_again(command.from_, lambda stored: parse(arguments, stored).experiment)
    if not command.resume:
        return run.run(command.experiment)
    return earlier.resume(command.resume, lambda stored: parse(arguments, stored).experiment)


def _matrix(command: Command) -> int:
    from flfw import matrix

    return matrix.main(command.matrix, command.seeds, command.experiment)


def _purge(folder: Path) -> str:
    from flfw.recording.retention import purge, results_in
    from flfw.report.report import write_report
    from flfw.runs.results import read_earlier

    for result in results_in(folder):
        read_earlier(result.parent)  # a damaged one is refused before anything is removed
    removed = purge(folder)
    for result in results_in(folder):
        write_report(result.parent, pictures=False)
    return "\n".join(
        [*removed, "What stays are figures and a report without pictures. Copies and backups are not reached."]
    )


def _tables() -> tuple[str, ...]:
    """Return the names of all tables: the papers', and the frontier."""
    from flfw.papers.interface.tables import names

    return names()


def _table(command: Command) -> int:
    from flfw.papers.interface.tables import measured

    table = measured(command.table, command.cell, command.scale, command.experiment)
    print(table.text, *table.files, sep="\n")
    return int(not table.complete)


def _show_split(experiment: Experiment) -> str:
    from flfw.data.splits import picture as shares
    from flfw.data.tables import listing
    from flfw.runs.run import check, make_folder

    resolved, task, notes = check(experiment)
    checked = resolved.experiment
    task.require_data("--show-split")
    assert checked.out is not None, "check names the folder"
    make_folder(checked.out)
    picture = checked.out / "split.png"
    shares.picture(task.dataset, task.split, picture, checked.split)
    columns = [listing.listing(task.dataset.columns), ""] if task.dataset.columns else []
    return "\n".join([*columns, shares.table(task.dataset, task.split), *notes, str(picture)])


def _estimate(experiment: Experiment) -> str:
    from flfw.api.expectation import expected

    return str(expected(experiment))


def _summary(folder: os.PathLike[str]) -> str:
    from flfw.api.summary import summary

    return summary(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
