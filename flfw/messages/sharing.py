"""The tensors that a method shares, and the two checks on the client: of all that enters and of all that leaves.

Free of torch, for a site's guard checks names in a process that does without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias, final

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from flfw.nets.net import Tensors

Form: TypeAlias = tuple[str, tuple[int, ...]]
"""A tensor's type and shape, as ``("float32", (10, 128))``."""

_NAMED = 4  # patterns that a refusal lists; a method may share hundreds of names


class SharingViolation(RuntimeError):
    """A client would have sent a private tensor, or was told to take over one that its method does not download."""


@dataclass(frozen=True)
class Sharing:
    """The tensors that cross, by patterns of their names; a plain name is a pattern, too.

    Attributes:
        downloads: those the server sends. All others are the client's own.
        uploads: those a client may send, all of them among the downloads.
    """

    downloads: tuple[str, ...]
    uploads: tuple[str, ...]


@final
@dataclass(frozen=True)
class Border:
    """The only way into a client and out of it, for training, probes and every other message alike.

    A client builds it from its own copy of the method, so nothing that a server says can widen it.

    Attributes:
        client: its number.
        method: the name of what it takes part in, for refusals.
        sharing: the tensors that may cross.
        forms: of all tensors of the model, by name.
        parts: names that stand for some of the uploads on the wire, where these travel in another form.
    """

    client: int
    method: str
    sharing: Sharing
    forms: Mapping[str, Form]
    parts: tuple[str, ...] = ()

    def enter(self, received: Mapping[str, np.ndarray]) -> None:
        """Refuse a message that brings anything but the method's downloads, all of them, in their types and shapes.

        Raises:
            SharingViolation: naming the client, the tensor and what may be sent to it.
        """
        who = f"client {self.client} was"
        for name, value in received.items():
            self._require_shared(name, self.sharing.downloads, f"{who} sent {name}", "downloads")
            expected, got = _written(self.forms[name]), _written((str(value.dtype), value.shape))
            if expected != got:
                raise SharingViolation(f"{who} sent {name} as {got}, but {self.method} downloads it as {expected}")
        for name in self.forms:
            if name not in received and matches(name, self.sharing.downloads):
                raise SharingViolation(f"{who} not sent {name}, which {self.method} downloads")

    def leave(self, sent: Mapping[str, Tensor]) -> None:
        """Refuse to send anything but the method's uploads.

        Raises:
            SharingViolation: naming the client, the tensor and what may be sent.
        """
        for name in sent:
            if name not in self.parts:
                refused = f"client {self.client} would send {name}"
                self._require_shared(name, self.sharing.uploads, refused, "uploads")

    def _require_shared(self, name: str, patterns: Sequence[str], refused: str, verb: str) -> None:
        if not matches(name, patterns):
            raise SharingViolation(f"{refused}, but {self.method} {verb} only {listed(patterns)}")
        if name not in self.forms:
            raise SharingViolation(f"{refused}, but the model of {self.method} has no such tensor")


def shared(tensors: Mapping[str, Tensor], patterns: Sequence[str]) -> Tensors:
    """Choose the tensors whose names match one of the patterns, in their order."""
    return {name: value for name, value in tensors.items() if matches(name, patterns)}


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a tensor's name is among some patterns.

    >>> matches("hypernet.trunk.bias", ("hypernet.*",))
    True
    """
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def listed(patterns: Sequence[str]) -> str:
    """Name patterns for a refusal; of many the first.

    >>> listed(("extractor.*", "classifier.bias"))
    'extractor.*, classifier.bias'
    >>> listed("abcdef"), listed(())
    ('a, b, c, d and 2 more', 'nothing')
    """
    more = f" and {len(patterns) - _NAMED} more" if len(patterns) > _NAMED else ""
    return ", ".join(patterns[:_NAMED]) + more or "nothing"


def _written(form: Form) -> str:
    return f"{form[0]}{form[1]}"
