"""The command line as one value: the settings of a run, and the tasks beside a run."""

from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flfw.errors import InputError
from flfw.experiment import EXPERT, Experiment
from flfw.experiment.experiment import DERIVED
from flfw.files.flags import parsed, piped
from flfw.files.folders import with_paths_from_home

PRIVATE = "dp_fedavg"
"""Method of a run that asks for an epsilon and names none."""
_DECIDED = ("method", "matrix", "table", "cell", "resume", "from", "verify", "compare", "figures", "purge", "list")


@dataclass(frozen=True)
class Command:
    """Run a federated method, audit what it leaks, and write a report.

    Without any flag: HyperFL on the embedded digits, ten clients, audited; a few minutes on two cores.
    """

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    seeds: tuple[int, ...] = ()
    """Run once for each seed, and pool what the audits found."""
    matrix: tuple[str, ...] = ()
    """Run every combination, with equal budgets: methods=A,B defences=none,C attacks=D seeds=0,1 datasets=E,F; goes on
    where it was cut short."""
    compare: tuple[Path, ...] = ()
    """Print two or more finished runs beside each other, image for image where they share them, and stop."""
    figures: tuple[Path, ...] = ()
    """Draw finished runs for a paper, into --out or the first one's figures/, with the numbers as CSV, and stop."""
    figure_names: tuple[str, ...] = ()
    """Of --figures: only these, such as training, leakage, rounds, curves, frontier, membership or grid."""
    format: tuple[Literal["svg", "png", "pdf"], ...] = ()
    """Of --figures: one or several file formats; svg by default."""
    width: Literal["alone", "one", "two"] = "alone"
    """Of --figures: as wide as one or two columns of a page, or as best seen alone."""
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


def parse(arguments: list[str], stored: Experiment | None = None, program: str = "sim.py") -> Command:
    """Parse the command line into a `Command`.

    Args:
        arguments: as the shell gives them.
        stored: values of the flags that are not given; None: their defaults.
        program: name of the command, for messages.

    Raises:
        InputError: tyro's message, in one line instead of a box.
    """
    command = with_paths_from_home(parsed(arguments, Command(stored or Experiment()), program, (*EXPERT, *DERIVED)))
    if command.matrix and piped(arguments) != arguments:
        raise InputError(
            "Expected one name behind --defence with --matrix, got several; write a pipeline as one value, such as "
            f"{command.experiment.defence}, or an axis as defences=A,B."
        )
    experiment, named = command.experiment, named_settings(arguments)
    for name in DERIVED:
        given, found = getattr(experiment, name), getattr(stored or Experiment(), name)
        if given != found:
            raise InputError(f"Expected no {name}, got {name}={given}; it is found, and a site's policy may pin it.")
    _refuse_without_value(command, arguments, program)
    secure = any(word.endswith("noise_source=secure") for word in experiment.set)
    if stored is None and (experiment.federation or secure) and not (command.table or command.cell):
        metrics = experiment.metrics if "metrics" in named else "auto"
        decided = "defence_randomness" in named or not experiment.federation
        draws = experiment.defence_randomness if decided else "auto"
        experiment = replace(experiment, metrics=metrics, defence_randomness=draws)
    if stored is None and leaves_training_open(experiment, named):
        experiment = replace(experiment, method=PRIVATE)  # whose settings --set names
    return replace(command, experiment=experiment)


def named_settings(arguments: list[str]) -> frozenset[str]:
    """Return the names of the settings that a command line has, as fields of an experiment."""
    words = (word.removeprefix("--expert=") for word in arguments if word.startswith("--") or "=" in word)
    return frozenset(word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words)


def leaves_training_open(experiment: Experiment, named: Set[str]) -> bool:
    """Return whether a command or a call asks for an epsilon, and leaves to the rules how a new run keeps it."""
    return experiment.target_epsilon > 0 and named.isdisjoint(_DECIDED)


def _refuse_without_value(command: Command, arguments: list[str], program: str) -> None:
    """Refuse flags with nothing behind them, which would count as not given and start a run."""
    behind = {"--seeds": command.seeds, "--matrix": command.matrix, "--compare": command.compare}
    behind |= {"--figures": command.figures, "--table": command.table, "--cell": command.cell}
    behind |= {"--set": command.experiment.set, "--curve": command.experiment.curve}
    behind |= {"--figure-names": command.figure_names, "--format": command.format}
    behind |= {"--track": command.experiment.track}
    for word in arguments:
        flag = word.partition("=")[0]
        if not behind.get(flag, True):
            raise InputError(f"Expected a value behind {flag}, got none; see {program} --help.")


def refuse_two_tasks(command: Command) -> None:
    """Refuse several tasks at once.

    Raises:
        InputError: names them.
    """
    if command.scale == "full" and not (command.table or command.cell):
        raise InputError("Expected --table or --cell with --scale full, got neither; a run of its own has --rounds.")
    if (command.figure_names or command.format or command.width != "alone") and not command.figures:
        raise InputError("Expected --figures with --figure-names, --format or --width, got none; name runs to draw.")
    requested = {"--resume": command.resume, "--estimate": command.estimate, "--show-split": command.show_split}
    requested |= {"--table or --cell": command.table or command.cell, "--from": command.from_, "--purge": command.purge}
    requested |= {"--matrix or --seeds": command.matrix or command.seeds, "--compare": command.compare}
    requested |= {"--figures": command.figures, "--verify": command.verify, "--pdf FOLDER": command.pdf}
    given = [flag for flag, value in requested.items() if value]
    if command.pdf == () and given and given[0] not in ("--resume", "--from"):
        raise InputError(
            f"Expected --pdf with one run, got it with {given[0]}; print each page afterwards: --pdf FOLDER."
        )
    if len(given) > 1:
        raise InputError(
            f"Expected one of {', '.join(requested)}, got {' and '.join(given)}; each does a thing of its own."
        )
