"""Checks of a command line that import nothing large, so that a slip of the keyboard is answered within a second.

An import of a method or a network takes seconds, as PyTorch comes with it. So names are those of files, and the fields
of a plug-in are read off its source. The run checks all of it again: what cannot be told here is left to it.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from flfw import bounds, plugins
from flfw.command.arguments import Command
from flfw.errors import InputError, unknown
from flfw.experiment import Experiment
from flfw.experiment.fields import axes
from flfw.files.earlier_names import renames
from flfw.plugins import ATTACK, DEFENCE, METHOD, PluginKind, converted, short_name, split_assignment

_BOUNDED = {name: get_args(kind)[0] for name, kind in vars(bounds).items() if get_origin(kind) is Annotated}
_SCALARS = {"int": int, "float": float, "bool": bool, "str": str, **_BOUNDED}
_ROOT = Path(plugins.__file__).parent
AXES = {"methods": METHOD, "defences": DEFENCE, "attacks": ATTACK}
SECTIONS = (*AXES, "datasets", "splits", "networks", "tables")
"""Sections of ``flfw list``."""
_ON_THE_NETWORK = "hf"  # a look at such a data set may ask its server


def check(command: Command) -> None:
    """Refuse names that nothing bears, folders that hold no run, and shares of a GPU where there is none.

    Raises:
        InputError: as the run itself would say it.
    """
    if command.list is not None:
        check_listed(command.list)
        return
    _check_folders(command)
    if command.table or command.cell:
        from flfw.papers.published import require_table

        require_table(command.table or command.cell.partition("/")[0])
    if command.compare or command.figures or command.purge or command.verify or command.pdf:
        return
    experiment = command.experiment
    _check_trackers(experiment.trackers)
    check_names(experiment)
    if command.matrix:
        _check_axes(axes(command.matrix), experiment)
        return
    check_data(experiment)
    stored = command.resume or command.from_
    if not stored:  # the assignments beside a stored run are for its method, which is not read yet
        check_assignments(experiment)
    if not (stored or command.table or command.cell or command.seeds):
        check_out(experiment)
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
    known += [*data.names(), *schemes(), *networks()]
    for name in names:
        if name not in (*known, *SECTIONS, "expert") and ":" not in name:
            if today := renames().values["split"].get(name):
                raise InputError(f"Expected {today}, as it is called now; got --list {name}.")
            raise unknown(f"{', '.join(SECTIONS)}, or a name in them", f"--list {name}", name, [*known, *SECTIONS])


def check_names(experiment: Experiment) -> None:
    """Refuse a method, a defence, an attack or a network that there is not."""
    attacks = [name for name in (*experiment.attacks, experiment.malicious_server) if name not in ("auto", "")]
    for kind, names in ((METHOD, [experiment.method]), (DEFENCE, experiment.defences), (ATTACK, attacks)):
        _require_known(kind, names)
    known = networks()
    if ":" not in experiment.net and experiment.net not in ("auto", *known):
        among = f"a network among {', '.join(known)}, or package.module:name"
        raise unknown(among, f"net={experiment.net}", experiment.net, known)


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
    at_hand = word or experiment.federation or data.is_here(name, experiment.data_root)
    if not at_hand and not callable(data.describe(name).fetch):
        data.load(name, experiment.data_root)  # says which files are missing, and how to get them
    if experiment.split != "auto" and ":" not in experiment.split:
        scheme(experiment.split)


def check_out(experiment: Experiment) -> None:
    """Refuse a folder to write that exists."""
    if experiment.out is not None:
        from flfw.files.folders import require_new

        require_new(experiment.out.absolute())


def check_assignments(experiment: Experiment, methods: Sequence[str] = ()) -> None:
    """Refuse assignments in another form, for a plug-in that nothing bears, and for a field that its plug-in lacks.

    Args:
        experiment: has the assignments, the attacks and the defences.
        methods: methods of a matrix, each of which takes the assignments without a plug-in's name; empty: the
            experiment's.
    """
    from flfw.data.splits.schemes import scheme, schemes
    from flfw.data.tables.names import PREFIXES

    methods = methods or (experiment.method,)
    attacks = [name for name in (*experiment.attacks, experiment.malicious_server) if name not in ("auto", "")]
    attacks += [name for name in methods if "auto" in experiment.attacks and name in plugins.names(ATTACK)]
    chosen = [(kind, name) for kind, some in zip(AXES.values(), (methods, experiment.defences, attacks), strict=True)
              for name in some]  # fmt: skip
    others = {short_name(name) for name in (*(name for _, name in chosen), experiment.net, experiment.split)}
    known = [*(name for kind in AXES.values() for name in plugins.names(kind)), *schemes(), *_pretrained(), *PREFIXES]
    for target, text in map(split_assignment, experiment.set):
        plugin, _, field = target.rpartition(".")
        named = [(kind, name) for kind, name in chosen if short_name(name) == plugin]
        for records in [named] if plugin else [[(METHOD, name)] for name in methods]:
            if records:
                _check_field(records, field, text, target)
            elif plugin in schemes():
                plugins.build_settings(scheme(plugin), plugin, (f"{target}={text}",))
            elif plugin not in (*known, *others):
                raise unknown("--set FIELD=VALUE or PLUGIN.FIELD=VALUE", f"{target} for no plug-in", plugin, known)


def _check_field(records: Sequence[tuple[PluginKind, str]], field: str, text: str, target: str) -> None:
    """Refuse a field that none of the plug-ins has; the error is the first one's, which the run would find first."""
    if any(":" in name for _, name in records):
        return
    all_fields = [fields(kind, name) for kind, name in records]
    types = {name: annotation for one in reversed(all_fields) for name, annotation in one.items()}
    if field not in types:
        raise plugins.unknown_field(target.rpartition(".")[0] or records[0][1], all_fields[0], target)
    if (kind := type_of(types[field])) is not None:
        converted(text, kind, target)


def _check_folders(command: Command) -> None:
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


def _check_axes(written: dict[str, tuple[str, ...]], experiment: Experiment) -> None:
    """Refuse names on axes that nothing bears, and assignments that fit none of a matrix's plug-ins."""
    for name in written.get("datasets", (experiment.dataset,)):
        check_data(replace(experiment, dataset=name))
    for axis, kind in AXES.items():
        named = (value for value in written.get(axis, ()) if value not in ("none", "auto"))
        _require_known(kind, (part for name in named if ":" not in name for part in name.split("+")))
    stages = [part for value in written.get("defences", experiment.defences) for part in value.split("+")]
    together = "+".join(dict.fromkeys(part for part in stages if part != "none")) or "none"
    attacks = written.get("attacks", experiment.attack)
    check_assignments(replace(experiment, defence=together, attack=attacks), written.get("methods", ()))


def _require_known(kind: PluginKind, names: Iterable[str]) -> None:
    for name in names:
        if ":" not in name:  # else it is a user's own code
            plugins.require_known(kind, name)


def _check_trackers(names: Iterable[str]) -> None:
    if names:
        from flfw.runs.tracking.tracker import TRACKER

        _require_known(TRACKER, names)


def _check_machine(experiment: Experiment) -> None:
    """Refuse shares of a GPU on a machine that certainly has none, and cores that it does not have."""
    from flfw.engines import machine

    if experiment.federation or machine.may_have_gpu():
        return
    machine.check_server(experiment, experiment.attack_gpus, False)
    if experiment.engine != "inproc" and not experiment.ray_address:
        machine.check(experiment, experiment.attack_gpus, machine.available_resources(""))


# --- what source files declare ------------------------------------------------------------------------------------


def networks() -> tuple[str, ...]:
    """Return the names of the networks, in the order of `flfw.nets.names`."""
    return (*re.findall(r'^    "(\w+)": NetCard\(', _source("flfw.nets"), re.MULTILINE), *sorted(_pretrained()))


def _pretrained() -> list[str]:
    """Return the names of the networks with a file of weights."""
    return re.findall(r'^ +name="(\w+)",$', _source("flfw.nets.backbones.architectures"), re.MULTILINE)


def opening(kind: PluginKind, name: str) -> str:
    """Return the first line of a plug-in's card."""
    return (ast.get_docstring(_tree(f"{kind.package}.{name}")) or "(no card)").partition("\n")[0]


def fields(kind: PluginKind, name: str) -> dict[str, str]:
    """Return the hyper-parameters of one of the project's own plug-ins, each with its annotation."""
    module = f"{kind.package}.{name}"
    classes = [node for node in _tree(module).body if isinstance(node, ast.ClassDef)]
    found = next(filter(None, (_settings(module, node) for node in classes)), None)
    return _annotations(*found) if found else {}


def type_of(annotation: str) -> Any:
    """Return the type that an annotation names, a scalar or a ``Literal`` of words; None: it is another.

    >>> type_of("PositiveInt"), type_of("Tensor")
    (<class 'int'>, None)
    """
    if annotation.startswith("Literal["):
        return Literal[ast.literal_eval(annotation.removeprefix("Literal").strip("[]") + ",")]
    return _SCALARS.get(annotation)


def _settings(module: str, node: ast.ClassDef) -> tuple[str, ast.ClassDef] | None:
    """Return module and node of the class that a plug-in's class, or one that it derives from, has as ``Settings``."""
    for line in node.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Name):
            target = line.targets[0] if isinstance(line, ast.Assign) else line.target
            if ast.unparse(target) == "Settings":
                return _class(module, line.value.id)
    return next(filter(None, (_settings(*parent) for parent in _parents(module, node))), None)


def _annotations(module: str, node: ast.ClassDef) -> dict[str, str]:
    """Return the fields of a dataclass with those that it inherits."""
    known: dict[str, str] = {}
    for parent in reversed([*_parents(module, node)]):
        known |= _annotations(*parent)
    lines = [line for line in node.body if isinstance(line, ast.AnnAssign)]
    mine = {ast.unparse(line.target): ast.unparse(line.annotation) for line in lines}
    return known | {name: kind for name, kind in mine.items() if not kind.startswith("ClassVar")}


def _parents(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    bare = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return filter(None, (_class(module, ast.unparse(base)) for base in bare))


def _class(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """Return module and node of a class of the project that a name in a module stands for."""
    for line in _tree(module).body:
        if isinstance(line, ast.ClassDef) and line.name == name:
            return module, line
        if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("flfw"):
            for alias in line.names:
                if (alias.asname or alias.name) == name:
                    return _class(str(line.module), alias.name)
    return None


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module), f"{module.replace('.', '/')}.py")


def _source(module: str) -> str:
    path = _ROOT.joinpath(*module.split(".")[1:])
    file = path.with_suffix(".py")  # first: an earlier version may have left a folder of this name, without code
    return (file if file.is_file() else path / "__init__.py").read_text(encoding="utf-8")
