"""Checks of a command line that import nothing large, so that a slip of the keyboard is answered within a second.

The run checks all of it again: what cannot be told here without PyTorch, or without the network, is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from flfw import plugins
from flfw.command import declared
from flfw.command.record import Command
from flfw.errors import BadInput, meant, unknown
from flfw.experiment import Experiment
from flfw.experiment.axes import axes
from flfw.plugins import ATTACK, DEFENCE, METHOD, Kind, converted, short_name, split_assignment

_AXES = {"methods": METHOD, "defences": DEFENCE, "attacks": ATTACK}
_ON_THE_NETWORK = "hf"  # a look at such a data set may ask its server


def check(command: Command) -> None:
    """Refuse names that nothing bears, folders that hold no run, and shares of a GPU where there is none.

    Raises:
        BadInput: as the run itself would say it.
    """
    _check_folders(command)
    if command.table or command.cell:
        from flfw.papers.published import require_table

        require_table(command.table or command.cell.partition("/")[0])
    if command.compare or command.figures or command.purge or command.verify or command.pdf:
        return
    if command.matrix:
        _check_axes(command.matrix, command.experiment)
        return
    experiment = command.experiment
    _check_names(experiment)
    _check_data(experiment)
    stored = command.resume or command.from_
    if not stored:  # the assignments beside a stored run are for its method, which is not read yet
        _check_assignments(experiment)
    if not (stored or command.table or command.cell or command.seeds):
        _check_out(experiment)
    if not (stored or command.show_split):
        _check_machine(experiment)


def check_listed(names: Iterable[str]) -> None:
    """Refuse a name of which there is no card, before PyTorch is imported for the cards of others.

    Raises:
        BadInput: names all that there are, and the one that it resembles.
    """
    from flfw import data
    from flfw.data.splits.schemes import schemes

    known = [name for kind in (METHOD, DEFENCE, ATTACK) for name in plugins.names(kind)]
    known += [*data.names(), *schemes(), *declared.networks()]
    for name in names:
        if name not in known:
            raise BadInput(f"Expected a name among {', '.join(known)}; got --list {name}{meant(name, known) or '.'}")


def _check_folders(command: Command) -> None:
    if command.resume or command.from_ or command.purge or command.compare:
        from flfw.storage.folders import require_finished, require_over, stored_at

        for folder in (command.resume, command.from_):
            if folder:
                stored_at(folder)
        if command.purge:
            require_over(command.purge)
        if len({path.resolve() for path in command.compare}) == len(command.compare) > 1:
            for folder in command.compare:
                require_finished(folder)


def _check_names(experiment: Experiment) -> None:
    attacks = [name for name in experiment.attacks if name != "auto"]
    tampering = [experiment.tampered_by] if experiment.tampered_by else []
    for kind, names in ((METHOD, [experiment.method]), (DEFENCE, experiment.defences), (ATTACK, attacks + tampering)):
        for name in _ours(names):
            plugins.require_known(kind, name)
    for name in _ours([experiment.net]):
        known = declared.networks()
        if name not in ("auto", *known):
            raise unknown(f"a network among {', '.join(known)}, or package.module:name", "net", name, known)


def _check_axes(words: Iterable[str], experiment: Experiment) -> None:
    """Refuse axes that there are not, and names that nothing bears, on them and in other settings."""
    written = axes(words)
    _check_names(experiment)
    if "datasets" not in written:
        _check_data(experiment)
    for axis, values in written.items():
        if axis == "datasets":
            for name in values:
                _check_data(replace(experiment, dataset=name))
        elif kind := _AXES.get(axis):
            for name in _ours(value for value in values if value not in ("none", "auto")):
                for part in name.split("+"):
                    plugins.require_known(kind, part)


def _ours(names: Iterable[str]) -> list[str]:
    """Return the names that are no paths to a user's own code."""
    return [name for name in names if ":" not in name]


def _check_data(experiment: Experiment) -> None:
    """Refuse an unknown data set or split, a path that is not there, and files that nothing can download."""
    from flfw import data
    from flfw.data.readers.table import require_target
    from flfw.data.splits.schemes import scheme
    from flfw.data.tables.names import is_table

    name = experiment.dataset
    prefix, _, word = name.partition(":")
    of_a_path = prefix in data.PREFIXES and prefix != _ON_THE_NETWORK
    if not word or (of_a_path and not Path(word.partition("@")[0]).expanduser().exists()):
        data.describe(name)
    elif is_table(name):
        require_target(data.configured(name, experiment.set))
    if (
        not (word or experiment.federation)
        and not data.is_here(name, experiment.data_root)
        and not callable(data.describe(name).fetch)
    ):
        data.load(name, experiment.data_root)  # says which files are missing, and how to get them
    if experiment.split != "auto" and ":" not in experiment.split:
        scheme(experiment.split)


def _check_assignments(experiment: Experiment) -> None:
    """Refuse assignments in another form, for a plug-in that nothing bears, and for a field that its plug-in lacks."""
    attacks = [name for name in (*experiment.attacks, experiment.tampered_by) if name not in ("auto", "")]
    chosen = [(METHOD, experiment.method), *((DEFENCE, name) for name in experiment.defences)]
    chosen += [(ATTACK, name) for name in attacks]
    chosen += [(ATTACK, experiment.method)] * (
        "auto" in experiment.attacks and experiment.method in plugins.names(ATTACK)
    )
    for target, text in map(split_assignment, experiment.set):
        plugin, _, field = target.rpartition(".")
        bare = not plugin and [(METHOD, experiment.method)]
        records = bare or [(kind, name) for kind, name in chosen if short_name(name) == plugin]
        if records:
            _check_field(records, field, text, target)
        elif plugin not in (known := _everything()) and plugin not in _short(experiment):
            like = meant(plugin, known) or "."
            raise BadInput(f"Expected --set FIELD=VALUE or PLUGIN.FIELD=VALUE, got {target} for no plug-in{like}")


def _check_field(records: Iterable[tuple[Kind, str]], field: str, text: str, target: str) -> None:
    """Refuse a field that none of the plug-ins has; the error is the first one's, which the run would find first."""
    all_fields: list[declared.Fields] = []
    for kind, name in records:
        fields = declared.fields(kind, name) if ":" not in name else None
        if fields is None:
            return
        all_fields.append(fields)
    types = {name: annotation for fields in reversed(all_fields) for name, annotation in fields.items()}
    if field not in types:
        raise plugins.unknown_field(target.rpartition(".")[0] or next(iter(records))[1], all_fields[0], target)
    if (kind := declared.type_of(types[field])) is not None:
        converted(text, kind, target)


def _short(experiment: Experiment) -> set[str]:
    others = (experiment.net, experiment.split, experiment.tampered_by)
    return {short_name(name) for name in (experiment.method, *experiment.attacks, *experiment.defences, *others)}


def _everything() -> list[str]:
    """Return all names that can stand before a field."""
    from flfw.data.splits.schemes import schemes
    from flfw.data.tables.names import PREFIXES

    kinds = (METHOD, DEFENCE, ATTACK)
    return [*(name for kind in kinds for name in plugins.names(kind)), *schemes(), *declared.pretrained(), *PREFIXES]


def _check_out(experiment: Experiment) -> None:
    if experiment.out is not None:
        from flfw.storage.folders import require_new

        require_new(experiment.out.absolute())


def _check_machine(experiment: Experiment) -> None:
    """Refuse shares of a GPU on a machine that certainly has none, and cores that it does not have."""
    from flfw.engines import machine

    if experiment.federation or machine.may_have_gpu():
        return
    machine.check_server(experiment)
    if experiment.engine != "inproc" and not experiment.ray_address:
        machine.check(experiment, machine.resources(""))
