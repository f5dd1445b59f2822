"""The two ways a run can end badly, and what the command line makes of them.

Attributes:
    DIED: what is said of a client whose process ended before it could say anything.
"""

from __future__ import annotations

DIED = "its process died"


class BadInput(ValueError):
    """What was asked for cannot be done; the message names the value and the way out (exit code 2)."""


class RunFailed(RuntimeError):
    """The run started and could not be completed; the message names who failed and why (exit code 1)."""


def require(holds: bool, expected: str, **got: object) -> None:
    """Raise `BadInput` in the house's one voice unless the condition holds.

    >>> require(1.5 < 1, "0 < ratio < 1", ratio=1.5)
    Traceback (most recent call last):
    flfw.errors.BadInput: Expected 0 < ratio < 1, got ratio=1.5.
    """
    if not holds:
        raise BadInput(f"Expected {expected}, got {', '.join(f'{k}={v}' for k, v in got.items())}.")
