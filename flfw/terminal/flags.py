"""Command-line flags as a frozen record, what is wrong with them in one line."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import TypeVar

import tyro

from flfw.errors import BadInput

T = TypeVar("T")


def parsed(arguments: list[str], default: T, prog: str) -> T:
    """The command line as a record of the default's type.

    Args:
        arguments: as the shell gives them.
        default: what flags that are not given stand at.
        prog: what the command is called.

    Raises:
        BadInput: in one line, what tyro says in a box.
        SystemExit: help was asked for and printed.
    """
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return tyro.cli(type(default), args=joined(arguments), prog=prog, default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise BadInput(f"{_unboxed(box.getvalue())}; see {prog} --help") from None


def joined(arguments: list[str]) -> list[str]:
    """The arguments with all of ``--set`` in one place: of a flag that is given again the parser keeps the last alone.

    >>> joined(["--set", "a=1", "--rounds", "2", "--set", "b=2", "c=3"])
    ['--rounds', '2', '--set', 'a=1', 'b=2', 'c=3']
    """
    others: list[str] = []
    assignments: list[str] = []
    place = others
    for argument in arguments:
        if argument == "--set" or argument.startswith("--set="):
            place = assignments
            assignments += [argument.removeprefix("--set=")] if argument != "--set" else []
            continue
        if argument.startswith("--"):
            place = others
        place.append(argument)
    return [*others, "--set", *assignments] if "--set" in arguments or assignments else others


def _unboxed(box: str) -> str:
    """The first paragraph inside a box that tyro draws with Unicode or, on a plain terminal, with ASCII."""
    lines = [line.strip(" │|╭╮╰╯+") for line in box.splitlines()[1:]]
    paragraphs = "\n".join("" if not line.strip("─- ") else line for line in lines).strip().split("\n\n")
    return " ".join(paragraphs[0].splitlines())
