"""Command-line flags as a frozen record, with errors in one line."""

import dataclasses
import io
import re
from collections.abc import Collection, Iterator
from contextlib import redirect_stderr
from typing import TypeVar

import tyro

from flfw.errors import InputError, suggestion
from flfw.files.earlier_names import earlier_setting, renames
from flfw.files.parser import choice_meant, did_you_mean

T = TypeVar("T")


def parsed(arguments: list[str], default: T, prog: str, expert: Collection[str] = ()) -> T:
    """Parse the command line into a record of the default's type.

    Args:
        arguments: arguments from the shell.
        default: values of the flags that are not given.
        prog: name of the command.
        expert: names of the fields that stand behind ``--expert`` as KEY=VALUE.

    Raises:
        InputError: a flag is wrong or an earlier name; the message is tyro's, in one line.
        SystemExit: help was asked for and printed.
    """
    if odd := [word for word in arguments if any("\ud800" <= character <= "\udfff" for character in word)]:
        raise InputError(f"Expected words in UTF-8, got {odd[0]!a}; see {prog} --help")
    _refuse_earlier(arguments, expert)
    words = joined(piped(_expanded(arguments, default, expert)))
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return tyro.cli(type(default), args=words, prog=prog, default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
        message = _unboxed(box.getvalue())
        for name in expert:
            message = re.sub(rf"--{name.replace('_', '-')}(?![\w-])", f"--expert {name}", message)
        message = re.sub(r", (?!-)", " ", message) if message.startswith("Unrecognized") else message  # words of a flag
        like = _meant(message, default)
        raise InputError(f"{message.removesuffix('.') if like else message}{like}; see {prog} --help") from None


def _refuse_earlier(arguments: list[str], expert: Collection[str]) -> None:
    """Refuse flags and values by the names of earlier versions, and flags that stand behind ``--expert`` now."""
    for flag, values in _flags_in(arguments):
        name = renames().flags.get(flag, flag).replace("-", "_")
        if name in expert:
            raise InputError(
                f"Expected a flag of today, got --{flag}; use --expert {name}={' '.join(values) or 'VALUE'}"
            )
        if refused := earlier_setting(flag, values):
            raise InputError(refused)


def _flags_in(arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag without its hyphens, and the words behind it."""
    flag, values = "", list[str]()
    for argument in [*arguments, "--"]:
        if not argument.startswith("--"):
            values.append(argument)
            continue
        if flag:
            yield flag, values
        flag, _, value = argument.removeprefix("--").partition("=")
        values = [value] if value else []


def _expanded(arguments: list[str], default: object, expert: Collection[str]) -> list[str]:
    """Replace each KEY=VALUE behind ``--expert`` by the flag that the parser has for the field.

    >>> _expanded(["--expert", "a_b=1", "c=2", "--rounds", "3"], None, ["a_b", "c"])
    ['--a-b=1', '--c=2', '--rounds', '3']
    """
    words: list[str] = []
    behind = False
    for argument in arguments:
        if argument == "--expert" or argument.startswith("--expert="):
            behind, argument = True, argument.removeprefix("--expert").removeprefix("=")
            if not argument:
                continue
        elif argument.startswith("--"):
            behind = False
        words += _as_flag(argument, default, expert) if behind else [argument]
    ends = [*arguments, ""][1:]
    if any(word == "--expert" and (not end or end.startswith("--")) for word, end in zip(arguments, ends, strict=True)):
        raise InputError("Expected --expert KEY=VALUE, got nothing; flfw list expert has the keys")
    return words


def _as_flag(assignment: str, default: object, expert: Collection[str]) -> list[str]:
    key, equals, value = assignment.partition("=")
    name = key.replace("-", "_")
    if not equals or name not in expert:
        way_out = (suggestion(name, expert) or "; flfw list expert has the keys") if equals else ""
        flag = name.replace("_", "-")
        way_out = f"; it is a flag, --{flag}" if equals and name in _settings(default) else way_out
        if today := renames().flags.get(flag):
            way_out = f"; it is called {today.replace('-', '_')} now"
        if gone := renames().gone.get(flag):
            way_out = f", which is gone; {gone.instead}"
        raise InputError(f"Expected --expert KEY=VALUE, got {assignment}{way_out}")
    flag = f"--{name.replace('_', '-')}"
    if isinstance(_settings(default).get(name), bool):
        if value not in ("true", "false"):
            raise InputError(f"Expected --expert {name}=true or false, got {assignment}")
        return [flag] if value == "true" else [f"--no-{flag[2:]}"]
    return [f"{flag}={value}"]


def _settings(record: object) -> dict[str, object]:
    """Return the values of a record's fields, and of the records in it, by name."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(record) if dataclasses.is_dataclass(record) else ():
        value = getattr(record, field.name)
        values |= _settings(value) if dataclasses.is_dataclass(value) else {field.name.strip("_"): value}
    return values


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


def _meant(text: str, default: object) -> str:
    """Return a question that names the flag, or the value of one, that an unknown word of an error resembles."""
    if not text.startswith("Unrecognized"):
        return choice_meant(text)
    flags = [f"--{name.replace('_', '-')}" for name in _settings(default)]
    return did_you_mean(re.findall(r"(?<!\S)--?[\w-]+", text), flags)


def _unboxed(box: str) -> str:
    """Return the first paragraph inside a box that tyro draws with Unicode or, on a plain terminal, with ASCII."""
    lines = [line.strip(" │|╭╮╰╯+") for line in box.splitlines()[1:]]
    paragraphs = "\n".join("" if not line.strip("─- ") else line for line in lines).strip().split("\n\n")
    return " ".join(paragraphs[0].splitlines())
