"""Grids around other grids: replies one at a time, in the messages' order."""

import time
from collections.abc import Iterable, Sequence

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flfw.messages.inprocess import InProcessGrid
from flfw.messages.streaming import GridWrapper, StreamingGrid
from flfw.messages.wire import pack, unpack

app = ClientApp()


@app.train()
@app.train("probe")
def add_own_number(message: Message, context: Context) -> Message:
    """Returns w + partition; client 9 always fails."""
    partition = int(context.node_config["partition-id"])
    if partition == 9:
        raise ZeroDivisionError("client 9 cannot")
    received = unpack(message.content.array_records["arrays"])["w"]
    metrics = MetricRecord({"partition": partition, "num-examples": 10 * partition})
    return Message(RecordDict({"arrays": pack({"w": received + partition}), "metrics": metrics}), reply_to=message)


@app.query()
def say_where(message: Message, context: Context) -> Message:
    """No arrays at all, neither way."""
    return Message(RecordDict({"about": ConfigRecord({"seed": context.run_config["seed"]})}), reply_to=message)


class LateGrid(InProcessGrid):
    """Releases one reply with each poll, in the order of arrival given; those left out are lost."""

    def __init__(self, clients: int, arrival: Sequence[int]) -> None:
        super().__init__(app, clients, {})
        self.arrival, self.polls, self.sent = list(arrival), 0, []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.sent = super().push_messages(messages)
        return self.sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.polls += 1
        wanted = set(message_ids)
        ready = [self.sent[i] for i in self.arrival if self.sent[i] in wanted & self._pending.keys()]
        return super().pull_messages(ready[:1])


def message(partition: int, kind: str = "train", w: float = 1.0) -> Message:
    content = RecordDict({"arrays": pack({"w": torch.tensor([w, w])}), "config": ConfigRecord({"round": 4})})
    return Message(content, dst_node_id=partition + 1, message_type=kind, group_id="4")


def partitions(replies: Iterable[Message]) -> list[int]:
    return [int(reply.content.metric_records["metrics"]["partition"]) for reply in replies]


def answers(replies: Iterable[Message]) -> list[list[float]]:
    return [unpack(reply.content.array_records["arrays"])["w"].tolist() for reply in replies]


# --- in process ---------------------------------------------------------------------------------------------------


def test_each_message_is_answered_by_its_own_node_in_order() -> None:
    grid = InProcessGrid(app, 4, {})
    assert list(grid.get_node_ids()) == [node.node_id for node in grid.get_nodes()] == [1, 2, 3, 4]
    replies = grid.send_and_receive([message(p) for p in (2, 0, 3)])
    assert answers(replies) == [[3.0, 3.0], [1.0, 1.0], [4.0, 4.0]]
    assert [reply.metadata.src_node_id for reply in replies] == [3, 1, 4]


def test_a_reply_is_handed_out_once() -> None:
    grid = InProcessGrid(app, 2, {})
    ids = grid.push_messages([message(0), message(1)])
    assert partitions(grid.pull_messages(ids[1:])) == [1]
    assert partitions(grid.pull_messages(ids)) == [0]
    assert grid.pull_messages(ids) == []


def test_what_a_client_raises_is_its_own_error_reply() -> None:
    first, failed = InProcessGrid(app, 10, {}).send_and_receive([message(1), message(9)])
    assert not first.has_error()
    assert failed.has_error()
    assert failed.metadata.src_node_id == 10
    assert "client 9 cannot" in failed.error.reason


def test_clients_see_the_run_config() -> None:
    grid = InProcessGrid(app, 1, {"seed": 17})
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=1, message_type="query")])
    assert reply.content.config_records["about"]["seed"] == 17


def test_a_grid_around_another_passes_everything_on() -> None:
    inner = InProcessGrid(app, 3, {})
    outer = GridWrapper(inner)
    assert list(outer.get_node_ids()) == [1, 2, 3]
    assert outer.run is inner.run
    assert partitions(outer.pull_messages(list(outer.push_messages([message(2)])))) == [2]
    assert partitions(outer.send_and_receive([message(1), message(0)])) == [1, 0]


# --- streaming ----------------------------------------------------------------------------------------------------


def test_replies_come_in_the_order_of_their_messages() -> None:
    grid = StreamingGrid(InProcessGrid(app, 5, {}))
    assert partitions(grid.send_and_receive([message(p) for p in (3, 0, 4, 1)])) == [3, 0, 4, 1]


def test_late_first_replies_hold_back_the_others() -> None:
    late = LateGrid(4, arrival=[3, 2, 1, 0])
    replies = StreamingGrid(late).send_and_receive([message(p) for p in range(4)])
    assert partitions([next(replies)]) == [0]
    assert late.polls == 4
    assert partitions(replies) == [1, 2, 3]
    assert late.polls == 4  # they had come meanwhile


def test_each_reply_is_handed_on_as_soon_as_its_turn_comes() -> None:
    late = LateGrid(3, arrival=[0, 1, 2])
    polls = [late.polls for _ in StreamingGrid(late).send_and_receive([message(p) for p in range(3)])]
    assert polls == [1, 2, 3]


def test_nobody_asks_again_for_a_reply_that_has_come() -> None:
    late = LateGrid(3, arrival=[1, 0, 2])
    polls = [late.polls for _ in StreamingGrid(late).send_and_receive([message(p) for p in range(3)])]
    assert polls == [2, 2, 3]


def test_messages_are_sent_before_anybody_asks_for_a_reply() -> None:
    late = LateGrid(3, arrival=[0, 1, 2])
    StreamingGrid(late).send_and_receive([message(p) for p in range(3)])
    assert len(late.sent) == 3


def test_error_replies_keep_their_place() -> None:
    replies = list(StreamingGrid(InProcessGrid(app, 10, {})).send_and_receive([message(p) for p in (1, 9, 2)]))
    assert [reply.has_error() for reply in replies] == [False, True, False]


@pytest.mark.slow
def test_the_timeout_ends_the_replies() -> None:
    late = LateGrid(3, arrival=[0, 1])
    replies = StreamingGrid(late).send_and_receive([message(p) for p in range(3)], timeout=0.3)
    started = time.monotonic()
    assert partitions(replies) == [0, 1]
    assert 0.2 < time.monotonic() - started < 60


def test_replies_that_are_there_already_need_no_time() -> None:
    grid = StreamingGrid(InProcessGrid(app, 3, {}))
    assert partitions(grid.send_and_receive([message(p) for p in range(3)], timeout=0.0)) == [0, 1, 2]


def test_no_messages_no_replies() -> None:
    assert list(StreamingGrid(InProcessGrid(app, 1, {})).send_and_receive([])) == []
