"""Help of the command line: in groups, for 80 columns, an example each."""

import shutil
import textwrap
from collections.abc import Sequence

from flfw.command.flags import TASKS, Flag, expert, flags, grouped
from flfw.command.subcommands import Subcommand
from flfw.experiment import Experiment

HELP, ALL = ("-h", "--help"), "--help-all"
_WIDTH, _COLUMN = 80, 26


def asked(words: Sequence[str]) -> bool:
    """Return whether a command line asks for help."""
    return any(word in (*HELP, ALL) for word in words)


def of_subcommand(name: str, one: Subcommand, words: Sequence[str], program: str) -> str:
    """Return the help of a subcommand, with the flags of a run if it takes them.

    Args:
        name: its name.
        one: the subcommand.
        words: its command line, which may ask for all of the help.
        program: name of the command.
    """
    purpose = f"{one.words[0].upper()}{one.words[1:]}."
    if name == "run":
        purpose += " Without any flag: HyperFL on the embedded digits, ten clients, audited; some minutes on two cores."
    if one.takes is None:
        return page(program, words, purpose, one.values, one.also)
    shown = [flag for flag in flags().values() if one.knows(flag.name)]
    lines = [_usage(program, one.values, bool(shown)), "", *wrapped(purpose)]
    lines += ["", "Flags:"] * bool(shown)
    for flag in shown:
        lines += _described(flag, ALL in words, program)
    return "\n".join([*lines, "", *wrapped(f"example: {program} {one.example}")])


def page(
    program: str,
    words: Sequence[str],
    purpose: str,
    values: str = "",
    tasks: Sequence[str] = (),
    of_its_own: Sequence[Flag] = (),
    default: Experiment | None = None,
) -> str:
    """Return the help of a command that takes the flags of a run.

    Args:
        program: name of the command.
        words: its command line, which may ask for all of the help.
        purpose: its purpose, a sentence.
        values: form of the words before its flags.
        tasks: names of flags that are tasks of their own.
        of_its_own: flags of this command alone.
        default: values of the flags that are not given; None: those of an experiment.
    """
    whole = ALL in words
    lines = [_usage(program, values, True), "", *wrapped(purpose)]
    lines += ["", "Flags of its own:"] * bool(of_its_own)
    for flag in of_its_own:
        lines += _described(flag, True, program)
    for group, common, others in grouped(default):
        lines += ["", f"{group.title}:"]
        for flag in [*common, *others] if whole else common:
            if flag.name not in TASKS:
                lines += _described(flag, whole, program)
        if not whole and others:
            lines += wrapped(f"also {' '.join(f'--{flag.name}' for flag in others)}", "  ", "    ")
        lines += wrapped(f"example: {program} {values}{' ' if values else ''}{group.example}", "  ", "    ")
    if tasks:
        lines += ["", "Tasks:"]
        for name in tasks:
            lines += _described(flags()[name], whole, program)
    listing = "sim.py --list" if program == "sim.py" else "flfw list"
    more = f"{listing} NAME has the fields of a plug-in for --set."
    lines += ["", *wrapped(more if whole else f"{program} {ALL} has all flags and all of their words. {more}")]
    return "\n".join(lines)


def _usage(program: str, values: str, takes_flags: bool) -> str:
    return " ".join(filter(None, ["usage:", program, values, "[FLAGS]" if takes_flags else ""]))


def wrapped(text: str, indent: str = "", hanging: str = "") -> list[str]:
    """Return lines of at most 80 columns, fewer on a narrower terminal."""
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def row(left: str, text: str) -> list[str]:
    """Return a name with its words beside it or, if it is long, below it."""
    margin = " " * _COLUMN
    if len(left) + 4 > _COLUMN:
        return [f"  {left}", *wrapped(text, margin, margin)]
    return wrapped(text, f"  {left:<{_COLUMN - 3}} ", margin)


def _described(flag: Flag, full: bool, program: str) -> list[str]:
    text = flag.words if full else flag.words.partition(". ")[0].removesuffix(".") + "."
    if program != "sim.py":
        text = text.replace("--list", "flfw list").replace("--show-split", "flfw data split")
    return row(flag.usage, text + (f" [{flag.default}]" if flag.default else ""))


def expert_settings() -> str:
    """Return the settings behind ``--expert``: key, type, unit and range, default, and what each does."""
    lines = wrapped("Settings behind --expert KEY=VALUE ..., with the value of a run that says nothing:")
    for flag in expert():
        key, form = flag.name.replace("-", "_"), flag.form or "{true,false}"
        unset = {"": "false", "INT": "0", "FLOAT": "0"}.get(flag.form, "empty")
        lines += row(f"{key}={form}", f"{flag.words} [{flag.default or unset}]")
    return "\n".join(lines)
