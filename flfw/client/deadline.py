"""Deadline of a client's work on a message."""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context

from flfw.messages.reasons import Declined

_LONGEST_S = 1e9  # some thirty years; a timer takes not much more
_AFTER_DEADLINE_S = 1.0  # the server then reports a late client, not a dead process


@contextmanager
def until(deadline: float, context: Context) -> Iterator[None]:
    """Refuse work after the deadline, and end this process when the deadline passes during the work.

    A hung client would hold its core for ever. Python itself may hang, so a thread of C code ends the process.

    Args:
        deadline: seconds since the epoch; the clocks of the machines must differ by less than the time given.
        context: context of this node; a process that also runs the server is not ended.
    """
    own_process = not context.node_config.get("in-process")
    if (left := deadline - time.time()) <= 0:
        raise Declined("was asked too late")
    if own_process:
        faulthandler.dump_traceback_later(
            min(left, _LONGEST_S) + _AFTER_DEADLINE_S, exit=True, file=sys.__stderr__ or sys.stderr
        )
    try:
        yield
    finally:
        if own_process:
            faulthandler.cancel_dump_traceback_later()
