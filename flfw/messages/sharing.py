"""Sharing of tensors: the names that a method shares, and the client's checks of received and sent messages.

This module does not import torch: a site's guard checks names in a process without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias, final

from flfw.errors import InputError, OneLine, abridged
from flfw.files.tensor_names import matches

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from flfw.nets.net import Tensors

Form: TypeAlias = tuple[str, tuple[int, ...]]
"""Type and shape of a tensor, such as ``("float32", (10, 128))``."""

_NAMED = 4  # patterns that an error message lists; a method may share hundreds of names


class SharingViolationError(OneLine, RuntimeError):
    """Error of a client: what it was sent, or would send, does not fit the method, or names a state that it lacks."""


@dataclass(frozen=True)
class Sharing:
    """Names of the downloaded and uploaded tensors, as patterns; a plain name is also a pattern.

    Attributes:
        downloads: tensors that the server sends. All other tensors are the client's own.
        uploads: tensors that a client may send; a subset of the downloads.
    """

    downloads: tuple[str, ...]
    uploads: tuple[str, ...]

    def __post_init__(self) -> None:
        for kind, patterns in vars(self).items():  # each letter of a string would be a pattern
            if isinstance(patterns, str):
                raise InputError(f'Expected {kind} as a tuple of patterns, such as ("{patterns}",), got "{patterns}".')


@final
@dataclass(frozen=True)
class MessageValidator:
    """Check of the tensors of each message that a client answers, and of its reply: training, probes and evaluation.

    A client builds it from its own copy of the method, so no message widens it; for an audit's fresh controls it allows
    all tensors.

    Attributes:
        client: number of the client.
        method: name of the method, for error messages.
        sharing: the tensors that may be received and sent.
        forms: type and shape of every tensor of the model, by name.
        factor_names: names of the tensors that replace some uploads in a message, for example factors.
    """

    client: int
    method: str
    sharing: Sharing
    forms: Mapping[str, Form]
    factor_names: tuple[str, ...] = ()

    def check_received(self, received: Mapping[str, np.ndarray]) -> None:
        """Refuse a message unless it holds exactly the method's downloads, with their types and shapes, all finite.

        A step from NaN would be stored as the client's private state and be sent as its own failure.

        Raises:
            SharingViolationError: names the client, the tensor and the allowed downloads.
        """
        who = f"client {self.client} was"
        for name, value in received.items():
            self._require_shared(name, self.sharing.downloads, f"{who} sent {name}", "downloads")
            expected, got = _written(self.forms[name]), _written((str(value.dtype), value.shape))
            if expected != got:
                raise SharingViolationError(f"{who} sent {name} as {got}, but {self.method} downloads it as {expected}")
            if not _is_finite(value):
                raise SharingViolationError(f"{who} sent {name} with NaN or infinite values")
        for name in self.forms:
            if name not in received and matches(name, self.sharing.downloads):
                raise SharingViolationError(f"{who} not sent {name}, which {self.method} downloads")

    def check_sent(self, sent: Mapping[str, Tensor]) -> None:
        """Refuse to send tensors whose names are not the method's uploads, or the factors in their place.

        Forms and values are not checked here: whoever reads them checks these (`flfw.messages.replies.read_update`),
        and a site's policy what leaves it (`flfw.deploy.policy.Policy.reply_rejection`).

        Raises:
            SharingViolationError: names the client, the tensor and the allowed uploads.
        """
        for name in sent:
            if name not in self.factor_names:
                self._require_shared(name, self.sharing.uploads, f"client {self.client} would send {name}", "uploads")

    def _require_shared(self, name: str, patterns: Sequence[str], refused: str, verb: str) -> None:
        if not matches(name, patterns):
            raise SharingViolationError(f"{refused}, but {self.method} {verb} only {listed(patterns)}")
        if name not in self.forms:
            raise SharingViolationError(f"{refused}, but the model of {self.method} has no such tensor")


def select_shared(tensors: Mapping[str, Tensor], patterns: Sequence[str]) -> Tensors:
    """Choose the tensors whose names match one of the patterns; keep their order."""
    return {name: value for name, value in tensors.items() if matches(name, patterns)}


def listed(patterns: Sequence[str]) -> str:
    """List patterns for an error message; of a long list only the first ones.

    >>> listed(("extractor.*", "classifier.bias"))
    'extractor.*, classifier.bias'
    >>> listed("abcdef"), listed(())
    ('a, b, c, d and 2 more', 'nothing')
    """
    return abridged(patterns, _NAMED) or "nothing"


def _is_finite(value: np.ndarray) -> bool:
    """Return whether an array has neither NaN nor infinite values.

    The sum of squares tells in an eighth of the time, unless it overflows; then the ends do.
    """
    from numpy import errstate  # imported here, because a site's guard checks names alone

    if value.dtype.kind != "f" or not value.size:
        return True
    flat = value.ravel(order="K")
    with errstate(over="ignore", invalid="ignore"):
        squares = float(flat.dot(flat))
    return isfinite(squares) or (isfinite(value.min()) and isfinite(value.max()))


def _written(form: Form) -> str:
    return f"{form[0]}{form[1]}"
