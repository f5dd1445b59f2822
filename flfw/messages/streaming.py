"""Replies one at a time: a Grid that returns each reply in turn, instead of all replies at the end."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from math import inf

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from flfw.messages.arrivals import SentMessage, is_remote
from flfw.messages.pulling import ask_again_soon

GRACE_S = 60.0
"""Seconds that a message lives after the wait for its reply has ended: Flower fails when asked for an expired one."""
_POLL_S, _POLL_AT_MOST_S, _POLL_SHARE = (
    0.05,
    0.5,
    0.02,
)  # share of the time waited so far: a poll costs a remote server time


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
    machines are fetched one by one and checked: see `flfw.messages.arrivals`.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        ask_again_soon(sys.modules[type(grid).__module__])
        self._remote = is_remote(grid)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send all messages at once; the iterator waits for each reply in turn, until the timeout (seconds) is over."""
        if not self._remote:
            ids = list(self.push_messages(messages))
            if isinstance(self._grid, WaitingGrid):
                return self._as_they_come(self._grid, ids, _end(timeout))
            return self._in_order(ids, timeout)
        asked = list(messages)
        self.push_messages(asked)
        until = _end(timeout)
        return self._one_by_one([SentMessage(message, until) for message in asked], until)

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
        asked = time.monotonic()
        waiting, arrived = set(ids), {}
        for message_id in ids:
            while message_id not in arrived:
                for reply in self.pull_messages(waiting):
                    arrived[reply.metadata.reply_to_message_id] = reply
                waiting.difference_update(arrived)
                waited = time.monotonic() - asked
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
