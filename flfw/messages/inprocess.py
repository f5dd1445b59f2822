"""A Grid that calls the ClientApp in this process, one message after the other: for tests, debugging and notebooks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from flfw.experiment import Scalar
from flfw.messages.streaming import GRACE_S

_CLIENT_APP_RAISED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION


class InProcessGrid(Grid):
    """Nodes 1 to ``clients``, node i holding partition i - 1.

    All clients are handed the same message content, as Flower's own simulation does: they must not change it.

    Args:
        app: the ClientApp.
        clients: how many nodes.
        run_config: what every client's Context holds.
        own: what the nodes' configs hold besides, a mapping for each, such as ``data-root`` of sites; empty: nothing.
    """

    def __init__(
        self, app: ClientApp, clients: int, run_config: dict[str, Scalar], sites: Sequence[Mapping[str, Scalar]] = ()
    ) -> None:
        self._app, self._run = app, Run.create_empty(run_id=1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
        self._contexts = {
            partition + 1: Context(
                run_id=1,
                node_id=partition + 1,
                node_config={**more, "partition-id": partition, "num-partitions": clients, "in-process": True},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for partition, more in zip(range(clients), sites or [{}] * clients, strict=True)
        }
        self._pending: dict[str, Message] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Have each message answered; an exception in a client comes back as an error reply, as on Ray."""
        ids = self.push_messages(messages)
        return [reply for message_id in ids for reply in self.pull_messages([message_id])]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep the messages until somebody asks for the replies."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            self._pending[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Take the reply to the earliest of these messages that nobody has asked for; nothing if it came too late.

        One at a time: all replies of a round at once would fill the memory.
        """
        wanted = set(message_ids)
        for message_id in list(self._pending):
            if message_id in wanted:
                message = self._pending.pop(message_id)
                reply = self._answer(message) if _in_time(message) else None
                return [reply] if reply is not None and _in_time(message) else []
        return []

    def _answer(self, message: Message) -> Message:
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # whatever a client raises is the client's failure, not the server's
            logging.getLogger("flwr").debug("a client raised", exc_info=error)
            return Message(Error(_CLIENT_APP_RAISED, str(error)), reply_to=message)

    def get_node_ids(self) -> list[int]:
        """List all nodes, ascending."""
        return list(self._contexts)

    @property
    def run(self) -> Run:
        """A placeholder: there is no SuperLink."""
        return self._run

    def set_run(self, run: Run) -> None:
        """Keep the run's description."""
        self._run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Write a message in Flower's deprecated way."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def _in_time(message: Message) -> bool:
    return time.time() < message.metadata.created_at + message.metadata.ttl - GRACE_S
