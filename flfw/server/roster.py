"""Roster of a run's clients: their nodes, their answers, and the clients that are left out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from flfw.errors import DIED, RunFailed
from flfw.messages.introduction import Introduction
from flfw.messages.plain_words import shown
from flfw.messages.replies import Unusable
from flfw.messages.streaming import GRACE_S
from flfw.server.faults import Failure, Tolerance

ENROLMENT_S = 300.0
_NODES_S = 120.0

T = TypeVar("T")


class Roster:
    """Roster of a run: the partitions' node ids in Flower, which are new in every run, and the failed clients.

    Args:
        tolerance: rules for clients that fail.

    Attributes:
        nodes: the node of each partition.
        unfit: clients that are not asked, with the reason.
    """

    def __init__(self, tolerance: Tolerance) -> None:
        self.tolerance = tolerance
        self.nodes: dict[int, int] = {}
        self.unfit: dict[int, str] = {}
        self._labels: tuple[int, str] | None = None  # class names that most clients have, and the first of these

    def enrol(self, grid: Grid, clients: int, registered: Mapping[int, int] | None = None) -> list[Introduction]:
        """Wait for all nodes and ask each which partition it holds.

        Args:
            grid: Flower's grid.
            clients: number of clients.
            registered: the client whose key a node holds, by node; a node that says otherwise is left out. None: not
                known.

        Returns:
            Each node's introduction, ordered by partition.

        Raises:
            RunFailed: fewer nodes than clients after two minutes, or two nodes with one partition, and the run does not
                tolerate failures; or there is no node at all.
        """
        ids = self._wait_for_nodes(grid, clients)
        answers, silent = _introductions(grid, ids)
        registered = registered or {}
        node_of = {client: node for node, client in registered.items()}
        for node, answer in list(answers.items()):  # some registrations may not be known here
            mine, holder = registered.get(node, answer.partition), node_of.get(answer.partition, node)
            if (mine, holder) != (answer.partition, node):
                silent[node] = f"says that it is client {answer.partition}, and holds another key"
                del answers[node]
        named: dict[int, list[int]] = {}
        for node, answer in answers.items():
            named.setdefault(answer.partition, []).append(node)
        if self.tolerance.on_failure == "fail" and any(p >= clients or len(nodes) > 1 for p, nodes in named.items()):
            partitions = sorted([answer.partition for answer in answers.values()])
            raise RunFailed(f"Expected partitions 0 to {clients - 1}, got {partitions} from {len(ids)} nodes.")
        self.nodes = {p: nodes[0] for p, nodes in named.items() if p < clients and len(nodes) == 1}
        reasons = [f"says that it is client {p} of {clients}" for p in named if p >= clients]
        reasons = [*silent.values(), *reasons] or [f"did not join within {_NODES_S:.0f} s"]
        for partition in sorted(set(range(clients)) - set(self.nodes)):
            # Which silent node would have been this client is not known; it needs a node that is no other client's.
            self.nodes[partition] = -1 - partition
            claims = len(named.get(partition, ()))
            reason = f"{claims} nodes say that they are it" if claims else "; ".join(dict.fromkeys(reasons))
            if partition in node_of:
                reason = silent.get(node_of[partition], f"did not join within {_NODES_S:.0f} s")
            self.refuse(partition, reason)
        fit = sorted(
            (a for a in answers.values() if a.partition not in self.unfit and a.partition < clients), key=_place
        )
        self._labels = _usual_labels(fit)
        return fit

    def _wait_for_nodes(self, grid: Grid, clients: int) -> list[int]:
        """Wait for all nodes; after a time, those that have joined are enough if the run tolerates failures."""
        deadline = time.monotonic() + _NODES_S
        while len(ids := list(grid.get_node_ids())) < clients:
            if time.monotonic() > deadline:
                if ids and self.tolerance.on_failure == "drop":
                    return ids
                missing = f"Expected {clients} clients, got {len(ids)} after {_NODES_S:.0f} s"
                raise RunFailed(f"{missing}; start as many SuperNodes (num-supernodes={clients} in a simulation).")
            time.sleep(0.1)
        return ids

    def refuse(self, partition: int, reason: str) -> None:
        """Refuse a client: it is never asked, and counts as a failure in every round that draws it.

        Raises:
            RunFailed: the run does not tolerate failures.
        """
        self._note(Failure(partition, reason), "enrolment", [])
        self.unfit[partition] = reason

    def refuse_other_data(self, answer: Introduction, shape: Sequence[int], classes: int) -> None:
        """Refuse a client whose data do not fit the run's model; see `refuse`.

        Args:
            answer: the client's introduction.
            shape: shape of the server's inputs, (C, H, W) or (d,).
            classes: the server's number of classes.
        """
        expected, actual = _kind(shape, classes), _kind(answer.shape, answer.classes)
        if answer.trouble:
            self.refuse(answer.partition, answer.trouble)
        elif actual != expected:
            self.refuse(answer.partition, f"holds data of {actual}, the server of {expected}; give both the same")
        else:
            self._refuse_other_labels(answer.partition, answer.labels)

    def _refuse_other_labels(self, partition: int, labels: str) -> None:
        """Refuse a client whose class names differ from the usual ones: its labels would mean other classes."""
        first, known = self._labels = self._labels or (partition, labels)
        if labels != known:
            other = f"names its classes otherwise than client {first}; give their folders the same names at every site"
            self.refuse(partition, other)

    def unfit_among(self, partitions: Iterable[int]) -> list[Failure]:
        """Return the failures of the clients that are not asked."""
        return [Failure(p, self.unfit[p]) for p in partitions if p in self.unfit]

    def address(self, partition: int, content: RecordDict, kind: str, group: str) -> Message:
        """Build a message to a client; Flower forgets it some time after the deadline."""
        ttl = self.tolerance.deadline + GRACE_S
        return Message(content, self.nodes[partition], kind, group_id=group, ttl=ttl)

    def receive(
        self,
        asked: Sequence[Message],
        replies: Iterable[Message],
        when: str,
        take: Callable[[Message], T],
        failed: list[Failure],
    ) -> Iterator[tuple[int, T]]:
        """Yield the usable replies to some messages, each with its client, ordered by client.

        Args:
            asked: the messages.
            replies: a list, or an iterator in the messages' order.
            when: name of the round or step, for messages about failures.
            take: function that reads one reply, and raises `Unusable` on one that cannot be used.
            failed: list to which failures and missing answers are added, if they do not end the run.

        Raises:
            RunFailed: a client failed, and the run does not tolerate it.
        """
        partition_of = {node: partition for partition, node in self.nodes.items()}
        node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in asked}  # a dead node's error names another
        waiting = [partition_of[m.metadata.dst_node_id] for m in asked]

        until = {m.metadata.message_id: m.metadata.created_at + self.tolerance.deadline for m in asked}
        late = f"did not answer within {self.tolerance.deadline:g} s"

        def origin(reply: Message) -> int:
            node = node_of.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            return partition_of.get(node, -1)

        for reply in sorted(replies, key=origin) if isinstance(replies, Sequence) else replies:
            partition = origin(reply)
            if partition in waiting:
                waiting.remove(partition)
            try:
                taken = take(reply)
            except Unusable as error:
                reason = shown(str(error))
                if reason == DIED and self.tolerance.replaces_the_dead:  # a client ends itself after its deadline
                    over = until.get(reply.metadata.reply_to_message_id, inf)
                    reason = late if reply.metadata.created_at >= over else DIED
                self._note(Failure(partition, reason), when, failed)
            else:
                yield partition, taken
        for partition in waiting:
            self._note(Failure(partition, late), when, failed)

    def check_enough(self, usable: int, failed: Sequence[Failure], when: str) -> None:
        """Raise `RunFailed`, with the reasons, if too few clients gave something usable."""
        if usable < self.tolerance.min_clients:
            reasons = "; ".join(map(str, failed)) or "nobody was asked"
            raise RunFailed(
                f"Expected at least {self.tolerance.min_clients} clients in {when}, got {usable}: {reasons}."
            )

    def _note(self, failure: Failure, when: str, failed: list[Failure]) -> None:
        hopeless = failure.reason == DIED and not self.tolerance.replaces_the_dead
        if self.tolerance.on_failure == "fail" or hopeless:
            who = f"client {failure.client}" if failure.client >= 0 else "a client"
            raise RunFailed(f"{who} failed in {when}: {failure.reason}")
        failed.append(failure)


def unforeseeable() -> dict[str, Any]:
    """Draw a scalar that makes the scalars of a message others than any before.

    A SuperLink keeps one object for each hash. Of scalars that can be foreseen, a client could leave an object there
    that is in the way when the message to another client is sent, and ends the run.
    """
    return {"nonce": secrets.token_hex(16)}


def _kind(shape: Sequence[int], classes: int) -> str:
    return f"{classes} classes and {'x'.join(map(str, shape))} inputs"


def _introductions(grid: Grid, ids: Sequence[int]) -> tuple[dict[int, Introduction], dict[int, str]]:
    """Ask nodes for their introductions; return these, and why other nodes have none, by node."""
    asked = [Message(RecordDict({"asked": ConfigRecord(unforeseeable())}), node, "query") for node in ids]
    answers: dict[int, Introduction] = {}
    silent = dict.fromkeys(ids, f"did not answer within {ENROLMENT_S:g} s")
    replies = grid.send_and_receive(asked, timeout=ENROLMENT_S)
    node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in asked}  # sending gives a message its id
    for reply in replies:
        node = node_of.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
        try:
            answers[node] = Introduction.from_message(reply)
        except Unusable as error:
            silent[node] = str(error)
        else:
            silent.pop(node, None)
    return answers, silent


def _usual_labels(answers: Sequence[Introduction]) -> tuple[int, str] | None:
    """Return the class names of most clients, with the first of these: a single client that lies refuses no other."""
    known = [answer.labels for answer in answers if not answer.trouble]
    if not known:
        return None
    usual = max(dict.fromkeys(known), key=known.count)
    return next(answer.partition for answer in answers if answer.labels == usual and not answer.trouble), usual


def _place(answer: Introduction) -> int:
    return answer.partition
