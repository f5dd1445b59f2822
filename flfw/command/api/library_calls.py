"""Conditions under which a program calls the library: errors of one line, and nothing changed behind its back."""

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from flfw.files.exit_code import from_machine, set_environment

_WIDGETS = "ray.widgets"
_LOGGERS = ("flwr", "ray", _WIDGETS)
_TURN = threading.RLock()
"""Lock of the call whose turn it is: generators, loggers and the site of clients are of the whole process."""

__all__ = ["library_call", "set_environment"]


@contextmanager
def library_call() -> Iterator[None]:
    """Give back loggers' levels and the handler of SIGTERM, and raise errors of the disk and of paths as the project's.

    Calls from several threads take turns.

    Raises:
        InputError: a path cannot be what is asked of it.
        RunError: the disk is full or read-only.
    """
    with _TURN:
        handler = signal.getsignal(signal.SIGTERM)
        levels = {name: logging.getLogger(name).level for name in _LOGGERS}
        logging.getLogger(_WIDGETS).setLevel(logging.ERROR)  # Ray and tqdm ask for widgets in a notebook; lines will do
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "IProgress not found")
                yield
        except OSError as error:
            if (known := from_machine(error)) is None:
                raise
            raise known from error
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and handler is not None and signal.getsignal(signal.SIGTERM) is not handler:
                signal.signal(signal.SIGTERM, handler)  # Ray's would end the caller's program
