"""Errors that end a run, and their exit codes on the command line.

Attributes:
    DIED: reason for the failure of a client whose process ended without an answer.
"""

from __future__ import annotations

DIED = "its process died"
_LONGEST = 4000  # characters of a message


class OneLine(Exception):
    """Base of errors whose message is one printable line, also where it names values from outside."""

    def __str__(self) -> str:
        """Return the message, with a question mark for each character that would move a terminal's cursor."""
        words = super().__str__()
        return printable(words if len(words) <= _LONGEST else f"{words[:_LONGEST]}...")


class BadInput(OneLine, ValueError):
    """Error in the input: the request cannot be done; the message names the value and the way out (exit code 2)."""


class RunFailed(OneLine, RuntimeError):
    """Failure of a run that had started; the message names the client or part that failed, and why (exit code 1)."""


def require(holds: bool, expected: str, **got: object) -> None:
    """Raise `BadInput`, worded like all input errors, unless the condition holds.

    >>> require(1.5 < 1, "0 < ratio < 1", ratio=1.5)
    Traceback (most recent call last):
    flfw.errors.BadInput: Expected 0 < ratio < 1, got ratio=1.5.
    """
    if not holds:
        raise BadInput(f"Expected {expected}, got {', '.join(f'{k}={v}' for k, v in got.items())}.")


def printable(words: str) -> str:
    """Replace every unprintable character, such as a terminal's escape sequences, by a question mark.

    >>> printable("one\\x1b[2J")
    'one?[2J'
    """
    return "".join(char if char.isprintable() else "?" for char in words)
