"""Command ``flfw``: a subcommand for each task."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import flfw
from flfw.command.subcommands import OTHERS, SUBCOMMANDS, overview, translated
from flfw.errors import InputError, suggestion
from flfw.files.exit_code import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; return the exit code: 0 done, 1 failed, 2 bad input."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = (words[0], words[1:]) if words else ("--help", [])
    program = f"flfw {name}"
    if name in SUBCOMMANDS:
        return _simulate(name, rest, program)
    if name == "deploy":
        from flfw.deploy.__main__ import main as deploy

        return deploy(rest, program)
    if name == "rehearse":
        return _rehearse(rest, program)
    if name == "data":
        from flfw.command.data_sets import main as data_sets

        return data_sets(rest, program)
    return exit_code("flfw", lambda: _about(name, rest))


def _simulate(name: str, words: list[str], program: str) -> int:
    from flfw.command import help as pages
    from flfw.command.simulation import main as simulate

    if pages.asked(words):
        text = pages.of_subcommand(name, SUBCOMMANDS[name], words)
        return exit_code(program, lambda: _printed(text))
    try:
        given = translated(name, words)
    except InputError as error:
        refused = error
        return exit_code(program, lambda: _refuse(refused))
    return simulate(given, program)


def _rehearse(words: list[str], program: str) -> int:
    from flfw.command import help as pages

    if pages.asked(words):
        return exit_code(program, lambda: _printed(pages.of_rehearsal(words)))
    from flfw.command.rehearse import main as rehearse

    return rehearse(words, program)


def _printed(text: str) -> int:
    print(text)
    return 0


def _refuse(error: InputError) -> int:
    raise error


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
        return 0
    if name in ("--version", "-V"):
        print(f"flfw {flfw.__version__}")
        return 0
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    known = (*SUBCOMMANDS, *OTHERS)
    if name.startswith("-"):
        raise InputError(f"Expected a subcommand before {name}, such as flfw run {name}; see flfw --help.")
    raise InputError(f"Expected a subcommand among {', '.join(known)}; got {name}{suggestion(name, known) or '.'}")


def _overview() -> str:
    from flfw.command.help import row, wrapped

    lines = ["usage: flfw SUBCOMMAND ...", "", *wrapped(flfw.__doc__.partition("\n")[0] if flfw.__doc__ else "")]
    for title, those in overview().items():
        lines += ["", f"{title}:"]
        for name, words in those.items():
            lines += row(name, words)
    examples = [f"  flfw {name} {SUBCOMMANDS[name].example}" for name in ("run", "audit", "table")]
    return "\n".join([*lines, "", "Examples:", *examples, "", "flfw SUBCOMMAND --help has the flags of one."])


_INSTALL = """\
Print a script by which a shell completes commands of flfw, with the names of
methods, attacks, defences, networks, data sets and tables:

  bash   flfw completion bash > ~/.local/share/bash-completion/completions/flfw
  zsh    flfw completion zsh > "${fpath[1]}/_flfw"
  fish   flfw completion fish > ~/.config/fish/completions/flfw.fish

The names are those of this moment: print it again after adding a plug-in."""
