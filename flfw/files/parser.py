"""Parser of a command line whose errors are one line, as those of all commands of the project."""

import argparse
import re
from collections.abc import Iterable
from typing import Any, NoReturn, final

from flfw.errors import InputError, suggestion
from flfw.files.earlier_names import earlier_setting, renames

_QUOTED = re.compile(r"'([^']*)'")


@final
class Parser(argparse.ArgumentParser):
    """Parser that raises `InputError` for a wrong command line; no option can be shortened."""

    def __init__(self, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **{"allow_abbrev": False, **settings})

    def parse_known_args(self, *given: Any, **more: Any) -> Any:
        """Parse, and refuse unknown words; a subcommand knows its own options."""
        known, unknown = super().parse_known_args(*given, **more)
        for word in unknown:
            flag = word.partition("=")[0].removeprefix("--")
            if (today := renames().task_flags.get(flag)) and f"--{today}" in self._option_string_actions:
                raise InputError(str(earlier_setting(flag)))
        if unknown:
            question = did_you_mean(unknown, self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(word or repr(word) for word in unknown)}{question}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Raise the error in place of a usage of many lines."""
        raise InputError(f"{message}{choice_meant(message)}; see {self.prog} --help")


def did_you_mean(unknown: Iterable[str], flags: Iterable[str]) -> str:
    """Return a question that names the flag most like the first unknown word; empty if none is like it.

    >>> did_you_mean(["--round=3"], ["--rounds", "--seed"]), did_you_mean(["-rounds"], ["--rounds", "--seed"])
    ('; did you mean --rounds?', '; did you mean --rounds?')
    """
    words = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    return suggestion(f"--{words[0].lstrip('-')}", flags, minimum=0.7) if words else ""


def choice_meant(message: str) -> str:
    """Return a question for the value most like one that is none of the choices in an error; empty if none is.

    >>> choice_meant("argument action: invalid choice: 'lst' (choose from 'list', 'get')")
    '; did you mean list?'
    """
    _, invalid, rest = message.partition("invalid choice")
    words = _QUOTED.findall(rest) if invalid else []
    return suggestion(words[0], words[1:]) if words else ""
