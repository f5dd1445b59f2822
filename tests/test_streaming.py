"""Grids around other grids: replies one at a time in the messages' order, and what passes by on disk."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

from flfw.inprocess import InProcessGrid
from flfw.streaming import GridAround, StreamingGrid
from flfw.tap import RecordingGrid
from flfw.wire import pack, unpack

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
    assert list(grid.get_node_ids()) == [1, 2, 3, 4]
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
    outer = GridAround(inner)
    assert list(outer.get_node_ids()) == [1, 2, 3]
    assert outer.run is inner.run
    ids = list(outer.push_messages([message(2)]))
    assert partitions(outer.pull_messages(ids)) == [2]
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
    grid = StreamingGrid(InProcessGrid(app, 10, {}))
    replies = list(grid.send_and_receive([message(p) for p in (1, 9, 2)]))
    assert [reply.has_error() for reply in replies] == [False, True, False]


def test_the_timeout_ends_the_replies() -> None:
    late = LateGrid(3, arrival=[0, 1])
    replies = StreamingGrid(late).send_and_receive([message(p) for p in range(3)], timeout=0.3)
    started = time.monotonic()
    assert partitions(replies) == [0, 1]
    assert 0.2 < time.monotonic() - started < 5


def test_replies_that_are_there_already_need_no_time() -> None:
    grid = StreamingGrid(InProcessGrid(app, 3, {}))
    assert partitions(grid.send_and_receive([message(p) for p in range(3)], timeout=0.0)) == [0, 1, 2]


def test_no_messages_no_replies() -> None:
    assert list(StreamingGrid(InProcessGrid(app, 1, {})).send_and_receive([])) == []


# --- recording ----------------------------------------------------------------------------------------------------


def probes_only(sent: Message, reply: Message) -> bool:
    return sent.metadata.message_type == "train.probe"


def exchange(folder: Path, messages: list[Message]) -> tuple[list[Message], list[dict]]:
    """The replies that came through a recording grid, and the lines of its manifest."""
    grid = RecordingGrid(StreamingGrid(InProcessGrid(app, 10, {})), folder, probes_only)
    replies = list(grid.send_and_receive(messages))
    manifest = folder / "manifest.jsonl"
    return replies, [json.loads(line) for line in manifest.read_text().splitlines()] if manifest.exists() else []


def test_an_exchange_is_a_line_with_both_sides(tmp_path) -> None:
    _, (line,) = exchange(tmp_path, [message(2, "train.probe", w=5.0)])
    sent, answered = line.pop("sent_to_client"), line.pop("sent_by_client")
    assert line == {
        "type": "train.probe",
        "group": "4",
        "config": {"round": 4},
        "metrics": {"partition": 2, "num-examples": 20},
    }
    assert load_file(tmp_path / f"{sent}.safetensors")["w"].tolist() == [5.0, 5.0]
    assert load_file(tmp_path / f"{answered}.safetensors")["w"].tolist() == [7.0, 7.0]


def test_only_wanted_exchanges_are_recorded(tmp_path) -> None:
    kinds = ["train", "train.probe", "train", "train.probe"]
    replies, lines = exchange(tmp_path, [message(p, kind, w=100.0 * p) for p, kind in enumerate(kinds)])
    assert partitions(replies) == [0, 1, 2, 3]
    assert [line["metrics"]["partition"] for line in lines] == [1, 3]
    held = {tuple(load_file(path)["w"].tolist()) for path in tmp_path.glob("*.safetensors")}
    assert held == {(100.0, 100.0), (101.0, 101.0), (300.0, 300.0), (303.0, 303.0)}


def test_where_nothing_is_wanted_nothing_is_written(tmp_path) -> None:
    replies, lines = exchange(tmp_path / "observations", [message(0), message(1)])
    assert (partitions(replies), lines) == ([0, 1], [])
    assert list((tmp_path / "observations").iterdir()) == []


def test_what_many_clients_were_sent_is_stored_once_over_several_exchanges(tmp_path) -> None:
    grid = RecordingGrid(InProcessGrid(app, 4, {}), tmp_path, probes_only)
    list(grid.send_and_receive([message(p, "train.probe") for p in (1, 2)]))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    list(grid.send_and_receive([message(3, "train.probe")]))
    assert {path: path.stat().st_mtime_ns for path in written} == written  # a download may be 60 MB
    lines = [json.loads(line) for line in (tmp_path / "manifest.jsonl").read_text().splitlines()]
    assert len({line["sent_to_client"] for line in lines}) == 1
    assert len({line["sent_by_client"] for line in lines}) == 3
    assert len(list(tmp_path.glob("*.safetensors"))) == 4


def test_files_are_named_by_their_own_content(tmp_path) -> None:
    exchange(tmp_path, [message(p, "train.probe") for p in (1, 2)])
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) == 3
    for file in files:
        assert file.stem == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_failed_client_is_passed_on_and_not_recorded(tmp_path) -> None:
    replies, lines = exchange(tmp_path, [message(9, "train.probe"), message(1, "train.probe")])
    assert [reply.has_error() for reply in replies] == [True, False]
    assert [line["metrics"]["partition"] for line in lines] == [1]


def test_messages_without_arrays_can_be_recorded(tmp_path) -> None:
    grid = RecordingGrid(InProcessGrid(app, 1, {"seed": 17}), tmp_path, lambda sent, reply: True)
    list(grid.send_and_receive([Message(RecordDict(), dst_node_id=1, message_type="query")]))
    line = json.loads((tmp_path / "manifest.jsonl").read_text())
    assert (line["type"], line["metrics"]) == ("query", {"seed": 17})
    assert load_file(tmp_path / f"{line['sent_to_client']}.safetensors") == {}


def contents(messages: Iterable[Message]) -> list[tuple]:
    """All that the messages carry, with the bytes of every array."""
    return [
        (
            m.metadata.message_type,
            {name: {k: a.data for k, a in record.items()} for name, record in m.content.array_records.items()},
            {name: dict(record) for name, record in m.content.metric_records.items()},
            {name: dict(record) for name, record in m.content.config_records.items()},
        )
        for m in messages
    ]


def test_recording_changes_nothing_of_what_passes(tmp_path) -> None:
    sent = [message(p, kind) for p, kind in ((1, "train.probe"), (2, "train"), (3, "train.probe"))]
    before, objects = contents(sent), [m.content for m in sent]
    recorded, lines = exchange(tmp_path, sent)
    plain = InProcessGrid(app, 10, {}).send_and_receive([message(p, "train.probe") for p in (1, 2, 3)])
    assert len(lines) == 2
    assert contents(sent) == before
    assert all(m.content is content for m, content in zip(sent, objects, strict=True))
    assert [c[1:] for c in contents(recorded)] == [c[1:] for c in contents(plain)]


def test_replies_are_recorded_as_they_pass_and_not_all_at_the_end(tmp_path) -> None:
    late = LateGrid(3, arrival=[0, 1, 2])
    replies = RecordingGrid(StreamingGrid(late), tmp_path, probes_only).send_and_receive(
        [message(p, "train.probe") for p in range(3)]
    )
    for recorded, _ in enumerate(replies, start=1):
        assert len((tmp_path / "manifest.jsonl").read_text().splitlines()) == recorded
        assert late.polls == recorded


def test_one_message_for_all_is_read_by_each_client_unchanged(tmp_path) -> None:
    content = RecordDict({"arrays": ArrayRecord({}), "config": ConfigRecord({"round": 0})})
    content["arrays"] = pack({"w": torch.tensor([1.0, 1.0])})
    shared = [Message(content, dst_node_id=p + 1, message_type="train.probe", group_id="0") for p in (1, 2)]
    replies, _ = exchange(tmp_path, shared)
    assert answers(replies) == [[2.0, 2.0], [3.0, 3.0]]


@pytest.mark.parametrize("inside", ["relative/observations", "observations"])
def test_a_relative_folder_stays_where_it_was_meant(tmp_path, monkeypatch, inside) -> None:
    monkeypatch.chdir(tmp_path)
    grid = RecordingGrid(InProcessGrid(app, 3, {}), Path(inside), probes_only)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # as Flower may
    list(grid.send_and_receive([message(1, "train.probe")]))
    assert (tmp_path / inside / "manifest.jsonl").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []
