"""Replies one at a time: a Grid that hands each on as soon as its turn comes, instead of all at the end."""

from __future__ import annotations

import sys
import time
from abc import ABC
from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from flfw.messages.pulling import ask_again_soon

GRACE_S = 60.0
"""How much longer a message lives than its answer is waited for: Flower breaks on asking for one it has let go."""
_POLL_S, _POLL_AT_MOST_S, _POLL_SHARE = 0.05, 0.5, 0.02  # of what was waited: a poll costs a server elsewhere time


class GridAround(Grid, ABC):
    """A Grid that passes everything on to another one; subclasses change how messages are exchanged.

    Args:
        grid: the Grid that does the work.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Pass on; see Flower's Grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """See Flower's Grid."""
        return self._grid.run

    def create_message(self, *args, **kwargs) -> Message:
        """Pass on; see Flower's Grid."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Pass on; see Flower's Grid."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Pass on; see Flower's Grid."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on; see Flower's Grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on; see Flower's Grid."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Pass on; see Flower's Grid."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class StreamingGrid(GridAround):
    """A Grid whose replies come in the order of their messages while later ones are still being worked on.

    Whoever sums them up then holds few at a time, and sums in the same order in every run.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        ask_again_soon(sys.modules[type(grid).__module__])

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send at once; the iterator waits for each reply in turn, and after the timeout (seconds) for none."""
        return self._in_order(list(self.push_messages(messages)), timeout)

    def _in_order(self, ids: list[str], timeout: float | None) -> Iterator[Message]:
        asked = time.monotonic()
        waiting, arrived = set(ids), {}
        for message_id in ids:
            while message_id not in arrived:
                for reply in self.pull_messages(waiting):
                    arrived[reply.metadata.reply_to_message_id] = reply
                waiting -= arrived.keys()
                waited = time.monotonic() - asked
                if message_id in arrived or (timeout is not None and waited > timeout):
                    break
                time.sleep(min(max(_POLL_S, _POLL_SHARE * waited), _POLL_AT_MOST_S))
            if message_id in arrived:
                yield arrived.pop(message_id)
