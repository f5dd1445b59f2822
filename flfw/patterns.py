"""Patterns of tensor names, by which methods declare what is shared and sites what may leave; imports no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a tensor's name is among some patterns.

    >>> matches("hypernet.trunk.bias", ("hypernet.*",))
    True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)
