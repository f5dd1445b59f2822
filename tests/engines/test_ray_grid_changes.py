"""Grid of Ray's actors, used in unusual ways: messages that change or are sent twice, replies, and dead actors."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import ray
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

from flfw.engines.simulation import run_simulation
from flfw.errors import InputError
from flfw.messages.inprocess import InProcessGrid
from tests.support.awkward_app import app

pytestmark = [pytest.mark.early, pytest.mark.nightly, pytest.mark.usefixtures("one_ray_for_all")]

CLIENTS = 6


@pytest.fixture(scope="module")
def grid() -> Iterator[Any]:
    from flfw.engines.ray_grid import RayGrid

    ready = RayGrid(app, CLIENTS, {}, actors=2, actor_options={"num_cpus": 0.25})
    for _ in range(4):  # then the pace is known, and chunks have several messages
        ready.send_and_receive([message(node) for node in range(1, CLIENTS + 1)])
    yield ready
    ready.close()


def message(node: int, arrays: ArrayRecord | None = None, **config: Any) -> Message:
    records: dict[str, Any] = {"arrays": arrays} if arrays is not None else {}
    return Message(RecordDict({**records, "config": ConfigRecord(config)}), node, "train")


def found(replies: Iterable[Message], name: str) -> list[float]:
    return [reply.content.metric_records["metrics"][name] for reply in replies]  # type: ignore[misc]


def awaited(grid: Any, ids: Iterable[str]) -> list[Message]:
    return [grid.reply_to(message_id, time.monotonic() + 120) for message_id in ids]


def test_a_client_that_is_asked_several_times_at_once_keeps_all_that_it_counted(grid: Any) -> None:
    (before,) = found(grid.send_and_receive([message(1)]), "asked")
    replies = grid.send_and_receive([message(1) for _ in range(8)])
    assert found(replies, "asked") == [before + n for n in range(1, 9)]


def test_what_a_server_changes_after_it_has_sent_it_does_not_count(grid: Any) -> None:
    """One ConfigRecord and one ArrayRecord for all messages, as a server may use that sends to one after the other."""
    config, ids = ConfigRecord({"seconds": 0.1}), list[str]()
    arrays = ArrayRecord([np.zeros(5000)])
    (name,) = arrays
    for n in range(8):
        config["tag"] = n
        arrays[name] = ArrayRecord([np.full(5000, float(n))])[name]
        content = RecordDict({"config": config, "arrays": arrays})
        ids += grid.push_messages([Message(content, n % CLIENTS + 1, "train")])
    replies = awaited(grid, ids)
    assert found(replies, "tag") == list(range(8))
    assert found(replies, "first") == list(range(8))


def test_a_message_that_is_sent_twice_has_two_replies(grid: Any) -> None:
    same = message(2)
    first, second = grid.send_and_receive([same, same], timeout=60)
    assert found([second], "asked") == [found([first], "asked")[0] + 1]


def test_a_client_that_raised_keeps_nothing_as_in_process(grid: Any) -> None:
    for one in (grid, InProcessGrid(app, CLIENTS, {})):
        (before,) = found(one.send_and_receive([message(3)]), "asked")
        (failed,) = one.send_and_receive([message(3, deed="raises")])
        assert failed.has_error()
        assert found(one.send_and_receive([message(3)]), "asked") == [before + 1]


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("wordless", "Wordless"),
        ("cancelled", "not awaited"),
        ("nothing", "'NoneType' object has no attribute 'has_error'"),
    ],
)
def test_whatever_a_client_raises_is_its_own_failure(grid: Any, deed: str, reason: str) -> None:
    replies = grid.send_and_receive([message(n, deed=deed if n == 2 else "") for n in range(1, 5)], timeout=120)
    assert [reply.has_error() for reply in replies] == [False, True, False, False]
    assert replies[1].error.reason == reason


def test_bytes_that_a_client_can_still_change_arrive_as_bytes(grid: Any) -> None:
    (reply,) = grid.send_and_receive([message(1, deed="bytearray")])
    (array,) = reply.content.array_records["arrays"].to_numpy_ndarrays()
    assert np.array_equal(array, np.zeros(3))


def test_a_reply_larger_than_the_store_arrives(grid: Any) -> None:
    (reply,) = grid.send_and_receive([message(1, megabytes=120)], timeout=240)  # the store has 100 MB
    assert reply.content.array_records["arrays"].count_bytes() > 120_000_000


def test_clients_do_not_fail_when_idle_actors_were_killed(grid: Any) -> None:
    """Each actor is dead when it gets its next message; nobody's client killed it."""
    pids: set[int] = set()
    while len(pids) < 2:
        pids |= {int(pid) for pid in found(grid.send_and_receive([message(n) for n in (1, 2, 3, 4)]), "pid")}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    replies = grid.send_and_receive([message(n) for n in (1, 2, 3, 4)], timeout=240)
    assert not any(reply.has_error() for reply in replies)


def test_an_actor_without_a_place_holds_up_nobody() -> None:
    """Of three actors two fit in two cores; the third's share of the messages goes to the others."""
    from flfw.engines.ray_grid import RayGrid

    cores = int(ray.cluster_resources()["CPU"])
    narrow = RayGrid(app, CLIENTS, {}, actors=cores + 1, actor_options={"num_cpus": 0.7})
    replies = narrow.send_and_receive([message(n) for n in range(1, CLIENTS + 1)], timeout=240)
    narrow.close()
    assert len(replies) == CLIENTS


def test_a_simulation_leaves_its_place_to_the_next() -> None:
    """Also while something still knows its grid, such as a notebook's variable."""
    grids: list[Any] = []
    for _ in range(3):
        server = ServerApp()

        @server.main()
        def main(grid: Any, context: Any) -> None:
            grids.append(grid)
            assert len(grid.send_and_receive([message(n) for n in (1, 2, 3)], timeout=120)) == 3

        run_simulation(server, app, 3, backend_config={"client_resources": {"num_cpus": 0.7}})
    assert len(grids) == 3


def test_a_node_with_other_versions_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from flfw.engines.ray_grid import RayGrid

    here = {**known_versions(), "torch": "1.0"}
    monkeypatch.setattr("flfw.engines.client_actor.versions", lambda: here)
    other = RayGrid(app, 1, {}, actors=1, actor_options={"num_cpus": 0.25})
    with pytest.raises(InputError, match=r"^Expected torch 1\.0 on every node, as here; got \d\S+ on [\d.]+\.$"):
        other.send_and_receive([message(1)], timeout=120)
    other.close()


def known_versions() -> dict[str, str]:
    from flfw.engines.client_actor import versions

    return versions()
