"""The two ways a run can end badly, and what the command line makes of them.

Attributes:
    DIED: what is said of a client whose process ended before it could say anything.
"""

DIED = "its process died"


class BadInput(ValueError):
    """What was asked for cannot be done; the message names the value and the way out (exit code 2)."""


class RunFailed(RuntimeError):
    """The run started and could not be completed; the message names who failed and why (exit code 1)."""
