"""Directory of a run's clients: their nodes, their answers, their failures, and who is left out or late.

The nodes of a simulation are not stored: they follow from the clients' numbers.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeVar, final

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from flfw.errors import DIED, RunError
from flfw.messages.client_info import ClientInfo, speak_for_all
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
        excluded: clients that are not asked, with the reason.
    """

    def __init__(self, tolerance: FailurePolicy) -> None:
        self.tolerance = tolerance
        self.nodes: dict[int, int] | NumberedNodes = {}
        self.excluded: dict[int, str] = {}

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
        self.excluded[partition] = reason

    def excluded_among(self, partitions: Iterable[int]) -> list[Failure]:
        """Return the failures of the clients that are not asked."""
        return [Failure(p, self.excluded[p]) for p in partitions if p in self.excluded]

    def address(self, partition: int, content: RecordDict, kind: str, group: str) -> Message:
        """Build a message to a client; Flower forgets it some time after the deadline."""
        return Message(content, self.nodes[partition], kind, group_id=group, ttl=self.tolerance.deadline + GRACE_S)

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
            return client_of(node_of.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id))

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
            way = "; if the loss grew, lower --lr" if failure.reason.endswith("with NaN or infinite values") else ""
            raise RunError(f"{who} failed in {when}: {failure.reason}{way}")
        failed.append(failure)


def _clients(nodes: dict[int, int] | NumberedNodes) -> Callable[[int], int]:
    """Return a function that gives the client of a node; -1: it is nobody's."""
    if isinstance(nodes, NumberedNodes):
        return nodes.client_of
    clients = {node: client for client, node in nodes.items()}
    return lambda node: clients.get(node, -1)


def nonce() -> dict[str, Any]:
    """Draw a scalar that makes the scalars of a message others than any before.

    A SuperLink keeps one object for each hash. Of scalars that can be foreseen, a client could leave an object there
    that is in the way when the message to another client is sent, and ends the run.
    """
    return {"nonce": secrets.token_hex(16)}


ENROLMENT_S = 300.0
_LATE_S = 30.0  # a round waits so long for the introduction of a site that came late


@final
@dataclass(frozen=True)
class Requirements:
    """Requirements that all clients of a run must meet.

    Attributes:
        code: hash of the server's code.
        shape: shape of the server's inputs, (C, H, W) or (d,).
        classes: the server's number of classes.
    """

    code: str
    shape: tuple[int, ...]
    classes: int

    def refusal(self, answer: ClientInfo) -> str:
        """Return why a client cannot take part; empty: it can."""
        if answer.code != self.code:
            return f"runs other code ({answer.code}) than the server ({self.code}); install the same on both"
        if answer.trouble:
            return answer.trouble
        expected, actual = _kind(self.shape, self.classes), _kind(answer.shape, answer.classes)
        if actual != expected:
            return f"holds data of {actual}, the server of {expected}; give both the same"
        return ""


@final
class NodeAssignment:
    """Assignment of one run's clients to nodes.

    Args:
        grid: Flower's grid.
        directory: the client directory that is filled in.
        clients: number of clients.
        wait: seconds in which all nodes must have joined; fewer are then enough if the run tolerates failures.
        required: requirements of the run; None: every client fits.
        registered: the client whose key a node holds, by node; a node that says otherwise is left out. None: not known.
        alike: nodes of a simulation that are asked for all; see `flfw.messages.inprocess`. Empty: each is asked.
    """

    def __init__(
        self,
        grid: Grid,
        directory: ClientDirectory,
        clients: int,
        wait: float,
        required: Requirements | None = None,
        registered: Mapping[int, int] | None = None,
        alike: Sequence[int] = (),
    ) -> None:
        self._alike = alike
        self._grid = grid
        self._client_directory = directory
        self._clients = clients
        self._wait = wait
        self._required = required
        self._registered = registered or {}
        self._node_of = {client: node for node, client in self._registered.items()}
        self._labels: tuple[int, str] | None = None  # class names that most clients have, and the first of these
        self._mute: set[int] = set()  # nodes without a place that did not answer
        self._disputed: set[int] = set()  # clients that several nodes said they are, of which nobody knows the liar

    def begin(self) -> list[ClientInfo]:
        """Wait for all nodes, ask each which client it is, and give every client a node or refuse it.

        Of a simulation a few nodes are asked. Only if they have trouble, or differ, each is asked which it is.

        Returns:
            The introductions of the clients that take part, or of those that spoke for them, ordered by partition.

        Raises:
            RunError: fewer nodes than clients in time, or two nodes with one partition, or a client that does not fit,
                and the run does not tolerate failures; or there is no node at all.
        """
        if self._alike and (spoken := self._spoken_for_all()):
            return spoken
        directory, ids = self._client_directory, self._wait_for_nodes()
        answers, silent = self._introductions(ids, ENROLMENT_S)
        named = self._by_partition(answers)
        strange = any(p >= self._clients or len(nodes) > 1 for p, nodes in named.items())
        if directory.tolerance.on_failure == "fail" and strange:
            partitions = sorted(answer.partition for answer in answers.values())
            raise RunError(f"Expected partitions 0 to {self._clients - 1}, got {partitions} from {len(ids)} nodes.")
        placed_at = {p: nodes[0] for p, nodes in named.items() if p < self._clients and len(nodes) == 1}
        directory.nodes = placed_at
        absent = f"did not join within {self._wait:g} s"
        reasons = [f"says that it is client {p} of {self._clients}" for p in named if p >= self._clients]
        reasons = [*silent.values(), *reasons] or [absent]
        for partition in sorted(set(range(self._clients)) - set(placed_at)):
            # Which silent node would have been this client is not known; it needs a node that is no other client's.
            placed_at[partition] = -1 - partition
            claims = len(named.get(partition, ()))
            reason = f"{claims} nodes say that they are it" if claims else "; ".join(dict.fromkeys(reasons))
            if partition in self._node_of:
                reason = silent.get(self._node_of[partition], absent)
            directory.exclude(partition, reason)
        placed = [answers[node] for _, node in sorted(placed_at.items()) if node in answers]
        self._labels = _usual_labels(placed)
        return [answer for answer in placed if self._fits(answer)]

    def late(self) -> list[ClientInfo]:
        """Give clients that have no node the nodes that came since; return the introductions of those that take part.

        A node without a place is asked at each call, so that a site that refused this run may change its mind. One that
        does not answer is asked again only if it went away meanwhile. A client that several nodes said they are stays
        absent, also when only one of them is left: it may be the liar.
        """
        nodes, excluded = self._client_directory.nodes, self._client_directory.excluded
        if isinstance(nodes, NumberedNodes) or not (absent := {client for client, node in nodes.items() if node < 0}):
            return []
        there = set(self._grid.get_node_ids()) - set(nodes.values())
        self._mute &= there
        answers, _ = self._introductions(sorted(there - self._mute), _LATE_S)
        joined = []
        for partition, claims in sorted(self._by_partition(answers).items()):
            if partition in absent - self._disputed:
                nodes[partition] = claims[0]
                del excluded[partition]
                joined += [answer for answer in (answers[claims[0]],) if self._fits(answer)]
        return joined

    def _spoken_for_all(self) -> list[ClientInfo]:
        """Ask the nodes that may speak for all, and place every client; an empty list: each is to be asked."""
        answers, silent = self._introductions(self._alike, ENROLMENT_S)
        known = [answers[node] for node in self._alike if node in answers]
        numbered = all(answer.partition == node - 1 for node, answer in answers.items())
        if silent or not numbered or not speak_for_all(known):
            return []
        if self._required and self._required.refusal(known[0]):
            return []
        self._client_directory.nodes = NumberedNodes(self._clients)
        return known

    def _wait_for_nodes(self) -> list[int]:
        """Wait for all nodes; after a time, those that have joined are enough if the run tolerates failures."""
        deadline = time.monotonic() + self._wait
        while len(ids := list(self._grid.get_node_ids())) < self._clients:
            if time.monotonic() > deadline:
                if ids and self._client_directory.tolerance.on_failure == "drop":
                    return ids
                missing = f"Expected {self._clients} clients, got {len(ids)} after {self._wait:g} s"
                raise RunError(f"{missing}; start as many SuperNodes (num-supernodes={self._clients} in a simulation).")
            time.sleep(0.1)
        return ids

    def _introductions(self, ids: Sequence[int], timeout: float) -> tuple[dict[int, ClientInfo], dict[int, str]]:
        """Ask nodes for their introductions; return these, and why other nodes have none, by node."""
        messages = [Message(RecordDict({"asked": ConfigRecord(nonce())}), node, "query") for node in ids]
        answers: dict[int, ClientInfo] = {}
        silent = dict.fromkeys(ids, f"did not answer within {timeout:g} s")
        mute = set(ids)
        replies = self._grid.send_and_receive(messages, timeout=timeout) if messages else []
        node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}  # sending gives a message its id
        for reply in replies:
            node = node_of.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            mute.discard(node)
            try:
                answers[node] = ClientInfo.from_message(reply)
            except UnusableReplyError as error:
                silent[node] = str(error)
            else:
                silent.pop(node, None)
        self._mute |= mute
        for node, answer in list(answers.items()):  # some registrations may not be known here
            mine = self._registered.get(node, answer.partition)
            holder = self._node_of.get(answer.partition, node)
            if (mine, holder) != (answer.partition, node):
                silent[node] = f"says that it is client {answer.partition}, and holds another key"
                del answers[node]
        return answers, silent

    def _by_partition(self, answers: Mapping[int, ClientInfo]) -> dict[int, list[int]]:
        """Return the nodes that say of themselves that they are a client, by client; note clients with several."""
        named: dict[int, list[int]] = {}
        for node, answer in answers.items():
            named.setdefault(answer.partition, []).append(node)
        self._disputed |= {partition for partition, nodes in named.items() if len(nodes) > 1}
        return named

    def _fits(self, answer: ClientInfo) -> bool:
        """Refuse a client that does not meet the requirements, or whose labels would mean other classes."""
        reason = self._required.refusal(answer) if self._required else ""
        if not reason and self._required:
            first, known = self._labels = self._labels or (answer.partition, answer.labels)
            if answer.labels != known:
                same = "give their folders the same names at every site"
                reason = f"names its classes otherwise than client {first}; {same}"
        if reason:
            self._client_directory.exclude(answer.partition, reason)
        return not reason


def _usual_labels(answers: Sequence[ClientInfo]) -> tuple[int, str] | None:
    """Return the class names of most clients, with the first of these: a single client that lies refuses no other."""
    known = [answer.labels for answer in answers if not answer.trouble]
    if not known:
        return None
    usual = max(dict.fromkeys(known), key=known.count)
    return next(answer.partition for answer in answers if answer.labels == usual and not answer.trouble), usual


def _kind(shape: Sequence[int], classes: int) -> str:
    return f"{classes} classes and {'x'.join(map(str, shape))} inputs"
