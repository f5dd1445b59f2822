"""Flags of the command line with their help, as the records of settings declare them, in groups for a reader."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from flfw.bounds import meanings
from flfw.command.arguments import Command
from flfw.experiment import EXPERT, Experiment
from flfw.experiment.audit import AuditSettings
from flfw.experiment.experiment import DERIVED, DeploymentSettings, ExecutionSettings
from flfw.experiment.training import DataSettings, PrivacySettings, TrainingSettings

TASKS = {
    "seeds": "run",
    "matrix": "matrix",
    "compare": "compare",
    "figures": "figures",
    "from": "audit",
    "purge": "purge",
    "resume": "resume",
    "estimate": "estimate",
    "show-split": "data split",
    "table": "table",
    "cell": "table",
    "scale": "table",
    "list": "list",
    "verify": "verify",
    "pdf": "report",
    "figure-names": "figures",
    "format": "figures",
    "width": "figures",
}
"""Flags that are tasks of their own, each with the subcommand that does it."""


@dataclass(frozen=True)
class Flag:
    """Flag of the command line.

    Attributes:
        name: without hyphens before it, such as ``local-epochs``.
        words: its help.
        form: form of a value, such as ``INT``; empty: it takes none.
        choices: the values that it takes; empty: any of the form.
        many: whether several values may follow.
        default: its default in words; empty: none.
    """

    name: str
    words: str
    form: str
    choices: tuple[str, ...]
    many: bool
    default: str

    @property
    def usage(self) -> str:
        """Flag with the form of its value: ``--rounds INT``."""
        value = f" {self.form}" + (" ..." if self.many else "") if self.form else ""
        return f"--{self.name}{value}"


@dataclass(frozen=True)
class Group:
    """Flags of one subject.

    Attributes:
        title: the subject.
        example: words of a command line.
        common: names of the flags that most need, in order.
        record: record whose fields belong here unless another group names them.
        more: names of other flags that belong here.
    """

    title: str
    example: str
    common: tuple[str, ...]
    record: type
    more: tuple[str, ...] = ()


GROUPS = (
    Group(
        "What to train",
        "--method fedprox --set mu=0.1 --net lenet --clients 20 --rounds 50",
        ("method", "set", "net", "clients", "sample", "rounds", "local-epochs", "batch-size", "lr", "seed", "seeds"),
        TrainingSettings,
    ),
    Group(
        "Data",
        "--dataset folder:photos --split dirichlet --set dirichlet.alpha=0.1",
        ("dataset", "split", "data-root", "image-size"),
        DataSettings,
    ),
    Group(
        "Privacy",
        "--dataset mnist --net linear --split iid --clients 20 --target-epsilon 4",
        ("defence", "target-epsilon", "metrics"),
        PrivacySettings,
        ("defended",),
    ),
    Group(
        "Attack",
        "--attack ig --set ig.iterations=500 --images 4 --audit-rounds 0,last",
        ("attack", "images", "audit-rounds", "audit-source", "victim-batch", "victim-steps", "vantage"),
        AuditSettings,
        ("malicious-server",),
    ),
    Group(
        "Engine",
        "--engine inproc    (no Ray; the same numbers)",
        ("engine", "gpus-per-client", "batched-clients", "federation"),
        ExecutionSettings,
    ),
    Group(
        "Output", "--out runs/first --show-samples no", ("out", "show-samples", "pdf", "track"), Command, ("expert",)
    ),
)


_EXPERT = Flag("expert", "Settings that few runs change; flfw list expert has them all.", "KEY=VALUE", (), True, "")


@cache
def flags(default: Experiment | None = None) -> dict[str, Flag]:
    """Return all flags by name, in the order of their records: the tasks first.

    Args:
        default: values of the flags that are not given; None: those of an experiment.
    """
    default = default or Experiment()
    shown = [flag for record in (Command(default), default) for flag in declared(record)]
    return {flag.name: flag for flag in [*shown, _EXPERT] if flag.name.replace("-", "_") not in (*EXPERT, *DERIVED)}


def expert() -> list[Flag]:
    """Return the settings behind ``--expert`` with their help, in the order of their records."""
    return [flag for flag in declared(Experiment()) if flag.name.replace("-", "_") in EXPERT]


def declared(default: Any) -> list[Flag]:
    """Return the flags of a record's fields but for its experiment, with the values of the given one as defaults."""
    words, hints = meanings(type(default)), get_type_hints(type(default), include_extras=False)
    return [
        _flag(_name(field), words[field.name], hints[field.name], getattr(default, field.name))
        for field in dataclasses.fields(default)
        if field.name != "experiment"
    ]


def _name(field: dataclasses.Field[Any]) -> str:
    return field.name.strip("_").replace("_", "-")


def grouped(default: Experiment | None = None) -> Iterator[tuple[Group, list[Flag], list[Flag]]]:
    """Yield each group with its common flags and its others; each flag that is no task of its own is in one group.

    Args:
        default: values of the flags that are not given; None: those of an experiment.
    """
    known = flags(default)
    named = {name for group in GROUPS for name in (*group.common, *group.more)}
    for group in GROUPS:
        deploys = DeploymentSettings if group.record is ExecutionSettings else group.record
        more = (_name(field) for record in (group.record, deploys) for field in dataclasses.fields(record))
        others = [n for n in dict.fromkeys([*group.more, *more]) if n in known and n not in TASKS]
        others = [n for n in others if n in group.more or n not in named]
        yield group, [known[name] for name in group.common], [known[name] for name in others]


def _flag(name: str, text: str, kind: Any, default: Any) -> Flag:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    parts = [part for part in get_args(kind) if part is not type(None)] if type(None) in get_args(kind) else [kind]
    many = get_origin(parts[0]) is tuple
    one = get_args(parts[0])[0] if many else parts[0]
    choices = tuple(map(str, get_args(one))) if get_origin(one) is Literal else ()
    forms = {bool: "", int: "INT", float: "FLOAT", str: "WORD", Path: "PATH"}
    form = "{" + ",".join(choices) + "}" if choices else forms[one]
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return Flag(name, text, form, choices, many, "" if default in (None, "", (), False) else shown)
