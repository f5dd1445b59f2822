"""Command-line flags as a frozen record, with errors in one line."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import TypeVar

import tyro

from flfw.errors import InputError
from flfw.terminal.parser import choice_meant, did_you_mean

T = TypeVar("T")


def parsed(arguments: list[str], default: T, prog: str) -> T:
    """Parse the command line into a record of the default's type.

    Args:
        arguments: arguments from the shell.
        default: values of the flags that are not given.
        prog: name of the command.

    Raises:
        InputError: a flag is wrong; the message is tyro's, in one line.
        SystemExit: help was asked for and printed.
    """
    if odd := [word for word in arguments if any("\ud800" <= character <= "\udfff" for character in word)]:
        raise InputError(f"Expected words in UTF-8, got {odd[0]!a}; see {prog} --help")
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return tyro.cli(type(default), args=joined(piped(arguments)), prog=prog, default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
        words = _unboxed(box.getvalue())
        like = _meant(words, default)
        raise InputError(f"{words.removesuffix('.') if like else words}{like}; see {prog} --help") from None


def joined(arguments: list[str]) -> list[str]:
    """Collect all assignments of ``--set`` in one place, since the parser keeps only the last of repeated flags.

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


def piped(arguments: list[str]) -> list[str]:
    """Join several names behind ``--defence`` to one value, the pipeline in which they act in this order.

    >>> piped(["--defence", "soteria", "prune", "--rounds", "2"])
    ['--defence', 'soteria+prune', '--rounds', '2']
    """
    words: list[str] = []
    awaited = named = False  # whether a first name is to follow; whether the last word is a name behind the flag
    for argument in arguments:
        is_flag = argument.startswith("--")
        if named and not is_flag:
            words[-1] += f"+{argument}"
            continue
        words.append(argument)
        named = (awaited and not is_flag) or argument.startswith("--defence=")
        awaited = argument == "--defence"
    return words


def _meant(words: str, default: object) -> str:
    """Return a question that names the flag, or the value of one, that an unknown word of an error resembles."""
    if not words.startswith("Unrecognized"):
        return choice_meant(words)
    return did_you_mean(re.findall(r"(?<!\S)--?[\w-]+", words), _flags(default))


def _flags(record: object) -> Iterator[str]:
    """Yield the flags of a record's fields, and of the records in it."""
    for field in dataclasses.fields(record) if dataclasses.is_dataclass(record) else ():
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            yield from _flags(value)
        else:
            yield f"--{field.name.strip('_').replace('_', '-')}"


def _unboxed(box: str) -> str:
    """Return the first paragraph inside a box that tyro draws with Unicode or, on a plain terminal, with ASCII."""
    lines = [line.strip(" │|╭╮╰╯+") for line in box.splitlines()[1:]]
    paragraphs = "\n".join("" if not line.strip("─- ") else line for line in lines).strip().split("\n\n")
    return " ".join(paragraphs[0].splitlines())
