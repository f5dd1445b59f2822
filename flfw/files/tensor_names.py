"""Names of tensors, and patterns of them."""

from collections.abc import Sequence
from fnmatch import fnmatchcase


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a tensor's name matches one of the patterns.

    >>> matches("hypernet.trunk.bias", ("hypernet.*",))
    True
    """
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
