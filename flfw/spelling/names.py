"""Checks of an experiment's names, data and ``--set``, which import nothing large.

The run checks all of it again: what cannot be told here without PyTorch, or without the network, is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from flfw import plugins
from flfw.errors import InputError, suggestion, unknown
from flfw.experiment import Experiment
from flfw.plugins import ATTACK, DEFENCE, METHOD, PluginKind, converted, short_name, split_assignment
from flfw.spelling import declared

_ON_THE_NETWORK = "hf"  # a look at such a data set may ask its server


def check_names(experiment: Experiment) -> None:
    """Refuse a method, a defence, an attack or a network that there is not."""
    attacks = [name for name in experiment.attacks if name != "auto"]
    tampering = [experiment.malicious_server] if experiment.malicious_server else []
    for kind, names in ((METHOD, [experiment.method]), (DEFENCE, experiment.defences), (ATTACK, attacks + tampering)):
        for name in of_the_project(names):
            plugins.require_known(kind, name)
    for name in of_the_project([experiment.net]):
        known = declared.networks()
        if name not in ("auto", *known):
            raise unknown(f"a network among {', '.join(known)}, or package.module:name", "net", name, known)


def of_the_project(names: Iterable[str]) -> list[str]:
    """Return the names that are no paths to a user's own code."""
    return [name for name in names if ":" not in name]


def check_data(experiment: Experiment) -> None:
    """Refuse an unknown data set or split, a path that is not there, and files that nothing can download."""
    from flfw import data
    from flfw.data.readers.table import require_target
    from flfw.data.splits.schemes import scheme
    from flfw.data.tables.names import is_table

    name = experiment.dataset
    prefix, _, word = name.partition(":")
    of_a_path = prefix in data.PREFIXES and prefix != _ON_THE_NETWORK
    path = Path(word.partition("@")[0]).expanduser()
    if not word or (of_a_path and not (path.is_dir() if prefix == "folder" else path.exists())):
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


def check_assignments(experiment: Experiment, methods: Sequence[str] = ()) -> None:
    """Refuse assignments in another form, for a plug-in that nothing bears, and for a field that its plug-in lacks.

    Args:
        experiment: has the assignments, the attacks and the defences.
        methods: methods of a matrix, each of which takes the assignments without a plug-in's name; empty: the
            experiment's.
    """
    methods = methods or (experiment.method,)
    attacks = [name for name in (*experiment.attacks, experiment.malicious_server) if name not in ("auto", "")]
    chosen = [*((METHOD, name) for name in methods), *((DEFENCE, name) for name in experiment.defences)]
    chosen += [(ATTACK, name) for name in attacks]
    if "auto" in experiment.attacks:
        chosen += [(ATTACK, name) for name in methods if name in plugins.names(ATTACK)]
    for target, text in map(split_assignment, experiment.set):
        plugin, _, field = target.rpartition(".")
        named = [(kind, name) for kind, name in chosen if short_name(name) == plugin]
        for records in [named] if plugin else [[(METHOD, name)] for name in methods]:
            if records:
                _check_field(records, field, text, target)
            elif not _is_split(plugin, target, text):
                _check_plugin(plugin, target, {*map(short_name, methods), *_short(experiment)})


def _is_split(plugin: str, target: str, text: str) -> bool:
    """Return whether an assignment is one of a split of the project, and refuse a field or a value that it lacks."""
    from flfw.data.splits.schemes import schemes

    if plugin not in schemes():
        return False
    from flfw.data.splits.schemes import scheme

    plugins.build_settings(scheme(plugin), plugin, (f"{target}={text}",))
    return True


def _check_plugin(plugin: str, target: str, short: Iterable[str]) -> None:
    """Refuse an assignment for something that is neither of the project nor named in the experiment."""
    if plugin not in (known := _everything()) and plugin not in short:
        like = suggestion(plugin, known) or "."
        raise InputError(f"Expected --set FIELD=VALUE or PLUGIN.FIELD=VALUE, got {target} for no plug-in{like}")


def _check_field(records: Iterable[tuple[PluginKind, str]], field: str, text: str, target: str) -> None:
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
    others = (experiment.net, experiment.split, experiment.malicious_server)
    return {short_name(name) for name in (experiment.method, *experiment.attacks, *experiment.defences, *others)}


def _everything() -> list[str]:
    """Return all names that can stand before a field."""
    from flfw.data.splits.schemes import schemes
    from flfw.data.tables.names import PREFIXES

    kinds = (METHOD, DEFENCE, ATTACK)
    return [*(name for kind in kinds for name in plugins.names(kind)), *schemes(), *declared.pretrained(), *PREFIXES]
