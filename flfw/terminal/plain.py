"""Plain text for a terminal: one line, without control characters."""

from __future__ import annotations


def printable(words: str) -> str:
    """Replace every unprintable character, such as a terminal's escape sequences, by a question mark.

    >>> printable("one\\x1b[2J")
    'one?[2J'
    """
    return "".join(char if char.isprintable() else "?" for char in words)
