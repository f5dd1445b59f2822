"""Grid of Ray's actors: order, failures, deaths and hangs of clients, and what a client keeps."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from flfw.errors import DIED, RunError
from flfw.messages.inprocess import MessageBatches
from flfw.messages.reasons import in_one_line
from flfw.messages.streaming import StreamingGrid
from flfw.messages.wire import pack, unpack
from tests.support.actor_app import app, sizes, together

pytestmark = [pytest.mark.early, pytest.mark.usefixtures("one_ray_for_all")]

CLIENTS = 12


@pytest.fixture(scope="module")
def grid() -> Any:
    from flfw.engines.ray_grid import RayGrid

    ready = RayGrid(app, CLIENTS, {"seed": 17}, actors=2, actor_options={"num_cpus": 0.25})
    warm(ready)
    return ready


def warm(grid: Any) -> None:
    """Let both actors come, and the pace be known, so that chunks have several messages."""
    come: set[int] = set()
    for _ in range(4):
        come |= pids(grid.send_and_receive(asked(range(CLIENTS))))
    while len(come) < 2:
        come |= pids(grid.send_and_receive(asked(range(CLIENTS))))


def asked(
    partitions: Iterable[int], deed: str = "adds", among: Iterable[int] = (), folder: Path | None = None, **more: Any
) -> list[Message]:
    """Messages to clients; those among some do a deed, the others add their number to the arrays."""
    arrays = more.pop("arrays", None) or pack({"w": torch.zeros(5000)})
    config: dict[str, Any] = {"deed": deed, "among": list(among), "folder": str(folder or "")}
    return [
        Message(RecordDict({"arrays": arrays, "config": ConfigRecord(config)}), p + 1, "train", **more)
        for p in partitions
    ]


def partitions(replies: Iterable[Message]) -> list[int]:
    return [int(reply.content.metric_records["metrics"]["partition"]) for reply in replies]  # type: ignore[arg-type]


def seen(replies: Iterable[Message]) -> list[int]:
    return [int(reply.content.metric_records["metrics"]["seen"]) for reply in replies]  # type: ignore[arg-type]


def pids(replies: Iterable[Message]) -> set[int]:
    return {int(reply.content.metric_records["metrics"]["pid"]) for reply in replies}  # type: ignore[arg-type]


@pytest.mark.nightly
def test_replies_come_in_order_with_each_clients_own_numbers(grid: Any) -> None:
    order = [3, 0, 11, 7, 1, 2, 4, 5]
    sent = asked(order)
    replies = list(StreamingGrid(grid).send_and_receive(sent, timeout=120))
    assert partitions(replies) == order
    for reply, message in zip(replies, sent, strict=True):
        expected = torch.full((5000,), float(message.metadata.dst_node_id - 1))
        assert torch.equal(unpack(reply.content.array_records["arrays"])["w"], expected)
        assert reply.metadata.reply_to_message_id == message.metadata.message_id
        assert reply.metadata.src_node_id == message.metadata.dst_node_id
    assert torch.equal(unpack(sent[0].content.array_records["arrays"])["w"], torch.zeros(5000))
    assert len(pids(replies)) == 2, "both actors have work"


@pytest.mark.nightly
def test_each_client_may_be_sent_its_own_arrays(grid: Any) -> None:
    messages = [message for p in range(6) for message in asked([p], arrays=pack({"w": torch.full((5000,), 10.0 * p)}))]
    replies = grid.send_and_receive(messages)
    values = [float(unpack(reply.content.array_records["arrays"])["w"][0]) for reply in replies]
    assert values == [0, 11, 22, 33, 44, 55]


@pytest.mark.nightly
def test_a_client_knows_its_number_and_the_configuration(grid: Any) -> None:
    (reply,) = grid.send_and_receive([Message(RecordDict(), 5, "query")])
    assert dict(reply.content.config_records["about"]) == {"partition": 4, "of": CLIENTS, "seed": 17}
    assert grid.get_node_ids() == [node.node_id for node in grid.get_nodes()] == list(range(1, CLIENTS + 1))
    with pytest.raises(ValueError, match="Expected a node from 1 to 12, got 13"):
        grid.push_messages([Message(RecordDict(), CLIENTS + 1, "query")])


@pytest.mark.nightly
def test_what_the_app_keeps_of_a_client_comes_back_whatever_actor_answers(grid: Any) -> None:
    before = seen(grid.send_and_receive(asked(range(4))))
    assert seen(grid.send_and_receive(asked(range(4)))) == [n + 1 for n in before]


@pytest.mark.nightly
def test_what_a_client_raises_is_its_own_error_reply(grid: Any) -> None:
    replies = grid.send_and_receive(asked(range(CLIENTS), "raises", [2]))
    assert [reply.has_error() for reply in replies] == [p == 2 for p in range(CLIENTS)]
    assert (replies[2].error.code, replies[2].error.reason) == (2, "client 2 cannot")
    assert replies[2].metadata.src_node_id == 3


@pytest.mark.nightly
def test_a_client_that_dies_is_asked_once_more_and_takes_nobody_with_it(grid: Any, tmp_path: Path) -> None:
    replies = list(StreamingGrid(grid).send_and_receive(asked(range(CLIENTS), "dies", [4], tmp_path), timeout=240))
    assert [reply.has_error() for reply in replies] == [p == 4 for p in range(CLIENTS)]
    assert in_one_line(replies[4].error.reason) == DIED
    assert len(list(tmp_path.glob("died-4-*"))) == 2
    warm(grid)


@pytest.mark.nightly
def test_a_client_that_dies_once_answers_all_the_same(grid: Any, tmp_path: Path) -> None:
    before = seen(grid.send_and_receive(asked(range(CLIENTS))))
    replies = grid.send_and_receive(asked(range(CLIENTS), "dies_once", [1, 8], tmp_path), timeout=240)
    assert partitions(replies) == list(range(CLIENTS))
    assert seen(replies) == [n + 1 for n in before], "what the dead had done does not count"


@pytest.mark.slow
def test_an_actor_killed_from_outside_is_replaced(grid: Any) -> None:
    (one, *_) = pids(grid.send_and_receive(asked(range(CLIENTS))))
    ids = grid.push_messages(asked(range(CLIENTS), "sleeps", [0, 1]))
    os.kill(one, signal.SIGKILL)
    replies = [grid.reply_to(message_id, time.monotonic() + 240) for message_id in ids]
    assert partitions(replies) == list(range(CLIENTS))


@pytest.mark.nightly
def test_a_client_that_hangs_holds_up_only_itself(grid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its actor is ended; the others of its chunk are asked again, and so is it."""
    warm(grid)
    monkeypatch.setattr("flfw.engines.actor_pool._OVERDUE_S", 3.0)
    replies = grid.send_and_receive(asked(range(CLIENTS), "hangs", [0], tmp_path), timeout=240)
    assert partitions(replies) == list(range(CLIENTS))


@pytest.mark.nightly
def test_an_actor_that_hangs_with_one_message_alone_is_named_and_ended_once_others_wait(
    grid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Alone it may be at work on a large client; and its client's next message, which waits, keeps no other back."""
    warm(grid)
    monkeypatch.setattr("flfw.engines.actor_pool._OVERDUE_S", 1.0)
    held = grid.push_messages(asked([0], "hangs", [0], tmp_path))
    held += grid.push_messages(asked([0]))
    printed, until = "", time.monotonic() + 60
    while "client 0" not in printed and time.monotonic() < until:
        assert grid.pull_messages(held) == []
        printed += capfd.readouterr().err
        time.sleep(0.2)
    named = re.search(r"flfw: client 0 has taken .* Should process (\d+) on ", printed)
    assert named
    replies = grid.send_and_receive(asked(range(CLIENTS)), timeout=240)
    assert partitions(replies) == list(range(CLIENTS))
    again = [grid.reply_to(message_id, time.monotonic() + 240) for message_id in held]
    assert partitions(again) == [0, 0] and int(named[1]) not in pids([*replies, *again])


@pytest.mark.nightly
def test_nobody_waits_for_what_has_expired(grid: Any) -> None:
    began = time.monotonic()
    replies = list(StreamingGrid(grid).send_and_receive(asked(range(4), "sleeps", [0, 1, 2, 3], ttl=0.5), timeout=240))
    assert replies == []
    assert time.monotonic() - began < 120
    assert partitions(grid.send_and_receive(asked([5, 6]))) == [5, 6]


@pytest.mark.nightly
def test_the_timeout_ends_the_wait_and_leaves_what_has_come(grid: Any) -> None:
    warm(grid)
    replies = grid.send_and_receive([*asked([0]), *asked([1], "sleeps", [1])], timeout=2.0)
    assert partitions(replies) == [0]
    ids, began = grid.push_messages(asked([2, 3])), time.monotonic()
    pulled: list[Message] = []
    while len(pulled) < 2 and time.monotonic() < began + 60:
        pulled += grid.pull_messages(ids)
        time.sleep(0.1)
    assert sorted(partitions(pulled)) == [2, 3]
    assert grid.pull_messages(ids) == []


@pytest.mark.nightly
def test_clients_may_be_asked_from_several_threads(grid: Any) -> None:
    answers: dict[int, list[int]] = {}

    def ask(p: int) -> None:
        answers[p] = partitions(grid.send_and_receive(asked([p])))

    threads = [threading.Thread(target=ask, args=(p,)) for p in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {p: [p] for p in range(CLIENTS)}


@pytest.mark.nightly
def test_nothing_is_kept_of_what_was_answered(grid: Any) -> None:
    grid.send_and_receive(asked(range(CLIENTS)))
    assert not grid._requested and not grid._arrived and not grid._pool._stored


@pytest.fixture(scope="module")
def joining() -> Any:
    """A grid whose messages are answered in batches of five: of twelve the last has two."""
    from flfw.engines.ray_grid import RayGrid

    batches = MessageBatches("train", 5, together)
    ready = RayGrid(app, CLIENTS, {"seed": 17}, actors=2, actor_options={"num_cpus": 0.25}, batches=batches)
    warm(ready)
    return ready


WHOLE = [5] * 10 + [2] * 2


@pytest.mark.nightly
def test_batches_are_those_of_the_messages_whatever_the_pace(joining: Any) -> None:
    replies = list(StreamingGrid(joining).send_and_receive(asked(range(CLIENTS)), timeout=240))
    assert (partitions(replies), sizes(replies)) == (list(range(CLIENTS)), WHOLE)
    assert sizes(joining.send_and_receive(asked([4]))) == [1]


@pytest.mark.nightly
def test_a_client_that_raises_fails_alone_in_its_batch(joining: Any) -> None:
    replies = joining.send_and_receive(asked(range(CLIENTS), "raises", [2]))
    assert [reply.has_error() for reply in replies] == [p == 2 for p in range(CLIENTS)]
    assert (replies[2].error.code, replies[2].error.reason) == (2, "client 2 cannot")


@pytest.mark.nightly
def test_a_batch_whose_process_dies_once_is_asked_as_a_whole_again(joining: Any, tmp_path: Path) -> None:
    replies = joining.send_and_receive(asked(range(CLIENTS), "dies_once", [3], tmp_path), timeout=240)
    assert (partitions(replies), sizes(replies)) == (list(range(CLIENTS)), WHOLE)


@pytest.mark.nightly
def test_a_client_that_dies_takes_nobody_of_its_batch_with_it(joining: Any, tmp_path: Path) -> None:
    replies = joining.send_and_receive(asked(range(CLIENTS), "dies", [3], tmp_path), timeout=240)
    assert [reply.has_error() for reply in replies] == [p == 3 for p in range(CLIENTS)]
    assert len(list(tmp_path.glob("died-3-*"))) == 3, "twice with the others, then alone"
    assert sizes(replies[:3] + replies[4:]) == [1] * 4 + WHOLE[5:]


class Unloadable(ClientApp):
    """An app that cannot be read in another process."""

    def __reduce__(self) -> Any:
        return int, ("no app",)


@pytest.mark.nightly
def test_an_app_that_no_actor_can_load_ends_the_run_in_one_line() -> None:
    from flfw.engines.ray_grid import RayGrid

    broken = RayGrid(Unloadable(), 2, {}, actors=1, actor_options={"num_cpus": 0.25})
    arrays: ArrayRecord = pack({"w": torch.zeros(3)})
    with pytest.raises(RunError, match=r"^Ray's actors did not start: .*no app") as caught:
        broken.send_and_receive(asked([0], arrays=arrays), timeout=240)
    assert "\n" not in str(caught.value)
