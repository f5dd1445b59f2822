"""Tasks of the command line, each imported when it is asked for."""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path

from flfw import plugins
from flfw.command.arguments import Command, parse
from flfw.experiment import Experiment

_REGRESSES = "fedavg"  # its clients follow the squared error, too


def run(command: Command, arguments: list[str], program: str) -> Path:
    """Run, resume or audit again, as the command says; return the folder that was written.

    Args:
        command: the command line.
        arguments: its words, which are parsed anew upon the settings of the stored run.
        program: name of the command, for messages.
    """
    from flfw.command.api import earlier
    from flfw.runs import run as runs

    if command.from_:
        return earlier.audit_changed(command.from_, lambda stored: parse(arguments, stored, program).experiment)
    if command.resume:
        return earlier.resume_changed(command.resume, lambda stored: parse(arguments, stored, program).experiment)
    return runs.run(command.experiment)


def verified(folder: Path, arguments: list[str], program: str) -> int:
    """Repeat a run or an audit and compare its numbers; return the exit code: 0 all repeat, 1 not."""
    from flfw.runs.verify import verify

    return verify(folder, lambda stored: parse(arguments, stored, program).experiment)


def printed(command: Command, arguments: list[str], program: str) -> int:
    """Print finished reports as PDF files, or run first; return the exit code."""
    from flfw.command.api.summary import summary
    from flfw.report.pdf import browser, write_pdfs

    if command.pdf:
        print(*write_pdfs(command.pdf), sep="\n")
        return 0
    browser()  # looked for before the run
    folder = run(command, arguments, program)
    print(summary(folder), *write_pdfs([folder]), sep="\n")
    return 0


def listed(names: Sequence[str]) -> str:
    """Return all names with a line each, or the cards of the given ones; a section's name stands for its lines."""
    sections = {} if names == ["expert"] else _sections()
    if not names:
        all_lines = [line for lines in sections.values() for line in [*lines, ""]]
        return "\n".join([*all_lines, "flfw list NAME has the card of one; flfw table NAME runs a table."])

    def shown(name: str) -> str:
        if name in sections:
            return "\n".join(sections[name])
        if name == "expert":
            from flfw.command.help import expert_settings

            return expert_settings()
        from flfw.runs.listing import about

        return about(name)

    return "\n\n".join(map(shown, names))


def _sections() -> dict[str, list[str]]:
    """Return a line for each plug-in, data set and split, read off the sources: PyTorch takes seconds to import."""
    from flfw import data
    from flfw.command.early import AXES, SECTIONS, networks, opening
    from flfw.command.help import row, wrapped
    from flfw.data.splits import schemes
    from flfw.papers.published import FRONTIER
    from flfw.papers.published import names as tables

    lines = []
    for title, kind in AXES.items():
        rows = [row(name, opening(kind, name)) for name in plugins.names(kind)]
        lines.append([title, *chain.from_iterable(rows)])
    lines.append(["data sets"])
    for name in data.names():
        card = data.describe(name)
        lines[-1] += row(name, f"{'x'.join(map(str, card.shape))}, {card.classes} classes")
    lines.append(["splits"])
    for name in schemes.schemes():
        words = (schemes.scheme(name).__doc__ or "").partition("\n")[0]
        lines[-1] += row(name, words.partition(", see ")[0].partition(" See ")[0])
    lines += [wrapped(f"networks: {', '.join(networks())}", hanging="  ")]
    lines += [wrapped(f"tables: {', '.join((*tables(), FRONTIER))}", hanging="  ")]
    return dict(zip(SECTIONS, lines, strict=True))


def compared(folders: Sequence[Path]) -> str:
    """Return finished runs beside each other."""
    from flfw.comparisons.compare import table

    return table(folders)


def figures(command: Command) -> list[Path]:
    """Draw finished runs for a paper; return the paths of the files."""
    from flfw.comparisons.figures.figures import write

    width, requested = None if command.width == "alone" else command.width, command.experiment
    forms = command.format or ("svg",)
    return write(command.figures, requested.out, forms, command.figure_names, requested.data_root, columns=width)


def several(command: Command) -> int:
    """Run every combination of a matrix or every seed; return the exit code."""
    from flfw.comparisons import matrices

    return matrices.main(command.matrix, command.seeds, command.experiment)


def purged(folder: Path) -> str:
    """Remove clients' data from a finished run; return the names of the removed files."""
    from flfw.recording.retention import purge, results_in
    from flfw.report.report import write_report
    from flfw.runs.results import read_earlier

    for result in results_in(folder):
        read_earlier(result.parent)  # a damaged one is refused before anything is removed
    removed = purge(folder)
    for result in results_in(folder):
        write_report(result.parent, pictures=False)
    stays = "What stays are figures and a report without pictures. Copies and backups are not reached."
    return "\n".join([f"Removed from {folder}:", *removed, stays])


def table(command: Command) -> int:
    """Measure a table or some of its cells; return the exit code."""
    from flfw.command.api.tables import measured

    result = measured(command.table, command.cell, command.scale, command.experiment)
    print(result.text, *result.files, sep="\n")
    return int(not result.complete)


def split_shown(experiment: Experiment) -> str:
    """Draw who would hold what; return a table's columns, the shares and the path of the picture."""
    from flfw.data.splits import picture as shares
    from flfw.data.tables import listing
    from flfw.files.folders import claimed, make_folder
    from flfw.runs.run import check

    requested = _with_a_method_for(experiment)
    run_plan, task, notes = check(requested)
    if requested.method != experiment.method:
        notes.append(f"Method {experiment.method} refuses a regression: for runs choose another, such as {_REGRESSES}.")
    checked = run_plan.experiment
    task.require_data("--show-split")
    with nullcontext(checked.folder) if experiment.out else claimed(checked.folder) as folder:
        if experiment.out:
            make_folder(folder)
        picture = folder / "split.png"
        shares.picture(task.dataset, task.split, picture, checked.split)
    columns = [listing.listing(task.dataset.columns), ""] if task.dataset.columns else []
    return "\n".join([*columns, shares.table(task.dataset, task.split), *notes, str(picture)])


def _with_a_method_for(experiment: Experiment) -> Experiment:
    """Return the experiment with another method where its own refuses a regression: no split depends on the method."""
    from flfw import nets
    from flfw.plans.combinations import refuses_numbers
    from flfw.plans.run_plan import plan
    from flfw.plugins import short_name, split_assignment

    nets.look_in(experiment.weights)
    if not refuses_numbers(plan(experiment).client):
        return experiment
    of_method = ("", short_name(experiment.method))
    others = [word for word in experiment.set if split_assignment(word)[0].rpartition(".")[0] not in of_method]
    return replace(experiment, method=_REGRESSES, variant="ours", set=tuple(others))


def estimated(experiment: Experiment) -> str:
    """Return the claims that a run would make, and its expected time and memory."""
    from flfw.engines.processes import waiting_phase

    phases = ["training", *["audit"] * bool(experiment.attacks)]
    with ExitStack() as opened:  # their imports take seconds, as the next one does here
        begun = {phase: opened.enter_context(waiting_phase(phase, experiment.engine)) for phase in phases}
        opened.callback(lambda: [process.kill() for process in begun.values() if process.poll() is None])
        from flfw.command.api.expectation import expected

        return str(expected(experiment, **begun))
