"""Cohorts beside deadlines and failures: time is not taken from them, and failures are those of one by one."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flfw.client.site import Site
from flfw.engines import ray_start
from flfw.engines.client_actor import ClientActor, SimulatedApp
from flfw.messages.inprocess import InProcessGrid, MessageBatches
from flfw.messages.message_packing import pack_message, unpack_message
from flfw.messages.wire import pack
from tests.support.actor_app import app, together

SIZES = MessageBatches("train", 2, together)


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    InProcessGrid(app, 1, {})  # a Message() asks for the identity of a run
    yield


def asked(nodes: Sequence[int], deed: str = "adds", **more: Any) -> list[Message]:
    config: dict[str, Any] = {"deed": deed, "among": [-1, *range(9)], "folder": ""}
    contents = [RecordDict({"arrays": pack({"w": torch.zeros(3)}), "config": ConfigRecord(config)}) for _ in nodes]
    return [Message(content, node, "train", **more) for content, node in zip(contents, nodes, strict=True)]


def test_a_node_that_does_not_exist_fails_alone_in_its_batch() -> None:
    replies = InProcessGrid(app, 3, {}, batches=SIZES).send_and_receive(asked([3, 4]))
    assert [reply.has_error() for reply in replies] == [False, True]
    assert replies[1].error.reason == "there is no node 4"


def cancelled(messages: Sequence[tuple[Message, Context]]) -> list[Message | Exception]:
    """Fail as no `Exception` does."""
    raise asyncio.CancelledError


def test_a_batch_that_fails_as_a_whole_is_answered_one_by_one_and_ends_no_actor() -> None:
    actor = ClientActor(SimulatedApp(app, 3, {}, batches=MessageBatches("train", 2, cancelled)))
    messages = asked([1, 2])
    for message in messages:
        message.metadata.__dict__["_message_id"] = str(message.metadata.dst_node_id)
    _, packed, _ = actor.answer([pack_message(message, {}) for message in messages], {}, {}, [2])
    assert not any(unpack_message(parcel, {}).has_error() for parcel in packed)


WORK = """
import time
from flwr.app import Context, RecordDict
from flfw.engines.apps import until
context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
with until(time.time() + 3.0, context):
    try:
        with until(time.time() + 2.0, context):
            raise ValueError("no state")
    except ValueError:
        pass
    time.sleep(30)
"""


@pytest.mark.slow
def test_a_client_that_fails_early_does_not_lift_the_deadline_of_its_batch() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1 and "Timeout" in done.stderr


@pytest.mark.nightly
@pytest.mark.early
def test_a_batch_may_take_more_than_half_of_its_time() -> None:
    """Two clients that sleep for 4 s each: half of 14 s is less than both need, and the rest not enough for another."""
    ray_start.configure_ray("")
    with ray_start.started("", Site(), lambda: 100_000_000):
        from flfw.engines.ray_grid import RayGrid

        grid = RayGrid(app, 2, {}, actors=1, actor_options={"num_cpus": 0.25}, batches=SIZES)
        grid.send_and_receive([Message(RecordDict(), 1, "query")], timeout=240)
        replies = grid.send_and_receive(asked([1, 2], "sleeps", ttl=14.0), timeout=60)
        grid.close()
    assert [reply.has_error() for reply in replies] == [False, False]
    assert [reply.content.metric_records["batch"]["size"] for reply in replies] == [2, 2]
