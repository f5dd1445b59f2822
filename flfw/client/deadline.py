"""Deadline of a client's work on a message."""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context

from flfw.messages.reasons import RequestDeclinedError

_LONGEST_S = 1e9  # some thirty years; a timer takes not much more
_AFTER_DEADLINE_S = 1.0  # the server then reports a late client, not a dead process
_UNDER_WAY: list[float] = []
"""Deadlines of the clients that this process works for now."""


@contextmanager
def until(deadline: float, context: Context) -> Iterator[None]:
    """Refuse work after the deadline, and end this process when the deadline passes during the work.

    A hung client would hold its core for ever. Python itself may hang, so a thread of C code ends the process. Where
    several clients are at work at once, the latest of their deadlines counts, also when one of them is done early.

    Args:
        deadline: seconds since the epoch; the clocks of the machines must differ by less than the time given.
        context: context of this node; a process that also runs the server is not ended.
    """
    own_process = not context.node_config.get("in-process")
    if deadline <= time.time():
        raise RequestDeclinedError("was asked too late")
    if own_process:
        _UNDER_WAY.append(deadline)
        _set_timer()
    try:
        yield
    finally:
        if own_process:
            _UNDER_WAY.remove(deadline)
            _set_timer()


def _set_timer() -> None:
    """Let the process end after the latest deadline of the work under way; without any, not at all."""
    if not _UNDER_WAY:
        faulthandler.cancel_dump_traceback_later()
        return
    left = min(max(0.0, max(_UNDER_WAY) - time.time()), _LONGEST_S)
    faulthandler.dump_traceback_later(left + _AFTER_DEADLINE_S, exit=True, file=sys.__stderr__ or sys.stderr)
