"""Command ``flfw``: a subcommand for each task. ``sim.py`` is ``flfw run``, whose tasks are flags, too."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import flfw
from flfw.command import help as pages
from flfw.command.arguments import Command, leaves_training_open, named_settings, parse, refuse_two_tasks
from flfw.command.subcommands import OTHERS, SUBCOMMANDS, overview, refuse_ignored, translated
from flfw.errors import InputError, unknown
from flfw.files.exit_code import exit_code

_PROGRAMS = MappingProxyType(
    {
        "deploy": "flfw.deploy.__main__",
        "data": "flfw.command.data_sets",
        "rehearse": "flfw.command.rehearse",
        "new": "flfw.command.new",
    }
)
"""Module of each subcommand that parses its own words."""


def main(arguments: Sequence[str] | None = None, program: str = "") -> int:
    """Run a subcommand; return the exit code: 0 done, 1 failed, 2 bad input.

    Args:
        arguments: words behind ``flfw``; None: those of this process.
        program: name of the command, for messages; empty: ``flfw`` and the subcommand.
    """
    name, *words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in SUBCOMMANDS:
        program = program or f"flfw {name}"
        return exit_code(program, lambda: _do(name, words, program))
    if name in _PROGRAMS:
        return importlib.import_module(_PROGRAMS[name]).main(words, f"flfw {name}")
    return exit_code("flfw", lambda: _about(name, words))


def _do(name: str, words: list[str], program: str) -> int:
    if pages.asked(words):
        print(pages.of_subcommand(name, SUBCOMMANDS[name], words, program))
        return 0
    arguments = translated(name, words)
    command = parse(arguments, program=program)
    refuse_two_tasks(command)
    for task in ("compare", "figures", "pdf", "purge", "list"):
        if getattr(command, task) or (task == "list" and command.list is not None):
            refuse_ignored(task, arguments)
    from flfw.command import early

    early.check(command)
    return _perform(command, arguments, program)


def _perform(command: Command, arguments: list[str], program: str) -> int:
    """Do the one task that the command line asks for; return the exit code."""
    from flfw.command import tasks

    names = named_settings(arguments)
    if leaves_training_open(command.experiment, names):
        from flfw.runs.run import choose_training

        command = replace(command, experiment=choose_training(command.experiment, names))
    if command.list is not None:
        print(tasks.listed(command.list))
    elif command.matrix or command.seeds:
        return tasks.several(command)
    elif command.table or command.cell:
        return tasks.table(command)
    elif command.estimate:
        print(tasks.estimated(command.experiment))
    elif command.show_split:
        print(tasks.split_shown(command.experiment))
    elif command.compare:
        print(tasks.compared(command.compare))
    elif command.figures:
        print(*tasks.figures(command), sep="\n")
    elif command.purge:
        print(tasks.purged(command.purge))
    elif command.verify:
        return tasks.verified(command.verify, arguments, program)
    elif command.pdf is not None:
        return tasks.printed(command, arguments, program)
    else:
        from flfw.command.api.summary import summary

        print(summary(tasks.run(command, arguments, program)))
    return 0


def _about(name: str, words: Sequence[str]) -> int:
    """Print the version, the subcommands or a completion script."""
    if name == "completion":
        from flfw.command.completion import SHELLS, script

        if words in (["-h"], ["--help"]):
            print(f"usage: flfw completion {{{','.join(SHELLS)}}}\n\n{_INSTALL}")
            return 0
        if len(words) != 1:
            got = " ".join(words) or "none"
            raise InputError(f"Expected one shell among {', '.join(SHELLS)}, got {got}; see flfw completion --help.")
        print(script(words[0]))
    elif name in ("--version", "-V"):
        print(f"flfw {flfw.__version__}")
    elif name in ("-h", "--help", "help"):
        print(_overview())
    elif name.startswith("-"):
        raise InputError(f"Expected a subcommand before {name}, such as flfw run {name}; see flfw --help.")
    else:
        known = (*SUBCOMMANDS, *OTHERS)
        raise unknown(f"a subcommand among {', '.join(known)}", name, name, known)
    return 0


def _overview() -> str:
    lines = ["usage: flfw SUBCOMMAND ...", "", *pages.wrapped((flfw.__doc__ or "").partition("\n")[0])]
    for title, those in overview().items():
        lines += ["", f"{title}:"]
        for name, words in those.items():
            lines += pages.row(name, words)
    examples = [f"  flfw {name} {SUBCOMMANDS[name].example}" for name in ("run", "audit", "table")]
    return "\n".join([*lines, "", "Examples:", *examples, "", "flfw SUBCOMMAND --help has the flags of one."])


_INSTALL = """\
Print a script by which a shell completes commands of flfw, with the names of
methods, attacks, defences, networks, data sets and tables:

  bash   flfw completion bash > ~/.local/share/bash-completion/completions/flfw
  zsh    flfw completion zsh > "${fpath[1]}/_flfw"
  fish   flfw completion fish > ~/.config/fish/completions/flfw.fish

The names are those of this moment: print it again after adding a plug-in."""
