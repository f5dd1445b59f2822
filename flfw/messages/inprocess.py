"""Grid that calls the ClientApp in this process, one message at a time, and the base of all simulations' grids.

The first is for tests, debugging and notebooks. Clients of a simulation have nothing of their own but their numbers.
"""

import copy
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias, final
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from flfw.experiment import Scalar
from flfw.messages.message_packing import keep, keep_records
from flfw.messages.npy import made_late
from flfw.messages.reasons import words_of
from flfw.messages.streaming import GRACE_S

Asked: TypeAlias = tuple[Message, Context]
"""Message to a client, with the client's context."""


@final
@dataclass(frozen=True)
class MessageBatches:
    """Rule by which consecutive messages of one kind are answered together.

    The batches of a round depend on its messages alone, so every engine makes the same ones.

    Attributes:
        kind: type of the messages; others are answered one by one.
        size: most messages of a batch, >= 2.
        answer: function of the messages of a batch for the reply to each, or its failure.
    """

    kind: str
    size: int
    answer: Callable[[Sequence[Asked]], list[Message | Exception]]

    def divided(self, kinds: Sequence[str]) -> list[list[int]]:
        """Divide messages that were sent at once into batches, in their order; those of other kinds are left out.

        >>> MessageBatches("train", 2, list).divided(["train", "query", "train", "train"])
        [[0, 2], [3]]

        Args:
            kinds: the messages' types.

        Returns:
            The places of the messages of each batch.
        """
        chosen = [index for index, kind in enumerate(kinds) if kind == self.kind]
        return [chosen[start : start + self.size] for start in range(0, len(chosen), self.size)]


_CLIENT_APP_RAISED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION
FORCED = "forced-by-server"
"""Key of the configuration of a node whose server forces what the client writes to disk."""


class SimulatedGrid(Grid, ABC):
    """Grid of the nodes 1 to ``clients``, of which node i holds partition i - 1; subclasses exchange the messages.

    The nodes are known from the beginning, and there is no SuperLink. What a client tells of itself beside its number,
    its code, data and GPU, is that of the process that speaks for it.

    Args:
        clients: number of nodes.
        one_disk: whether clients and server write to one disk; then the server forces the clients' private state to
            it, once a round. The nodes are told by `FORCED` in their configuration.
    """

    def __init__(self, clients: int, one_disk: bool = False) -> None:
        self.one_disk = one_disk
        self._nodes, self._run = range(1, clients + 1), Run.create_empty(run_id=1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0  # a Message() asks for them

    @property
    @abstractmethod
    def representatives(self) -> Sequence[int]:
        """Nodes that speak for all together, one for each process; empty: each node is to be asked."""

    def get_node_ids(self) -> list[int]:
        """List all nodes, ascending."""
        return list(self._nodes)

    def get_nodes(self) -> list[NodeInfo]:
        """Describe all nodes; they have nothing but their numbers."""
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    @property
    def run(self) -> Run:
        """Placeholder of a run: there is no SuperLink."""
        return self._run

    def set_run(self, run: Run) -> None:
        """Keep the run's description."""
        self._run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Implement the deprecated `Grid.create_message`; new code uses ``Message(...)``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def has_one_disk(grid: Grid) -> bool:
    """Return whether the server is to force the files of a grid's clients to disk."""
    return isinstance(grid, SimulatedGrid) and grid.one_disk


def representatives(grid: Grid) -> Sequence[int]:
    """Return the nodes of a grid that speak for all; empty: each is to be asked."""
    return grid.representatives if isinstance(grid, SimulatedGrid) else ()


class InProcessGrid(SimulatedGrid):
    """Grid of the nodes 1 to ``clients``; node i holds partition i - 1.

    All clients get the same message content, as in Flower's own simulation: they must not change it.

    Args:
        app: the ClientApp.
        clients: number of nodes.
        run_config: the run configuration in every client's Context.
        sites: additional node configuration of each node, such as ``data-root`` of its site; empty: none.
        introduced: whether the app answers queries by a `ClientInfo`; then one node is asked for all, and a Context
            is kept only for nodes for which the app keeps anything in it. Only without ``sites``.
        one_disk: see `SimulatedGrid`.
        batches: how some messages are answered together; None: each is answered by itself.
        late: whether who asks for a reply reads its tensors before the next is asked for; then they are not copied.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        run_config: dict[str, Scalar],
        sites: Sequence[Mapping[str, Scalar]] = (),
        *,
        introduced: bool = False,
        one_disk: bool = False,
        batches: MessageBatches | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(clients, one_disk)
        if introduced and sites:
            raise ValueError("Expected sites without introduced, as each site tells something else of itself.")
        self._app, self._clients, self._run_config, self._introduced = app, clients, run_config, introduced
        self._batches, self._late = batches, late
        each = [] if introduced else zip(self._nodes, sites or [{}] * clients, strict=True)
        self._contexts = {node: self._new_context(node, more) for node, more in each}
        self._pending: dict[str, Message] = {}
        self._together: dict[str, list[str]] = {}  # for each message of a batch the ids of all of them
        self._answered: dict[str, Message] = {}
        self._missed: set[str] = set()  # messages whose replies came too late

    @property
    def representatives(self) -> Sequence[int]:
        """Implement `SimulatedGrid.representatives`: all nodes are in this process."""
        return (1,) if self._introduced else ()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies; an exception of a client becomes an error reply, as on Ray."""
        ids = self.push_messages(messages)
        replies: list[Message] = []
        for message_id in ids:
            for reply in self.pull_messages([message_id]):
                keep(reply)  # nobody reads it before the others are asked
                replies.append(reply)
        return replies

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep the messages until `pull_messages` asks for the replies."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            self._pending[ids[-1]] = message
        kinds = [self._pending[one].metadata.message_type for one in ids]
        for indices in self._batches.divided(kinds) if self._batches else []:
            members = [ids[index] for index in indices]
            self._together |= dict.fromkeys(members, members)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the reply to the earliest pending one of these messages; an empty list if it came too late.

        It returns one reply per call: all replies of a round at once would fill the memory.
        """
        wanted = message_ids if isinstance(message_ids, set) else set(message_ids)
        if (message_id := next((one for one in self._pending if one in wanted), None)) is None:
            return []
        self._answer_with(message_id)
        message, reply = self._pending.pop(message_id), self._answered.pop(message_id, None)
        if reply is None or not _in_time(message):
            self._missed.add(message_id)
            return []
        if not self._missed.isdisjoint(wanted):  # who waits for an earlier reply reads this one later
            keep(reply)
        return [reply]

    def _answer_with(self, message_id: str) -> None:
        """Answer a message and all of its batch that are not too late, unless that was done."""
        if message_id in self._answered:
            return
        members = self._together.get(message_id, [message_id])
        for one in members:
            self._together.pop(one, None)
        requested = [message for one in members if _in_time(message := self._pending[one])]
        for message, reply in zip(requested, self._answers(requested), strict=True):
            self._answered[message.metadata.message_id] = reply

    def _answers(self, messages: list[Message]) -> list[Message]:
        known = all(message.metadata.dst_node_id in self._nodes for message in messages)
        if not self._batches or len(messages) < 2 or not known:
            return [self._answer(message) for message in messages]
        contexts = [self._context(message.metadata.dst_node_id) for message in messages]
        before = [copy.deepcopy(context.state) for context in contexts]
        replies = self._batches.answer(list(zip(messages, contexts, strict=True)))
        return [self._taken(*one) for one in zip(messages, contexts, before, replies, strict=True)]

    def _answer(self, message: Message) -> Message:
        """Let the app answer one message."""
        if (node := message.metadata.dst_node_id) not in self._nodes:
            return Message(Error(_CLIENT_APP_RAISED, f"there is no node {node}"), reply_to=message)
        context = self._context(node)
        before = copy.deepcopy(context.state)
        try:
            with made_late() if self._late else nullcontext():
                reply = self._app(message, context)
        except Exception as error:
            reply = error
        keep_records(context.state)  # until the client's next message
        return self._taken(message, context, before, reply)

    def _taken(self, message: Message, context: Context, before: RecordDict, reply: Message | Exception) -> Message:
        """Return a reply, or an exception as one: it is the client's failure, not the server's."""
        if isinstance(reply, Message):
            if self._introduced and len(context.state):
                self._contexts[context.node_id] = context
            return reply
        context.state = before  # as in Flower's engines, where a client that raised keeps nothing
        logging.getLogger("flwr").debug("a client raised", exc_info=reply)
        return Message(Error(_CLIENT_APP_RAISED, words_of(reply)), reply_to=message)

    def _context(self, node: int) -> Context:
        """Return the Context of a node; one that is not kept is made anew."""
        made = self._introduced and node not in self._contexts
        return self._new_context(node, {}) if made else self._contexts[node]

    def _new_context(self, node: int, more: Mapping[str, Scalar]) -> Context:
        return Context(
            run_id=1,
            node_id=node,
            node_config={
                **({FORCED: True} if self.one_disk else {}),
                **more,
                "partition-id": node - 1,
                "num-partitions": self._clients,
                "in-process": True,
            },
            state=RecordDict(),
            run_config=dict(self._run_config),
        )


def _in_time(message: Message) -> bool:
    return time.time() < message.metadata.created_at + message.metadata.ttl - GRACE_S
