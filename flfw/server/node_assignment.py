"""Enrolment of a run's clients: which node is which client, who is left out, and who comes late."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from flfw.errors import RunError
from flfw.messages.client_info import ClientInfo, speak_for_all
from flfw.messages.reasons import UnusableReplyError
from flfw.server.client_directory import ClientDirectory, NumberedNodes, unforeseeable

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
    """Enrolment of one run.

    Args:
        grid: Flower's grid.
        directory: the roster that is filled in.
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
        self._grid, self._client_directory, self._clients, self._wait, self._required = (
            grid,
            directory,
            clients,
            wait,
            required,
        )
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
        nodes, unfit = self._client_directory.nodes, self._client_directory.unfit
        if isinstance(nodes, NumberedNodes) or not (absent := {client for client, node in nodes.items() if node < 0}):
            return []
        there = set(self._grid.get_node_ids()) - set(nodes.values())
        self._mute &= there
        answers, _ = self._introductions(sorted(there - self._mute), _LATE_S)
        joined = []
        for partition, claims in sorted(self._by_partition(answers).items()):
            if partition in absent - self._disputed:
                nodes[partition] = claims[0]
                del unfit[partition]
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
        messages = [Message(RecordDict({"asked": ConfigRecord(unforeseeable())}), node, "query") for node in ids]
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
