"""Scripts that let a shell complete command lines of ``flfw``, with the names of all plug-ins."""

import argparse
from collections.abc import Iterable

import shtab

from flfw import data, plugins
from flfw.command.early import SECTIONS, networks
from flfw.command.flags import TASKS, Flag, flags
from flfw.command.new import KINDS
from flfw.command.subcommands import OTHERS, SUBCOMMANDS
from flfw.data.splits.schemes import schemes
from flfw.errors import unknown

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """Return the completion script of a shell.

    The names in it are those of the files at this moment, so that completing imports nothing.

    Raises:
        InputError: there is none for the shell.
    """
    if shell not in SHELLS:
        raise unknown(f"a shell among {', '.join(SHELLS)}", f"shell={shell}", shell, SHELLS)
    return shtab.complete(parser(), shell)


def parser() -> argparse.ArgumentParser:
    """Return the subcommands, flags and names as a parser, from which the scripts are made."""
    made = argparse.ArgumentParser("flfw", description="Federated learning, and what it leaks.")
    parts = made.add_subparsers(dest="subcommand")
    names = _names()
    for name, one in SUBCOMMANDS.items():
        sub = parts.add_parser(name, help=_plain(one.words))
        _add_values(sub, one.values, names)
        for flag in flags().values():
            if one.knows(flag.name):
                _add_flag(sub, flag, names)
    for name, words in OTHERS.items():
        sub = parts.add_parser(name, help=_plain(words))
        _ACTIONS[name](sub, names)
    return made


def _names() -> dict[str, tuple[str, ...]]:
    """Return the names that a flag takes, by the flag's name."""
    from flfw.papers.published import FRONTIER
    from flfw.papers.published import names as tables

    methods, attacks, defences = map(plugins.names, (plugins.METHOD, plugins.ATTACK, plugins.DEFENCE))
    return {
        "method": methods,
        "attack": (*attacks, "auto", "none"),
        "defence": (*defences, "none"),
        "malicious-server": attacks,
        "net": ("auto", *networks()),
        "dataset": (*data.names(), *(f"{prefix}:" for prefix in sorted(data.PREFIXES))),
        "split": ("auto", *schemes()),
        "table": (*tables(), FRONTIER),
        "list": tuple(
            dict.fromkeys([*SECTIONS, *methods, *defences, *attacks, *networks(), *data.names(), *schemes()])
        ),
        "data": data.names(),
    }


def _add_values(sub: argparse.ArgumentParser, form: str, names: dict[str, tuple[str, ...]]) -> None:
    """Add the words before a subcommand's flags: run folders, or names."""
    if "RUN" in form:
        sub.add_argument("folders", nargs="*").complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif form:
        known = names["table" if "TABLE" in form else "list"] if "AXIS" not in form else _AXES
        sub.add_argument("names", nargs="*", choices=known)


def _add_flag(sub: argparse.ArgumentParser, flag: Flag, names: dict[str, tuple[str, ...]]) -> None:
    words = _plain(flag.words.partition(". ")[0])
    if not flag.form:
        sub.add_argument(f"--{flag.name}", action="store_true", help=words)
        return
    count = "*" if flag.many else None
    known = flag.choices or names.get(flag.name) or None
    made = sub.add_argument(f"--{flag.name}", nargs=count, choices=known, help=words)
    if flag.form == "PATH":
        made.complete = shtab.FILE  # type: ignore[attr-defined]


def _add_actions(sub: argparse.ArgumentParser, actions: Iterable[str], values: Iterable[str] | None) -> None:
    parts = sub.add_subparsers(dest="action")
    for action in actions:
        one = parts.add_parser(action)
        if values is None:
            one.add_argument("folder").complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        else:
            one.add_argument("names", nargs="*", choices=tuple(values))


def _plain(text: str) -> str:
    """Return words without the signs that a shell or argparse would read."""
    return "".join(sign for sign in text if sign not in "%'\"`$[]{}\\:")


def _rehearse(sub: argparse.ArgumentParser, names: dict[str, tuple[str, ...]]) -> None:
    for flag in flags().values():
        if flag.name not in TASKS:
            _add_flag(sub, flag, names)


_AXES = ("methods=", "defences=", "attacks=", "seeds=", "datasets=")
_ACTIONS = {
    "rehearse": _rehearse,
    "deploy": lambda sub, names: _add_actions(sub, ("init", "up", "status", "down", "renew", "hash"), None),
    "data": lambda sub, names: _add_actions(sub, ("list", "get", "verify", "show", "columns", "split"), names["data"]),
    "new": lambda sub, names: sub.add_argument("kind", choices=KINDS),
    "completion": lambda sub, names: sub.add_argument("shell", choices=SHELLS),
}
