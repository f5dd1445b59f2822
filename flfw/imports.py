"""Import of a user's own code by ``package.module:name``."""

from __future__ import annotations

import importlib
import re
from typing import Any

from flfw.errors import InputError

_NAME = re.compile(r"[\w.]+:\w+")


def imported(name: str, noun: str) -> Any:
    """Import a module and return its object of a name.

    Args:
        name: ``package.module:name``.
        noun: word for the object in messages, such as ``method``.

    Returns:
        The object; None: the module has nothing under this name.

    Raises:
        InputError: the name has another form, there is no such module, its import fails, or it is a program.
    """
    if not _NAME.fullmatch(name):  # a policy, which allows names of this form, could read another one otherwise
        raise InputError(f"Expected package.module:name, got {noun}={name}.")
    module_name, _, inside = name.partition(":")
    if "__main__" in module_name.split("."):  # its import would run it, with this program's arguments
        raise InputError(f"Expected an importable module for {noun}={name}, got a program.")
    try:
        module = importlib.import_module(module_name)
    except SystemExit as error:  # a program, not a module
        raise InputError(f"Expected an importable module for {noun}={name}, got a program that ended.") from error
    except Exception as error:  # somebody's own code, which may raise anything
        why = str(error) or type(error).__name__
        raise InputError(f"Expected an importable module for {noun}={name}, got: {why}.") from error
    return getattr(module, inside, None)
