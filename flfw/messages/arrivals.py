"""Replies from a SuperLink, whose senders may lie in each byte.

Flower's Grid fetches all replies that have come at once: one that cannot be read would end the run, one whose parts
never come would hold the server beyond the round's deadline, and one that calls itself the answer to another client's
message would take that client's place. Here each is fetched alone, up to a size and a time.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, final

from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from flfw.messages.wire import nbytes

_BESIDE = 1_000_000  # bytes of an answer beside its tensors
_HEADER = 4096  # bytes of an array beside its numbers
_PULL, _INFLATE = "pull_objects", "inflate_object_from_contents"


class UnreadableReplyError(Exception):
    """Error of a reply that is no message, or a larger one than the question allows for."""


class Late(Exception):
    """Error of a reply whose parts have not come in time."""


@final
@dataclass(frozen=True)
class Bounds:
    """Bounds of one reply.

    Attributes:
        size: largest number of bytes of all its parts, and of all arrays made from them.
        until: time on the monotonic clock after which no part is waited for.
    """

    size: int
    until: float


@final
class SentMessage:
    """Message that was sent, as far as its reply is checked by it.

    Args:
        message: the message, sent or not yet.
        until: see `Bounds`.
    """

    def __init__(self, message: Message, until: float) -> None:
        arrays = list(message.content.array_records.values())
        uploads = sum(nbytes(record) + _HEADER * len(record) for record in arrays)  # no more than was sent
        self._bounds = Bounds(uploads + _BESIDE, until)
        self._envelope = remove_content_from_message(message)

    def reply_from(self, grid: Grid) -> Message | None:
        """Request the reply; None: it has not come. One that cannot be used becomes an error reply with the reason.

        Args:
            grid: a grid that `is_remote`.
        """
        try:
            with _bounded(self._bounds):
                replies = list(grid.pull_messages([self._envelope.metadata.message_id]))
        except Late:
            return None
        except UnreadableReplyError as error:
            return self._refusal(f"sent what cannot be read: {error}")
        if replies and replies[0].metadata.reply_to_message_id != self._envelope.metadata.message_id:
            return self._refusal("answered another message than it was sent")
        return replies[0] if replies else None

    def _refusal(self, reason: str) -> Message:
        return Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, reason), reply_to=self._envelope)


def is_remote(grid: Grid) -> bool:
    """Return whether a grid fetches the parts of messages from a SuperLink; if so, its replies are checked from now on.

    Only replies that a `SentMessage` fetches are checked.
    """
    module = sys.modules[type(grid).__module__]
    if not (hasattr(module, _PULL) and hasattr(module, _INFLATE)):
        return False
    _guard(module, _PULL, _pulled)
    _guard(module, _INFLATE, _inflated)
    return True


_BOUNDS: ContextVar[Bounds | None] = ContextVar("bounds", default=None)


@contextmanager
def _bounded(bounds: Bounds) -> Iterator[None]:
    token = _BOUNDS.set(bounds)
    try:
        yield
    finally:
        _BOUNDS.reset(token)


def _guard(module: ModuleType, name: str, guard: Callable[..., Any]) -> None:
    """Put a check around one of Flower's functions, once."""
    function = getattr(module, name)
    if getattr(function, "func", None) is not guard:
        setattr(module, name, partial(guard, function))


def _pulled(
    pull: Callable[..., dict[str, bytes]],
    object_ids: Sequence[str],
    pull_object_fn: Callable[[str], bytes],
    **how: Any,
) -> dict[str, bytes]:
    """Replace Flower's function that fetches the parts of a message."""
    if (bounds := _BOUNDS.get()) is None:
        return pull(object_ids, pull_object_fn, **how)
    lock, size = threading.Lock(), 0

    def counted(object_id: str) -> bytes:
        nonlocal size
        content = pull_object_fn(object_id)
        with lock:
            size += len(content)
        if size > bounds.size:
            raise UnreadableReplyError(f"more than the {bounds.size} bytes that an answer has at most")
        return content

    try:
        return pull(object_ids, counted, **{**how, "max_time": bounds.until - time.monotonic()})
    except ObjectPullError as error:
        if time.monotonic() > bounds.until:
            raise Late from error
        raise


def _inflated(inflate: Callable[..., Any], object_id: str, contents: dict[str, bytes], **how: Any) -> Any:
    """Replace Flower's function that makes a message of its parts, by classes that the parts name."""
    if (bounds := _BOUNDS.get()) is None:
        return inflate(object_id, contents, **how)
    try:
        if sum(_size_of_array(content, contents) for content in contents.values()) > bounds.size:
            raise UnreadableReplyError(f"arrays of more than the {bounds.size} bytes that an answer has at most")
        message = inflate(object_id, contents, **how)
    except UnreadableReplyError:
        raise
    except Exception as error:  # its sender chose which one
        raise UnreadableReplyError(type(error).__name__) from error
    if not isinstance(message, Message):
        raise UnreadableReplyError("no message")
    return message


def _size_of_array(content: bytes, contents: Mapping[str, bytes]) -> int:
    """Return the size of an array that a part describes: it may name one chunk many times; 0: it describes none."""
    kind, chunks, length = get_object_head_values_from_object_content(content)
    if kind != "Array":
        return 0
    places = json.loads(content[len(content) - length :])["arraychunk_ids"]
    return sum(len(contents[chunks[place]]) for place in places)
