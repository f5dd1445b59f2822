"""The command line: ``python sim.py --method hyperfl --dataset mnist --attack ig``."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flfw.errors import BadInput, RunFailed
from flfw.experiment import Experiment


@dataclass(frozen=True)
class Command:
    """Run a federated method, audit what it leaks, and write a report.

    Without any flag: HyperFL on the embedded digits, ten clients, audited; a few minutes on two cores.
    """

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    resume: Path | None = None
    """Go on with a run that was cut short, from its last checkpoint; flags that decide no numbers may be given anew."""
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
    """Parse and run; returns the exit code: 0 done, 1 failed, 2 bad input."""
    # Flower reads these when it is imported, which is later: a privacy tool reports home about nothing.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    # Torch's threads spin while they wait for each other, which beside another busy process slows an attack down much.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        command = parse(arguments)
        if command.list is not None:
            from flfw.listing import listing
            from papers.command import names

            print(listing(command.list) if command.list else f"{listing(())}\ntables     {', '.join(names())}")
            return 0
        _refuse_two_tasks(command)
        if command.estimate:
            print(_estimate(command.experiment))
            return 0
        if command.show_split:
            print(_show_split(command.experiment))
            return 0
        if command.table or command.cell:
            from papers.command import reproduce

            return reproduce(command.table, command.cell, command.scale, command.experiment)
        folder = _run(command, arguments)
    except BadInput as error:
        return _complain(error, 2)
    except RunFailed as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    print(_summary(folder))
    return 0


def parse(arguments: list[str], stored: Experiment | None = None) -> Command:
    """The command line as a `Command`.

    Args:
        arguments: as the shell gives them.
        stored: what flags that are not given stand at; None: their defaults.

    Raises:
        BadInput: in one line, what tyro says in a box.
    """
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            default = Command(stored or Experiment())
            return tyro.cli(Command, args=arguments, prog="sim.py", default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise BadInput(f"{_unboxed(box.getvalue())}; see sim.py --help") from None


def _unboxed(box: str) -> str:
    """The first paragraph inside a box that tyro draws with Unicode or, on a plain terminal, with ASCII."""
    lines = [line.strip(" │|╭╮╰╯+") for line in box.splitlines()[1:]]
    paragraphs = "\n".join("" if not line.strip("─- ") else line for line in lines).strip().split("\n\n")
    return " ".join(paragraphs[0].splitlines())


def _refuse_two_tasks(command: Command) -> None:
    if command.scale == "full" and not (command.table or command.cell):
        raise BadInput("Expected --table or --cell with --scale full, got neither; a run of its own has --rounds.")
    asked = {"--resume": command.resume, "--estimate": command.estimate, "--show-split": command.show_split}
    asked |= {"--table or --cell": command.table or command.cell}
    given = [flag for flag, value in asked.items() if value]
    if len(given) > 1:
        raise BadInput(f"Expected one of {', '.join(asked)}, got {' and '.join(given)}; each does a thing of its own.")


def _run(command: Command, arguments: list[str]) -> Path:
    from flfw import run

    if not command.resume:
        return run.run(command.experiment)
    stored = run.stored(command.resume)
    asked = parse(arguments, stored).experiment
    if asked.out != stored.out:
        raise BadInput(f"Expected a run to be resumed where it lies, {stored.out}, got --out {asked.out}.")
    return run.resume(asked)


def _show_split(experiment: Experiment) -> str:
    from flfw import shares
    from flfw.run import check

    checked, task, notes = check(experiment)
    assert checked.out is not None, "check names the folder"
    checked.out.mkdir(parents=True)
    picture = checked.out / "split.png"
    shares.picture(task.dataset, task.split, picture, checked.split)
    return "\n".join([shares.table(task.dataset, task.split), *notes, str(picture)])


def _estimate(experiment: Experiment) -> str:
    from flfw.engine import check_resources
    from flfw.estimate import estimate, lines
    from flfw.run import check

    if experiment.ray_address:
        raise BadInput(f"Expected --estimate on this machine alone, got --ray-address {experiment.ray_address}.")
    checked = check(experiment)[0]
    check_resources(checked)
    return lines(estimate(checked))


def _summary(folder: os.PathLike[str]) -> str:
    import json

    result = json.loads((Path(folder) / "result.json").read_text())
    lines = [
        f"accuracy {result['final']['acc_global']:.3f} as received, {result['final']['acc_local']:.3f} after training"
    ]
    for entry in result["audit"]:
        where = f"{entry['attack']} at round {entry['round']}"
        best = f", best {entry['psnr']['max']:.1f} dB" if entry["psnr"] else ""
        lines.append(f"{where}: {entry['verdict']} ({entry['share_recovered']:.0%} recovered{best})")
    return "\n".join([*lines, *result["notes"], str(Path(folder) / "report.html")])


def _complain(error: object, code: int) -> int:
    print(f"sim.py: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
