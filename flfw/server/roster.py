"""The clients as the server knows them: the node of each, their answers, and those that are left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flfw.errors import DIED, RunFailed
from flfw.messages.replies import Unusable, in_one_line
from flfw.messages.streaming import GRACE_S
from flfw.server.faults import Failure, Tolerance

ENROLMENT_S = 300.0
_NODES_S = 120.0

T = TypeVar("T")


class Roster:
    """The clients: maps partitions to Flower's node ids, new in every run, and deals with failures by its tolerance.

    Args:
        tolerance: what becomes of clients that fail.

    Attributes:
        nodes: the node of each partition.
        unfit: clients that are not asked, with the reason.
    """

    def __init__(self, tolerance: Tolerance) -> None:
        self.tolerance = tolerance
        self.nodes: dict[int, int] = {}
        self.unfit: dict[int, str] = {}
        self._labels: tuple[int, str] | None = None  # of the first client whose data fit

    def enrol(self, grid: Grid, clients: int) -> list[dict[str, Any]]:
        """Wait for all nodes and ask each which partition it holds.

        Returns:
            What each node said of itself, by partition.

        Raises:
            RunFailed: fewer nodes than clients after two minutes, or two nodes with one partition.
        """
        deadline = time.monotonic() + _NODES_S
        while len(ids := list(grid.get_node_ids())) < clients:
            if time.monotonic() > deadline:
                missing = f"Expected {clients} clients, got {len(ids)} after {_NODES_S:.0f} s"
                raise RunFailed(f"{missing}; start as many SuperNodes (num-supernodes={clients} in a simulation).")
            time.sleep(0.1)
        asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in ids]
        answers: list[dict[str, Any]] = []
        silent: dict[int, str] = dict.fromkeys(ids, f"did not answer within {ENROLMENT_S:g} s")
        replies = grid.send_and_receive(asked, timeout=ENROLMENT_S)
        node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in asked}  # a message is named when it is sent
        for reply in replies:
            node = node_of.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if reply.has_error():
                silent[node] = in_one_line(reply.error.reason)
                continue
            silent.pop(node, None)
            answer: dict[str, Any] = dict(reply.content.config_records.get("about", {}))
            answers.append({"partition": -1, "code": "none", **answer})
            self.nodes[int(answers[-1]["partition"])] = node
        self._refuse_silent(silent, clients)
        partitions = sorted([*(answer["partition"] for answer in answers), *self.unfit])
        if partitions != list(range(clients)):
            raise RunFailed(f"Expected partitions 0 to {clients - 1}, got {partitions} from {len(ids)} nodes.")
        return sorted(answers, key=lambda answer: answer["partition"])

    def _refuse_silent(self, silent: Mapping[int, str], clients: int) -> None:
        """Refuse nodes that did not introduce themselves: they are the clients that nobody else is."""
        missing = sorted(set(range(clients)) - set(self.nodes))
        if len(missing) != len(silent):  # two nodes say that they are the same client
            return
        reasons = "; ".join(dict.fromkeys(silent.values()))  # who of several said which is not known
        for partition, node in zip(missing, silent, strict=True):
            self.nodes[partition] = node
            self.refuse(partition, reasons)

    def refuse(self, partition: int, reason: str) -> None:
        """Leave this client out of all rounds; it counts as failed in each that would have had it.

        Raises:
            RunFailed: the run does not bear it.
        """
        self._note(Failure(partition, reason), "enrolment", [])
        self.unfit[partition] = reason

    def refuse_other_data(self, answer: Mapping[str, Any], shape: Sequence[int], classes: int) -> None:
        """Leave out a client whose data the run's model is not made for; see `refuse`.

        Args:
            answer: what it said of itself in enrolment.
            shape: of an input of the server's, (C, H, W) or (d,).
            classes: that the server knows.
        """
        ours, theirs = _kind(shape, classes), _kind(answer.get("shape", ()), answer.get("classes", 0))
        if "trouble" in answer:
            self.refuse(answer["partition"], in_one_line(str(answer["trouble"])))
        elif theirs != ours:
            self.refuse(answer["partition"], f"holds data of {theirs}, the server of {ours}; give both the same")
        else:
            self._refuse_other_labels(answer["partition"], str(answer.get("labels", "")))

    def _refuse_other_labels(self, partition: int, labels: str) -> None:
        """Refuse sites that name their classes on their own and differ: a label would not mean the same."""
        first, known = self._labels = self._labels or (partition, labels)
        if labels != known:
            other = f"names its classes otherwise than client {first}; give their folders the same names at every site"
            self.refuse(partition, other)

    def unfit_among(self, partitions: Iterable[int]) -> list[Failure]:
        """List the failures of those that are not asked."""
        return [Failure(p, self.unfit[p]) for p in partitions if p in self.unfit]

    def address(self, partition: int, content: RecordDict, kind: str, group: str) -> Message:
        """Address a message to a client, which Flower forgets some time after the deadline."""
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
        """Yield the usable part of each reply to some messages with its client, ordered by client.

        Args:
            asked: the messages.
            replies: a list, or an iterator in the messages' order.
            when: for what is said of a failure.
            take: reads one reply, and raises `Unusable` on one that cannot be used.
            failed: gains who failed or did not answer, if that does not end the run.

        Raises:
            RunFailed: a client failed, and the run does not bear it.
        """
        partition_of = {node: partition for partition, node in self.nodes.items()}
        node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in asked}  # a dead node's error names another
        waiting = [partition_of[m.metadata.dst_node_id] for m in asked]

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
                self._note(Failure(partition, str(error)), when, failed)
            else:
                yield partition, taken
        for partition in waiting:
            self._note(Failure(partition, f"did not answer within {self.tolerance.deadline:g} s"), when, failed)

    def check_enough(self, usable: int, failed: Sequence[Failure], when: str) -> None:
        """Raise `RunFailed`, with the reasons, if too few gave something usable."""
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


def _kind(shape: Sequence[int], classes: int) -> str:
    return f"{classes} classes and {'x'.join(map(str, shape))} inputs"
