"""Replies from a SuperLink, fetched as Flower's Grid does it: what cannot be read costs its sender alone."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)

from flfw.messages.inprocess import InProcessGrid
from flfw.messages.streaming import StreamingGrid
from tests.support.forgery import (
    Forged,
    Sent,
    answering,
    envelope_of,
    forged_answer,
    in_message,
    plain,
    record_dict,
    sealed,
)

app = ClientApp()


class Stored(InProcessGrid):
    """Grid of three nodes whose answers lie in a store of objects; as Flower's Grid does, it makes messages of them.

    Args:
        lies: the answer of some nodes.
    """

    def __init__(self, **lies: Any) -> None:
        super().__init__(app, 3, {})
        self.lies = lies

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Fetch all answers that there are."""
        messages = []
        for message_id in message_ids:
            requested = self._pending.get(message_id)
            if requested is None:
                continue
            lie = self.lies.get(f"node{requested.metadata.dst_node_id}")
            sent: Sent | None = lie(requested) if lie else sealed(answering(requested, honest(requested)))
            if sent is None:
                continue
            contents = self._pulled(sent, message_id)
            if contents is None:
                messages.append(Message(content=RecordDict(), reply_to=requested))
                continue
            messages.append(inflate_object_from_contents(sent.envelope.metadata.message_id, contents))
            del self._pending[message_id]
        return messages  # type: ignore[return-value]

    def _pulled(self, sent: Sent, message_id: str) -> dict[str, bytes] | None:
        def pull(name: str) -> bytes:
            if name not in sent.objects:
                raise ObjectUnavailableError(name)
            return sent.objects[name]

        try:
            return pull_objects([part.object_id for part in iterate_object_tree(sent.tree)], pull)
        except ObjectPullError:
            return None


def honest(message: Message) -> RecordDict:
    return RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 3})})


def question(node: int) -> Message:
    arrays = ArrayRecord({"w": Array(np.ones(3, np.float32))})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"round": 1})})
    return Message(content, dst_node_id=node, message_type="train", group_id="1")


def replies(grid: Stored, timeout: float = 5.0) -> list[tuple[int, str]]:
    """Ask three nodes; of each reply the node and the reason of its failure."""
    got = list(StreamingGrid(grid).send_and_receive([question(node) for node in (1, 2, 3)], timeout=timeout))
    return [(reply.metadata.src_node_id, str(reply.error.reason) if reply.has_error() else "") for reply in got]


def many(message: Message) -> Sent:
    """An array of 3 MB that is described in few bytes."""
    body = b'{"dtype": "f4", "shape": [3], "stype": "numpy.ndarray", "arraychunk_ids": ' + str([0] * 30).encode() + b"}"
    one = Forged("Array", body, (Forged("ArrayChunk", bytes(100_000)),))
    arrays = Forged("ArrayRecord", f'{{"w": "{one.name}"}}'.encode(), (one,))
    return forged_answer(message, in_message(message, record_dict(arrays=arrays)))


def large(message: Message) -> Sent:
    return sealed(answering(message, RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(300_000, np.float32))})})))


def of_another(message: Message) -> Sent:
    inner = answering(message, honest(message))
    inner.metadata.__dict__["_reply_to_message_id"] = "f" * 64
    return envelope_of(answering(message, honest(message)), inner)


SENT = "sent what cannot be read: "
LIES = {
    SENT + "arrays of more than the 1004236 bytes that an answer has at most": many,
    SENT + "more than the 1004236 bytes that an answer has at most": large,
    SENT + "no message": lambda asked: forged_answer(asked, record_dict()),
    SENT + "IndexError": lambda asked: forged_answer(asked, in_message(asked)),
    SENT + "MessageInitializationError": lambda asked: forged_answer(asked, in_message(asked, plain(ArrayRecord()))),
    SENT + "KeyError": lambda asked: forged_answer(asked, Forged("Pickle", b"cos\nsystem\n")),
    "answered another message than it was sent": of_another,
}


@pytest.mark.parametrize(("reason", "lie"), LIES.items(), ids=LIES.keys())
@pytest.mark.parametrize("node", [1, 2, 3])
def test_what_cannot_be_read_costs_its_sender_alone(node: int, reason: str, lie: Any) -> None:
    expected = [(one, reason if one == node else "") for one in (1, 2, 3)]
    assert replies(Stored(**{f"node{node}": lie})) == expected


@pytest.mark.slow
def test_objects_that_never_come_hold_the_others_up_to_the_deadline() -> None:
    def incomplete(message: Message) -> Sent:
        whole = sealed(answering(message, honest(message)))
        return Sent(whole.envelope, whole.tree, {})

    began = time.monotonic()
    assert replies(Stored(node1=incomplete), timeout=1.0) == [(2, ""), (3, "")]
    assert 0.9 < time.monotonic() - began < 60


@pytest.mark.slow
def test_an_answer_that_has_not_come_is_waited_for_and_the_others_are_fetched_after_it() -> None:
    began = time.monotonic()

    def late(message: Message) -> Sent | None:
        return sealed(answering(message, honest(message))) if time.monotonic() > began + 0.4 else None

    assert replies(Stored(node2=late)) == [(1, ""), (2, ""), (3, "")]
    assert time.monotonic() - began >= 0.4
    assert replies(Stored(node2=lambda message: None), timeout=0.3) == [(1, ""), (3, "")]
