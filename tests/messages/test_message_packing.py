"""Messages in plain parts: they come out as they went in, and nobody's change is seen by others."""

import pickle

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from flfw.messages.inprocess import InProcessGrid
from flfw.messages.message_packing import (
    array_bytes,
    held,
    pack_arrays,
    pack_message,
    pack_records,
    unpack_message,
    unpack_records,
)
from flfw.messages.wire import pack, unpack

LARGE, SMALL = torch.arange(2000.0).reshape(2, 1000), torch.tensor([True, False])


@pytest.fixture
def message() -> Message:
    InProcessGrid(lambda message, context: message, 1, {})  # type: ignore[arg-type]  # nobody else may write a message
    content = RecordDict({"arrays": pack({"w": LARGE, "mask": SMALL})})
    content["config"] = ConfigRecord({"round": 3, "names": ["a", "b"], "key": b"\x00\x01", "lr": 0.1, "on": True})
    content["metrics"] = MetricRecord({"loss": 0.5, "each": [1.0, 2.0]})
    return Message(content, dst_node_id=7, message_type="train.probe", group_id="3", ttl=9.0)


def carried(value: object) -> tuple[object, int]:
    """What arrives on the other side of a pickle, and the bytes of the buffers beside it."""
    beside: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=beside.append)
    views = [memoryview(bytes(buffer.raw())) for buffer in beside]
    return pickle.loads(data, buffers=views), sum(view.nbytes for view in views)


def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    packed, beside = carried(pack_message(message, {}))
    there = unpack_message(packed, {})  # type: ignore[arg-type]
    assert there.metadata == message.metadata
    assert list(there.content) == ["arrays", "config", "metrics"]
    for kind in ("config_records", "metric_records"):
        for name, record in getattr(message.content, kind).items():
            assert dict(getattr(there.content, kind)[name]) == dict(record)
    tensors = unpack(there.content.array_records["arrays"])
    assert torch.equal(tensors["w"], LARGE) and torch.equal(tensors["mask"], SMALL)
    assert all(type(array.data) is bytes for array in there.content.array_records["arrays"].values())
    assert beside == len(message.content.array_records["arrays"]["w"].data), "the large array alone travels beside"


def test_an_error_comes_out_as_it_went_in(message: Message) -> None:
    packed, _ = carried(pack_message(Message(Error(2, "the shield fell"), reply_to=message), {}))
    there = unpack_message(packed, {})  # type: ignore[arg-type]
    assert (there.has_content(), there.error.code, there.error.reason) == (False, 2, "the shield fell")
    assert there.metadata.src_node_id == 7


def test_arrays_that_many_messages_share_travel_once(message: Message) -> None:
    record = message.content.array_records["arrays"]
    packed, beside = carried(pack_message(message, {id(record): 5}))
    assert beside == 0
    arrived, _ = carried(pack_arrays(record))
    stored = {5: held(arrived)}  # type: ignore[arg-type]
    first, second = (unpack_message(packed, stored).content.array_records["arrays"] for _ in range(2))  # type: ignore
    assert first["w"].data is second["w"].data, "bytes need no copy"
    first["w"].data = b""
    del first["mask"]
    assert torch.equal(unpack(second)["w"], LARGE) and list(second) == ["w", "mask"]


def test_bytes_are_counted_without_those_that_are_shared(message: Message) -> None:
    record = message.content.array_records["arrays"]
    whole = sum(len(array.data) for array in record.values())
    assert array_bytes(pack_records(message.content, {})) == whole
    assert array_bytes(pack_records(message.content, {id(record): 1})) == 0
    assert array_bytes(None) == 0


def test_a_state_of_nothing_is_nothing() -> None:
    assert pack_records(RecordDict(), {}) == []
    assert list(unpack_records([], {})) == []
