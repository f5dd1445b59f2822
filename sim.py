"""Command line of a checkout: ``python sim.py --method hyperfl --dataset mnist --attack ig``; see `flfw.command`."""

from __future__ import annotations

import sys

<<<<<<< HEAD
from flfw.command.record import parse
from flfw.command.simulation import main
=======
import tyro

from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.privacy.rounding import at_least, at_most
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
    only: tuple[str, ...] = ()
    """Of --figures: only these, such as training, leakage, rounds, curves, frontier, membership or grid."""
    format: tuple[Literal["svg", "png", "pdf"], ...] = ()
    """Of --figures: one or several file formats; svg by default."""
    width: Literal["alone", "one", "two"] = "alone"
    """Of --figures: as wide as one or two columns of a page, or as best seen alone."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Attack what an earlier run recorded; writes into --out, or beside it as audit-N."""
    purge: Path | None = None
    """Remove from a finished run all that holds or may give away clients' data, and stop."""
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

        width, asked = None if command.width == "alone" else command.width, command.experiment
        forms = command.format or ("svg",)
        print(*write(command.figures, asked.out, forms, command.only, asked.data_root, columns=width), sep="\n")
        return 0
    if command.purge:
        print(_purge(command.purge))
        return 0
    if command.matrix or command.seeds:
        return _matrix(command)
    if command.table or command.cell:
        return _table(command)
    print(_summary(_run(command, arguments)))
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
    behind |= {"--only": command.only, "--format": command.format, "--figures": command.figures}
    behind |= {"--table": command.table, "--cell": command.cell}
    behind |= {"--set": command.experiment.set, "--curve": command.experiment.curve}
    for word in arguments:
        flag = word.partition("=")[0]
        if not behind.get(flag, True):
            raise BadInput(f"Expected a value behind {flag}, got none; see sim.py --help.")
    if command.no_pictures and command.experiment.pictures == "yes":
        raise BadInput("Expected --pictures auto or no with --no-pictures, got --pictures yes.")


def _refuse_two_tasks(command: Command) -> None:
    if command.scale == "full" and not (command.table or command.cell):
        raise BadInput("Expected --table or --cell with --scale full, got neither; a run of its own has --rounds.")
    if (command.only or command.format or command.width != "alone") and not command.figures:
        raise BadInput("Expected --figures with --only, --format or --width, got none; name the runs to draw.")
    asked = {"--resume": command.resume, "--estimate": command.estimate, "--show-split": command.show_split}
    asked |= {"--table or --cell": command.table or command.cell, "--from": command.from_, "--purge": command.purge}
    asked |= {"--matrix or --seeds": command.matrix or command.seeds, "--compare": command.compare}
    asked |= {"--figures": command.figures}
    given = [flag for flag, value in asked.items() if value]
    if len(given) > 1:
        raise BadInput(f"Expected one of {', '.join(asked)}, got {' and '.join(given)}; each does a thing of its own.")


def _run(command: Command, arguments: list[str]) -> Path:
    from flfw.runs import run
    from flfw.storage.checkpoint import is_complete

    if command.from_:
        earlier = replace(run.stored(command.from_), out=None)
        return run.audit_again(command.from_, earlier, parse(arguments, earlier).experiment)
    if not command.resume:
        return run.run(command.experiment)
    stored = run.stored(command.resume)
    asked = parse(arguments, stored).experiment
    if asked.out != stored.out:
        raise BadInput(f"Expected a run to be resumed where it lies, {stored.out}, got --out {asked.out}.")
    complete, folder = is_complete(command.resume), run.resume(asked)
    if complete and asked != stored:
        print("warning: the run is complete: flags that were given anew change nothing of it", file=sys.stderr)
    return folder


def _matrix(command: Command) -> int:
    from flfw import matrix

    return matrix.main(command.matrix, command.seeds, command.experiment)


def _purge(folder: Path) -> str:
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


def _tables() -> tuple[str, ...]:
    """Return the names of all tables: the papers', and the frontier."""
    from flfw.papers.command import names
    from flfw.papers.frontier.table import NAME

    return *names(), NAME


def _table(command: Command) -> int:
    from flfw.papers.command import reproduce
    from flfw.papers.frontier.command import reproduce as measure_points
    from flfw.papers.frontier.table import NAME

    name = command.table or command.cell.partition("/")[0]
    if ":" not in name and name not in _tables():
        raise BadInput(f"Expected a table among {', '.join(_tables())}; got --table {name}.")
    if name == NAME:
        return measure_points(command.cell, command.scale, command.experiment)
    return reproduce(command.table, command.cell, command.scale, command.experiment)


def _show_split(experiment: Experiment) -> str:
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


def _estimate(experiment: Experiment) -> str:
    from flfw.dp.ledger import Ledger
    from flfw.runs.engine import check_resources
    from flfw.runs.estimate import estimate, lines
    from flfw.runs.run import check, require_folder

    if experiment.ray_address:
        raise BadInput(f"Expected --estimate on this machine alone, got --ray-address {experiment.ray_address}.")
    resolved, task, notes = check(experiment)
    task.require_data("--estimate")
    check_resources(resolved.experiment)
    assert resolved.experiment.out is not None, "check names the folder"
    require_folder(resolved.experiment.out)
    began = time.process_time()
    claims = _claimed(Ledger(resolved, task.split).entries())
    expected = estimate(resolved, time.process_time() - began)
    return "\n".join([*claims, *notes, lines(expected)])


def _summary(folder: os.PathLike[str]) -> str:
    from flfw.formats.result_file import read_result

    try:
        return "\n".join([*_lines(read_result(Path(folder))), str(Path(folder) / "report.html")])
    except (KeyError, TypeError, ValueError) as error:  # a finished run may be resumed, and its result be incomplete
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"Expected the figures of a run in {folder}/result.json, got {error!r}; restore it.") from error


def _lines(result: dict[str, Any]) -> list[str]:
    from flfw.curves import Point
    from flfw.report.causes import because, fallen
    from flfw.report.findings import AuditEntry, setting_name, sum_words
    from flfw.report.questions import membership_line

    final = result["final"]
    lines = []
    if final and final["acc_local"] is not None:
        lines = [f"accuracy {final['acc_global']:.3f} as received, {final['acc_local']:.3f} after training"]
    elif final:
        noisy, central = final["acc_global"], final["acc_central"]
        lines = [f"accuracy {noisy:.3f} as received, by clients' numbers with noise"] if noisy is not None else []
        lines += [f"accuracy {central:.3f} as sent, on the server's own test data"] if central is not None else []
    lines += _claimed(result["privacy"])
    for entry in result["audit"]:
        where = f"{setting_name(entry, result['audit'])} at round {entry['round']}"
        if entry.get("group"):
            where += f", {sum_words(entry)}"
        elif curve := entry.get("curve"):
            where += f", {curve} {Point(curve, entry['batch'], entry['steps']).value}"
        best = f", best {entry['psnr']['max']:.1f} dB" if entry["psnr"] else ""
        if entry.get("cause") == "candidates":
            best += f", {entry['candidates']['first']} of {entry['candidates']['messages']} messages point to the truth"
        elif entry["verdict"] == "identifies":
            best += f", {entry['identification_rate']:.0%} told from look-alikes"
        cause = because(AuditEntry(entry, entry["attack"]))
        expected = f", {entry['share_expected']:.0%} expected" if entry.get("share_expected") is not None else ""
        line = f"{where}: {entry['verdict']} ({entry['share_recovered']:.0%} recovered{expected}{best})"
        lines.append(f"{line}: {cause}" if cause else line)
    lines += fallen(result["audit"])
    return [*lines, *map(membership_line, result.get("membership") or []), *result["notes"]]


def _claimed(privacy: list[dict[str, Any]]) -> list[str]:
    """Format the claims of a run: ``epsilon at most 2.75 for one example against server, another client, outsider``."""
    shown = {"aggregate": "aggregate (who sees sums alone)"}  # nobody does in this run
    against: dict[str, list[str]] = {}
    for line in privacy:
        if line["counted"] == "as published":
            bound = f"epsilon {float(line['epsilon']):.4f} for one {line['unit']} as the paper counts, adversaries"
        else:
            lower = line.get("lower")
            least = f", at least {at_least(lower['epsilon'])} ({lower['confidence']:.0%} sure)," if lower else ""
            secret = "with noise_source=secure: " if line.get("noise") == "seed" and line["epsilon"] != "inf" else ""
            bound = f"{secret}epsilon at most {at_most(float(line['epsilon']))}{least} for one {line['unit']} against"
        adversary = str(line["adversary"])
        against.setdefault(bound, []).append(shown.get(adversary, adversary))
    return [f"{bound} {', '.join(adversaries)}" for bound, adversaries in against.items()]
>>>>>>> f8c8be0c (Figures of leakage stand beside the other figures, so that packages have no circle)

__all__ = ["main", "parse"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
