"""Errors that end a run, and their exit codes on the command line.

Attributes:
    DIED: reason for the failure of a client whose process ended without an answer.
"""

from __future__ import annotations

DIED = "its process died"


class BadInput(ValueError):
    """Error in the input: the request cannot be done; the message names the value and the way out (exit code 2)."""


class RunFailed(RuntimeError):
    """Failure of a run that had started; the message names the client or part that failed, and why (exit code 1)."""


def require(holds: bool, expected: str, **got: object) -> None:
    """Raise `BadInput`, worded like all input errors, unless the condition holds.

    >>> require(1.5 < 1, "0 < ratio < 1", ratio=1.5)
    Traceback (most recent call last):
    flfw.errors.BadInput: Expected 0 < ratio < 1, got ratio=1.5.
    """
    if not holds:
        raise BadInput(f"Expected {expected}, got {', '.join(f'{k}={v}' for k, v in got.items())}.")
