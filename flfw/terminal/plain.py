"""Words that another machine chose, made fit for a line of a log, a terminal or a table."""

from __future__ import annotations

_SHOWN = 300  # characters


def printable(words: str) -> str:
    """Replace every unprintable character, such as a terminal's escape sequences, by a question mark.

    >>> printable("one\\x1b[2J")
    'one?[2J'
    """
    return "".join(char if char.isprintable() else "?" for char in words)


def shown(words: str) -> str:
    """Shorten words to a line that a spreadsheet does not take for a formula.

    >>> shown("=cmd|' /C calc'!A0")
    "'=cmd|' /C calc'!A0"
    """
    line = printable(words[:_SHOWN])
    return f"'{line}"[:_SHOWN] if line.startswith(("=", "+", "-", "@")) else line
