"""Roster of a run's clients: their nodes, their answers, their failures, and the clients that are left out.

The nodes of a simulation are not stored: they follow from the clients' numbers.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeVar, final

from flwr.app import Message, RecordDict

from flfw.errors import DIED, RunError
from flfw.messages.reasons import UnusableReplyError
from flfw.messages.streaming import GRACE_S

T = TypeVar("T")


@dataclass(frozen=True)
class FailurePolicy:
    """Rules for the failures in a run.

    Attributes:
        on_failure: ``fail``: a failed client ends the run; ``drop``: it is dropped from the round.
        min_clients: least number of usable updates in a round, >= 1; fewer end the run.
        deadline: seconds that clients have for a round.
        replaces_the_dead: whether the engine starts a new process for one that died. If it does not, it also sends
            all other clients to the dead process, so a death ends the run.
    """

    on_failure: Literal["fail", "drop"] = "fail"
    min_clients: int = 1
    deadline: float = 3600.0
    replaces_the_dead: bool = True


@dataclass(frozen=True)
class Failure:
    """Failure of one client, which gave nothing usable.

    Attributes:
        client: partition of the client; -1 if unknown.
        reason: one line of text.
    """

    client: int
    reason: str

    def __str__(self) -> str:
        return f"{f'client {self.client}' if self.client >= 0 else 'a client'}: {self.reason}"


@final
class NumberedNodes(Mapping[int, int]):
    """Nodes by client, where client i is node i + 1; nothing is stored for each of them.

    Args:
        clients: number of clients.

    >>> nodes = NumberedNodes(3)
    >>> dict(nodes), nodes.client_of(3), nodes.client_of(4)
    ({0: 1, 1: 2, 2: 3}, 2, -1)
    """

    def __init__(self, clients: int) -> None:
        self._clients = range(clients)

    def __getitem__(self, client: int) -> int:
        if client not in self._clients:
            raise KeyError(client)
        return client + 1

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def clients(self) -> range:
        """Clients, ascending."""
        return self._clients

    def client_of(self, node: int) -> int:
        """Return the client of a node; -1: it is nobody's."""
        return node - 1 if node - 1 in self._clients else -1


class ClientDirectory:
    """Roster of a run: the partitions' node ids in Flower, which are new in every run, and the failed clients.

    Args:
        tolerance: rules for clients that fail.

    Attributes:
        nodes: the node of each partition.
        unfit: clients that are not asked, with the reason.
    """

    def __init__(self, tolerance: FailurePolicy) -> None:
        self.tolerance = tolerance
        self.nodes: dict[int, int] | NumberedNodes = {}
        self.unfit: dict[int, str] = {}

    @property
    def everyone(self) -> Sequence[int]:
        """Clients, ascending."""
        return self.nodes.clients if isinstance(self.nodes, NumberedNodes) else sorted(self.nodes)

    def exclude(self, partition: int, reason: str) -> None:
        """Refuse a client: it is never asked, and counts as a failure in every round that draws it.

        Raises:
            RunError: the run does not tolerate failures.
        """
        self._note(Failure(partition, reason), "node assignment", [])
        self.unfit[partition] = reason

    def unfit_among(self, partitions: Iterable[int]) -> list[Failure]:
        """Return the failures of the clients that are not asked."""
        return [Failure(p, self.unfit[p]) for p in partitions if p in self.unfit]

    def address(self, partition: int, content: RecordDict, kind: str, group: str) -> Message:
        """Build a message to a client; Flower forgets it some time after the deadline."""
        ttl = self.tolerance.deadline + GRACE_S
        return Message(content, self.nodes[partition], kind, group_id=group, ttl=ttl)

    def receive(
        self,
        messages: Sequence[Message],
        replies: Iterable[Message],
        when: str,
        take: Callable[[Message], T],
        failed: list[Failure],
    ) -> Iterator[tuple[int, T]]:
        """Yield the usable replies to some messages, each with its client, ordered by client.

        Args:
            messages: the messages.
            replies: a list, or an iterator in the messages' order.
            when: name of the round or step, for messages about failures.
            take: function that reads one reply, and raises `UnusableReplyError` on one that cannot be used.
            failed: list to which failures and missing answers are added, if they do not end the run.

        Raises:
            RunError: a client failed, and the run does not tolerate it.
        """
        client_of = _clients(self.nodes)
        node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}  # a dead node's error names another
        answered: Counter[int] = Counter()

        until = {m.metadata.message_id: m.metadata.created_at + self.tolerance.deadline for m in messages}
        late = f"did not answer within {self.tolerance.deadline:g} s"

        def origin(reply: Message) -> int:
            node = node_of.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            return client_of(node)

        for reply in sorted(replies, key=origin) if isinstance(replies, Sequence) else replies:
            partition = origin(reply)
            answered[partition] += 1
            try:
                taken = take(reply)
            except UnusableReplyError as error:
                reason = str(error)
                if reason == DIED and self.tolerance.replaces_the_dead:  # a client ends itself after its deadline
                    over = until.get(reply.metadata.reply_to_message_id, inf)
                    reason = late if reply.metadata.created_at >= over else DIED
                self._note(Failure(partition, reason), when, failed)
            else:
                yield partition, taken
        for message in messages:
            partition = client_of(message.metadata.dst_node_id)
            answered[partition] -= 1
            if answered[partition] < 0:
                self._note(Failure(partition, late), when, failed)

    def drop(self, partition: int, reason: str, when: str, failed: list[Failure]) -> None:
        """Add the failure of a client whose answer could be read, but is not used.

        Raises:
            RunError: the run does not tolerate failures.
        """
        self._note(Failure(partition, reason), when, failed)

    def check_enough(self, usable: int, failed: Sequence[Failure], when: str, maximum: int | None = None) -> None:
        """Raise `RunError`, with the reasons, if too few clients, of ``maximum``, gave something usable."""
        minimum = self.tolerance.min_clients if maximum is None else min(self.tolerance.min_clients, maximum)
        if usable < minimum:
            reasons = "; ".join(map(str, failed)) or "nobody was asked"
            raise RunError(f"Expected at least {minimum} clients in {when}, got {usable}: {reasons}.")

    def _note(self, failure: Failure, when: str, failed: list[Failure]) -> None:
        hopeless = failure.reason == DIED and not self.tolerance.replaces_the_dead
        if self.tolerance.on_failure == "fail" or hopeless:
            who = f"client {failure.client}" if failure.client >= 0 else "a client"
            raise RunError(f"{who} failed in {when}: {failure.reason}")
        failed.append(failure)


def _clients(nodes: dict[int, int] | NumberedNodes) -> Callable[[int], int]:
    """Return a function that gives the client of a node; -1: it is nobody's."""
    if isinstance(nodes, NumberedNodes):
        return nodes.client_of
    clients = {node: client for client, node in nodes.items()}
    return lambda node: clients.get(node, -1)


def unforeseeable() -> dict[str, Any]:
    """Draw a scalar that makes the scalars of a message others than any before.

    A SuperLink keeps one object for each hash. Of scalars that can be foreseen, a client could leave an object there
    that is in the way when the message to another client is sent, and ends the run.
    """
    return {"nonce": secrets.token_hex(16)}
