"""Checks of a command line that import nothing large, so that a slip of the keyboard is answered within a second.

The run checks all of it again: what cannot be told here without PyTorch, or without the network, is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flfw import plugins
from flfw.command.record import Command
from flfw.errors import InputError, suggestion
from flfw.experiment import Experiment
from flfw.experiment.axes import axes
from flfw.files.earlier_names import VALUES
from flfw.plugins import ATTACK, DEFENCE, METHOD
from flfw.spelling import declared
from flfw.spelling.names import check_assignments, check_data, check_names, of_the_project

_AXES = {"methods": METHOD, "defences": DEFENCE, "attacks": ATTACK}


def check(command: Command) -> None:
    """Refuse names that nothing bears, folders that hold no run, and shares of a GPU where there is none.

    Raises:
        InputError: as the run itself would say it.
    """
    _check_folders(command)
    if command.table or command.cell:
        from flfw.papers.published import require_table

        require_table(command.table or command.cell.partition("/")[0])
    if command.compare or command.figures or command.purge or command.verify or command.pdf:
        return
    _check_trackers(command.experiment.trackers)
    if command.matrix:
        _check_axes(command.matrix, command.experiment)
        return
    experiment = command.experiment
    check_names(experiment)
    check_data(experiment)
    stored = command.resume or command.from_
    if not stored:  # the assignments beside a stored run are for its method, which is not read yet
        check_assignments(experiment)
    if not (stored or command.table or command.cell or command.seeds):
        _check_out(experiment)
    if not (stored or command.show_split):
        _check_machine(experiment)


def check_listed(names: Iterable[str]) -> None:
    """Refuse a name of which there is no card, before PyTorch is imported for the cards of others.

    Raises:
        InputError: names all that there are, and the one that it resembles.
    """
    from flfw import data
    from flfw.data.splits.schemes import schemes

    known = [name for kind in (METHOD, DEFENCE, ATTACK) for name in plugins.names(kind)]
    known += [*data.names(), *schemes(), *declared.networks()]
    for name in names:
        if name not in (*known, "expert"):
            today = VALUES.get(("split", name))
            like = f"; it is called {today} now." if today else suggestion(name, known) or "."
            raise InputError(f"Expected a name among {', '.join(known)}; got --list {name}{like}")


def _check_folders(command: Command) -> None:
    if command.resume or command.from_ or command.purge or command.compare or command.verify or command.figures:
        from flfw.files.folders import require_finished, require_over, require_several, stored_at

        for folder in (command.verify, *command.figures):
            if folder and not folder.exists():
                require_finished(folder)
        for folder in (command.resume, command.from_):
            if folder:
                stored_at(folder)
        if command.purge:
            require_over(command.purge)
        if command.compare:
            require_several(command.compare)
            for folder in command.compare:
                require_finished(folder)


def _check_axes(words: Iterable[str], experiment: Experiment) -> None:
    """Refuse axes that there are not, and names that nothing bears, on them and in other settings."""
    written = axes(words)
    check_names(experiment)
    if "datasets" not in written:
        check_data(experiment)
    for axis, values in written.items():
        if axis == "datasets":
            for name in values:
                check_data(replace(experiment, dataset=name))
        elif kind := _AXES.get(axis):
            for name in of_the_project(value for value in values if value not in ("none", "auto")):
                for part in name.split("+"):
                    plugins.require_known(kind, part)
    _check_assignments_of_all(written, experiment)


def _check_assignments_of_all(written: Mapping[str, Sequence[str]], experiment: Experiment) -> None:
    """Refuse assignments that fit none of a matrix's plug-ins, and those of a method that one of its methods lacks."""
    stages = [part for value in written.get("defences", experiment.defences) for part in value.split("+")]
    together = "+".join(dict.fromkeys(part for part in stages if part != "none")) or "none"
    attacks = tuple(written.get("attacks", experiment.attack))
    check_assignments(replace(experiment, defence=together, attack=attacks), tuple(written.get("methods", ())))


def _check_trackers(names: Iterable[str]) -> None:
    if names := of_the_project(names):
        from flfw.runs.tracking.tracker import TRACKER

        for name in names:
            plugins.require_known(TRACKER, name)


def _check_out(experiment: Experiment) -> None:
    if experiment.out is not None:
        from flfw.files.folders import require_new

        require_new(experiment.out.absolute())


def _check_machine(experiment: Experiment) -> None:
    """Refuse shares of a GPU on a machine that certainly has none, and cores that it does not have."""
    from flfw.engines import machine

    if experiment.federation or machine.may_have_gpu():
        return
    machine.check_server(experiment, experiment.attack_gpus, False)
    if experiment.engine != "inproc" and not experiment.ray_address:
        machine.check(experiment, experiment.attack_gpus, machine.resources(""))
