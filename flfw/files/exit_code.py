"""Exit codes of the command line for bad input and for failed runs."""

import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flfw.errors import InputError, RunError, printable

_MACHINES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of a machine's disk, of which a traceback tells a user nothing."""

_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
"""Errors of a path that cannot be what is asked of it."""


class Terminated(KeyboardInterrupt):
    """Interrupt by SIGTERM, which schedulers, ``timeout`` and systemd send; everything ends as by Ctrl-C."""


def exit_code(program: str, do: Callable[[], int]) -> int:
    """Run a program's task, and return its exit code; an error is one line on stderr.

    Args:
        program: name of the program.
        do: the task; returns 0 or another exit code.

    Returns:
        The code of the task; 2 for bad input and for a path that cannot be, 1 for a failure or a full or read-only
        disk, 130 for an interrupt, 141 where nobody reads its output on, 143 for SIGTERM. Under SIGTERM a simulation
        on Ray ends by Ray's own handler, with another code.
    """
    set_environment()
    try:
        with _terminable():
            code = do()
        sys.stdout.flush()
        return code
    except (InputError, RunError) as error:
        message, code = str(error), 2 if isinstance(error, InputError) else 1
    except SyntaxError as error:  # of a plug-in that is half written
        message, code = f"Expected Python in {error.filename}, got {error.msg} in line {error.lineno}; mend it.", 2
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _unread():
            return 128 + signal.SIGPIPE
        if (known := from_machine(error)) is None:
            raise
        message, code = str(known), 2 if isinstance(known, InputError) else 1
    except Terminated:
        message, code = "terminated", 128 + signal.SIGTERM
    except KeyboardInterrupt:
        message, code = "interrupted", 128 + signal.SIGINT
    print(f"{program}: {printable(message)}", file=sys.stderr)
    return code


def set_environment() -> None:
    """Set variables that Flower and torch read at their import, unless the caller has set them."""
    # A privacy tool must send no telemetry.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    # Torch's threads spin while they wait for each other, which makes an attack beside another busy process very slow.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def from_machine(error: OSError) -> InputError | RunError | None:
    """Return an error of a machine's disk or of a path as one of the project's; None: it is another one."""
    if error.errno not in (*_MACHINES, *_PATHS):
        return None
    kind = InputError if error.errno in _PATHS else RunError
    return kind(f"{error.strerror}: {error.filename or 'a file'}")


def _unread() -> bool:
    """Return whether the reader of stdout, such as ``head``, has gone; the rest of the output is dropped then."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file
        return False
    poll = select.poll()
    poll.register(output, 0)
    gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), output)
    return gone


@contextmanager
def _terminable() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM would end the process at once; a handler of the caller's own stays."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(_signal: int, _frame: object) -> None:
    raise Terminated
