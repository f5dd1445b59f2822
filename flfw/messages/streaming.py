"""Replies one at a time: a Grid that returns each reply in turn, instead of all replies at the end.

The senders of a SuperLink's replies may lie in each byte. Flower's Grid fetches all replies that have come at once: one
that cannot be read would end the run, one whose parts never come would hold the server beyond the round's deadline, and
one that calls itself the answer to another client's message would take that client's place. Here each is fetched alone,
up to a size and a time.
"""

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from math import inf
from types import ModuleType
from typing import Any, final

from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.run import Run

from flfw.messages.pulling import ask_again_soon
from flfw.messages.wire import nbytes

GRACE_S = 60.0
"""Seconds that a message lives after the wait for its reply has ended: Flower fails when asked for an expired one."""

# The share is of the time waited so far: a poll costs a remote server time.
_POLL_S, _POLL_AT_MOST_S, _POLL_SHARE = 0.05, 0.5, 0.02
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
            grid: a grid that `_is_remote`.
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


def _is_remote(grid: Grid) -> bool:
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
    pull: Callable[..., dict[str, bytes]], object_ids: Sequence[str], pull_object_fn: Callable[[str], bytes], **how: Any
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
    return sum(len(contents[chunks[index]]) for index in places)


class GridWrapper(Grid, ABC):
    """Grid that passes every call to another Grid; subclasses change how messages are exchanged.

    Args:
        grid: the Grid that receives the calls.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Implement `Grid.set_run`."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run of the inner Grid."""
        return self._grid.run

    def create_message(self, *args, **kwargs) -> Message:
        """Implement `Grid.create_message`."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Implement `Grid.get_node_ids`."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Implement `Grid.get_nodes`."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Implement `Grid.push_messages`."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Implement `Grid.pull_messages`."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Implement `Grid.send_and_receive`."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class WaitingGrid(Grid, ABC):
    """Grid that itself waits for the reply to one message, rather than being asked again and again."""

    @abstractmethod
    def reply_to(self, message_id: str, until: float) -> Message | None:
        """Wait for the reply to a pushed message and return it once.

        Args:
            message_id: id of the message.
            until: time on the monotonic clock; a reply that has come by then is returned also when it is over.

        Returns:
            The reply; None: it has not come, or the message has expired.
        """


class StreamingGrid(GridWrapper):
    """Grid that yields replies in the order of their messages, while clients still work on later messages.

    A sum over the replies then needs memory for few of them, and has the same order in every run. Replies from other
    machines are fetched one by one and checked: see `flfw.messages.streaming`.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        ask_again_soon(sys.modules[type(grid).__module__])
        self._remote = _is_remote(grid)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send all messages at once; the iterator waits for each reply in turn, until the timeout (seconds) is over."""
        if not self._remote:
            ids = list(self.push_messages(messages))
            if isinstance(self._grid, WaitingGrid):
                return self._as_they_come(self._grid, ids, _end(timeout))
            return self._in_order(ids, timeout)
        requests = list(messages)
        self.push_messages(requests)
        until = _end(timeout)
        return self._one_by_one([SentMessage(message, until) for message in requests], until)

    def _one_by_one(self, questions: list[SentMessage], until: float) -> Iterator[Message]:
        began = time.monotonic()
        for question in questions:
            while (reply := question.reply_from(self._grid)) is None and time.monotonic() <= until:
                time.sleep(_pause(time.monotonic() - began))
            if reply is not None:
                yield reply

    @staticmethod
    def _as_they_come(grid: WaitingGrid, ids: list[str], until: float) -> Iterator[Message]:
        for message_id in ids:
            if (reply := grid.reply_to(message_id, until)) is not None:
                yield reply

    def _in_order(self, ids: list[str], timeout: float | None) -> Iterator[Message]:
        requested = time.monotonic()
        waiting, arrived = set(ids), {}
        for message_id in ids:
            while message_id not in arrived:
                for reply in self.pull_messages(waiting):
                    arrived[reply.metadata.reply_to_message_id] = reply
                waiting.difference_update(arrived)
                waited = time.monotonic() - requested
                if message_id in arrived or (timeout is not None and waited > timeout):
                    break
                time.sleep(_pause(waited))
            if message_id in arrived:
                yield arrived.pop(message_id)


def _end(timeout: float | None) -> float:
    """Return the time on the monotonic clock at which a timeout that begins now is over."""
    return inf if timeout is None else time.monotonic() + timeout


def _pause(waited: float) -> float:
    """Return the seconds until replies are looked for again."""
    return min(max(_POLL_S, _POLL_SHARE * waited), _POLL_AT_MOST_S)
