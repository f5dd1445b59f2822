"""The tensors that a method shares, and the check before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from flfw.nets.net import Tensors


class SharingViolation(RuntimeError):
    """A client was about to send a tensor that its method keeps private."""


def shared(tensors: Mapping[str, Tensor], patterns: Sequence[str]) -> Tensors:
    """The tensors whose names match one of the patterns, in their order."""
    return {name: value for name, value in tensors.items() if matches(name, patterns)}


def check_upload(names: Iterable[str], patterns: Sequence[str], method: str, partition: int) -> None:
    """Refuse to send what the method does not share; called on the client, with the client's own declaration.

    Raises:
        SharingViolation: naming the client, the tensor and what may be sent.
    """
    for name in names:
        if not matches(name, patterns):
            allowed = ", ".join(patterns) or "nothing"
            raise SharingViolation(f"client {partition} would send {name}, but {method} uploads only {allowed}")


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a tensor's name is among some patterns.

    >>> matches("hypernet.trunk.bias", ("hypernet.*",))
    True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)
