"""Software of the nodes of a cluster: an actor on a node with other versions could give other numbers."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from flfw.errors import InputError

_PACKAGES = ("flfw", "flwr", "torch", "numpy")  # Ray itself refuses other versions of Ray and Python's minor version


@cache
def versions() -> dict[str, str]:
    """List the versions of Python and of the packages on which numbers depend, in this process."""
    return {"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def check_software(there: Mapping[str, str], host: str) -> None:
    """Refuse a node whose versions are not this process's.

    Args:
        there: the versions on the node.
        host: the node's address.

    Raises:
        InputError: one differs.
    """
    for name, here in versions().items():
        if there.get(name) != here:
            raise InputError(f"Expected {name} {here} on every node, as here; got {there.get(name)} on {host}.")
