"""Messages on their way: values as they were when they were sent, and what is forgotten."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from flfw.engines.client_actor import PendingMessage, SharedRecords, check_software, versions
from flfw.errors import InputError
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.message_packing import held, unpack_message
from tests.support.awkward_app import app


@pytest.fixture
def pending() -> PendingMessage:
    InProcessGrid(app, 1, {})  # nobody else may write a message
    arrays = ArrayRecord({"w": Array(np.array([1.0, 2.0]))})
    return PendingMessage(
        Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"each": [1, 2]})}), 1, "train"), 0.0
    )


def sent(records: SharedRecords, pending: PendingMessage) -> Message:
    (packed,), places = records.parcels([pending])
    assert not places, "nobody else has it"
    name, kind, parts = packed[1][0]  # type: ignore[index]
    return unpack_message((packed[0], [(name, kind, held(parts)), *packed[1][1:]], None), {})  # type: ignore[index]


def test_a_message_is_sent_with_the_values_that_it_had_when_it_was_noted(pending: PendingMessage) -> None:
    records = SharedRecords()
    records.note([pending])
    content = pending.message.content
    content.array_records["arrays"]["w"] = Array(np.array([7.0, 7.0]))
    content.config_records["config"]["each"].append(3)  # type: ignore[union-attr]
    arrived = sent(records, pending).content
    assert np.array_equal(arrived.array_records["arrays"]["w"].numpy(), [1.0, 2.0])
    assert arrived.config_records["config"]["each"] == [1, 2]


def test_a_record_that_was_changed_between_two_messages_is_two(pending: PendingMessage) -> None:
    records, message = SharedRecords(), pending.message
    same, later = PendingMessage(message, 0.0), PendingMessage(message, 0.0)
    records.note([pending])
    records.note([same])
    assert same.records == pending.records and pending.records[0].jobs == 2
    message.content.array_records["arrays"]["w"] = Array(np.array([7.0, 7.0]))
    records.note([later])
    assert [one.number for one in later.records] == [2]
    assert np.array_equal(sent(records, later).content.array_records["arrays"]["w"].numpy(), [7.0, 7.0])


def test_nothing_is_kept_of_settled_messages(pending: PendingMessage) -> None:
    records, later = SharedRecords(), PendingMessage(pending.message, 0.0)
    records.note([pending])
    pending.message.content.array_records["arrays"]["w"] = Array(np.array([7.0, 7.0]))
    records.note([later])
    records.forget(pending)
    assert len(records) == 1, "the later one waits"
    records.forget(later)
    assert len(records) == 0


def test_software_of_a_node_must_be_the_same() -> None:
    check_software(versions(), "10.0.0.2")
    with pytest.raises(InputError) as caught:
        check_software({**versions(), "flwr": "1.0"}, "10.0.0.2")
    assert str(caught.value) == f"Expected flwr {versions()['flwr']} on every node, as here; got 1.0 on 10.0.0.2."
    with pytest.raises(InputError, match=r"got None on 10\.0\.0\.2"):
        check_software({}, "10.0.0.2")
