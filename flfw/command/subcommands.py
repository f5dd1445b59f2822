"""Subcommands of ``flfw`` and what each takes; every task that is a flag of ``flfw run`` is one of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from flfw.command.flags import TASKS, flags
from flfw.errors import InputError
from flfw.experiment import FREE_ON_RESUME


@dataclass(frozen=True)
class Subcommand:
    """Subcommand that takes the flags of a run.

    Attributes:
        words: its purpose.
        example: words behind its name.
        flag: flag of ``flfw run`` for the task; empty: a run.
        values: form of the words before its flags, such as ``RUN``; empty: it takes none.
        least: number of these words at least.
        most: at most; 0: any number.
        also: names of further flags that are tasks of their own.
        takes: names of the only flags of a run that it takes; None: all.
    """

    words: str
    example: str
    flag: str = ""
    values: str = ""
    least: int = 0
    most: int = 0
    also: tuple[str, ...] = ()
    takes: tuple[str, ...] | None = None

    def knows(self, flag: str) -> bool:
        """Return whether it takes a flag, named without hyphens before it."""
        return flag in self.also or (flag not in TASKS and (self.takes is None or flag in self.takes))


SUBCOMMANDS = {
    "run": Subcommand("train, audit what leaks, write a report", "--method fedavg --attack ig", also=tuple(TASKS)),
    "estimate": Subcommand("expected time and memory of a run", "--method hyperfl --rounds 200", "estimate"),
    "resume": Subcommand("go on with a run that was cut short", "runs/NAME", "resume", "RUN", 1, 1, ("pdf",)),
    "audit": Subcommand("attack what an earlier run recorded", "runs/NAME --attack ig", "from", "RUN", 1, 1, ("pdf",)),
    "matrix": Subcommand(
        "methods against defences and attacks, with equal budgets",
        "methods=fedavg,fedper defences=none,prune attacks=ig seeds=0,1",
        "matrix",
        "AXIS=NAME,NAME ...",
        1,
        also=("seeds",),
    ),
    "compare": Subcommand("finished runs beside each other", "runs/A runs/B", "compare", "RUN RUN ...", 2, takes=()),
    "figures": Subcommand(
        "figures of finished runs for a paper",
        "runs/A runs/B --figure-names leakage rounds --format pdf",
        "figures",
        "RUN ...",
        1,
        also=("figure-names", "format", "width"),
        takes=("out", "data-root"),
    ),
    "table": Subcommand(
        "a paper's table, published beside measured",
        "hyperfl.1 --scale quick",
        "table",
        "[TABLE]",
        0,
        1,
        ("cell", "scale"),
        tuple(name.replace("_", "-") for name in FREE_ON_RESUME),
    ),
    "verify": Subcommand("repeat a finished run, compare every number", "runs/NAME", "verify", "RUN", 1, 1),
    "report": Subcommand("reports of finished runs as PDF files", "runs/NAME", "pdf", "RUN ...", 1, takes=()),
    "purge": Subcommand("remove clients' data from a finished run", "runs/NAME", "purge", "RUN", 1, 1, takes=()),
    "list": Subcommand(
        "all plug-ins, networks and data sets; the card of one", "hyperfl", "list", "[NAME ...]", takes=()
    ),
}

OTHERS = {
    "data": "list, get, verify or show data sets; state columns; show a split",
    "rehearse": "what a site would leak, on its own data",
    "deploy": "a federation of real sites: init, up, status, down, renew",
    "new": "a method, a defence, an attack or a Flower app of your own, that runs",
    "completion": "a script by which bash, zsh or fish completes commands",
}
"""Subcommands with words of their own."""

_FOR = {
    "Experiment": ("run", "estimate", "resume", "matrix", "table"),
    "Leakage": ("audit", "compare", "figures", "verify", "report", "rehearse"),
    "Upkeep": ("data", "list", "new", "deploy", "purge", "completion"),
}


def overview() -> dict[str, dict[str, str]]:
    """Return the purpose of each subcommand by its name, in groups."""
    words = {name: one.words for name, one in SUBCOMMANDS.items()} | OTHERS
    return {title: {name: words[name] for name in names} for title, names in _FOR.items()}


def translated(name: str, words: Sequence[str]) -> list[str]:
    """Return the words behind a subcommand as ``flfw run`` takes them.

    >>> translated("resume", ["runs/a", "--engine", "inproc"])
    ['--resume', 'runs/a', '--engine', 'inproc']

    Raises:
        InputError: there are too few or too many words before the flags, or a flag belongs to another subcommand.
    """
    one = SUBCOMMANDS[name]
    given = [*words]
    if name == "audit" and any(word.partition("=")[0] == "--from" for word in given):
        return given
    count = next((n for n, word in enumerate(given) if word.startswith("-") and word != "-"), len(given))
    behind, rest = given[:count], given[count:]
    if one.values and (len(behind) < one.least or (one.most and len(behind) > one.most)):
        got = f"{len(behind)} words" if behind else "none"
        raise InputError(f"Expected flfw {name} {one.values}, got {got} before the flags; see flfw {name} --help.")
    for word in rest:
        flag = word.partition("=")[0].removeprefix("--")
        if word.startswith("--") and flag in flags() and not one.knows(flag):
            raise InputError(_elsewhere(name, flag))
    if name == "table" and not behind:
        if not any(word.partition("=")[0] == "--cell" for word in rest):
            raise InputError(
                "Expected flfw table TABLE or flfw table --cell CELL, got neither; flfw list has the tables."
            )
        return given
    if not one.flag:
        return given
    return [f"--{one.flag}", *behind, *rest]


def refuse_ignored(task: str, arguments: Sequence[str]) -> None:
    """Refuse flags of a run beside a task that looks at none, as its subcommand does.

    Args:
        task: the task's flag, without hyphens before it.
        arguments: the whole command line.

    Raises:
        InputError: names the first flag that would be ignored.
    """
    name, one = next((name, one) for name, one in SUBCOMMANDS.items() if one.flag == task)
    for flag in (word.partition("=")[0].removeprefix("--") for word in arguments if word.startswith("--")):
        if flag != task and flag in flags() and not one.knows(flag):
            raise InputError(_elsewhere(name, flag))


def _elsewhere(name: str, flag: str) -> str:
    """Return the words for a flag that a subcommand does not take."""
    if flag in TASKS:
        return f"Expected flfw {TASKS[flag]}, got flfw {name} --{flag}; see flfw {TASKS[flag]} --help."
    return f"Expected flags that flfw {name} takes, got --{flag}; see flfw {name} --help."
