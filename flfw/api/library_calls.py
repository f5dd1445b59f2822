"""Conditions under which a program calls the library: errors of one line, and nothing changed behind its back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flfw.terminal.exit_code import from_machine, set_environment

_LOGGERS = ("flwr", "ray")

__all__ = ["library_call", "set_environment"]


@contextmanager
def library_call() -> Iterator[None]:
    """Give back the levels of Flower's and Ray's loggers, and raise errors of the disk and of paths as the project's.

    Raises:
        BadInput: a path cannot be what is asked of it.
        RunFailed: the disk is full or read-only.
    """
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    try:
        yield
    except OSError as error:
        if (known := from_machine(error)) is None:
            raise
        raise known from error
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
