"""Arrays whose bytes are made late: the same messages, and never what a client writes in its memory afterwards."""

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flfw.engines.branches import places_of, whole
from flfw.engines.client_actor import ClientActor, SimulatedApp
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.message_packing import pack_message, unpack_arrays, unpack_message, unpack_records
from flfw.messages.npy import LateArray, late_of, length, made_late, packed, read, split
from flfw.messages.reasons import UnusableReplyError
from flfw.messages.replies import read_update
from flfw.messages.streaming import StreamingGrid
from flfw.messages.wire import pack, unpack

SHAPES = ((), (0,), (3,), (2, 0, 4), (2, 3))
NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)
SIZE = 2000  # numbers of a tensor that travels beside the pickle
MEMORY = torch.zeros(SIZE)  # of all clients: each writes its own numbers there, sends it, and the next one changes it

app = ClientApp()


@app.train()
def trained(message: Message, context: Context) -> Message:
    """Send, and keep, the number of the client; client 0 sends what cannot be used."""
    me = int(context.node_config["partition-id"])
    MEMORY.fill_(me if me else torch.nan)
    context.state["own"] = pack({"w": MEMORY})
    content = RecordDict({"arrays": pack({"w": MEMORY}), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


@pytest.fixture(autouse=True)
def grid() -> Iterator[InProcessGrid]:
    yield InProcessGrid(app, 4, {}, late=True)  # a Message() asks for the identity of a run


def asked() -> list[Message]:
    messages = [Message(RecordDict({"arrays": pack({"w": torch.zeros(SIZE)})}), node, "train") for node in range(1, 5)]
    for message in messages:
        message.metadata.__dict__["_message_id"] = str(message.metadata.dst_node_id)
    return messages


def first_of(record: object) -> float:
    assert isinstance(record, ArrayRecord)
    (value,) = unpack(record).values()
    assert torch.equal(value, value[:1].expand(SIZE)) or value.isnan().all()
    return float(value[0])


def refusal(reply: Message, broadcast: ArrayRecord) -> str:
    with pytest.raises(UnusableReplyError) as error:
        read_update(reply, ("*",), broadcast, copied=False)
    return str(error.value)


@pytest.mark.parametrize("kind", ["?", "i1", "i8", "f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_late_array_has_the_bytes_of_an_ordinary_one(kind: str, shape: tuple[int, ...]) -> None:
    value = np.ones(shape, kind)
    late, ordinary = packed(value, late=True), packed(value, late=False)
    sent = split(np.frombuffer(ordinary.data, np.uint8))
    assert sent is not None
    for one in (late, LateArray(ordinary.dtype, ordinary.shape, ordinary.stype, sent)):
        assert length(one) == length(ordinary) and late_of(one) is not None
        before = read(one)
        assert not before.flags.writeable
        assert one.data == ordinary.data and late_of(one) is None
        for numbers in (before, read(one)):
            np.testing.assert_array_equal(numbers, read(ordinary), strict=True)


def test_numbers_that_do_not_lie_in_a_row_are_sent_in_theirs() -> None:
    for value in (NUMBERS.T, NUMBERS[:, ::-2], np.broadcast_to(NUMBERS[0], (4, 3)), np.asfortranarray(NUMBERS)):
        assert packed(value, late=True).data == packed(value, late=False).data


@pytest.mark.parametrize(
    "way",
    [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)), lambda one: one],
    ids=["copied", "copied with all it holds", "pickled", "itself"],
)
def test_copies_and_pickles_are_equal(way: Callable[[Array], Array]) -> None:
    ordinary = packed(NUMBERS)
    assert way(packed(NUMBERS, late=True)).data == ordinary.data
    assert way(packed(NUMBERS, late=True)) == ordinary
    assert ordinary == way(packed(NUMBERS, late=True))
    assert way(packed(NUMBERS, late=True)) == packed(NUMBERS, late=True)
    assert way(packed(NUMBERS + 1, late=True)) != ordinary
    assert way(packed(NUMBERS, late=True)) != NUMBERS.tobytes()


def test_a_deep_copy_is_another_memory() -> None:
    value = NUMBERS.copy()
    copied = copy.deepcopy(packed(value, late=True))
    value += 1
    np.testing.assert_array_equal(read(copied), NUMBERS)


def test_flowers_identifiers_are_those_of_ordinary_arrays() -> None:
    late, ordinary = (pack({"w": torch.ones(3)}, late=late) for late in (True, False))
    assert late["w"].object_id == ordinary["w"].object_id
    assert late.object_id == ordinary.object_id
    with pytest.raises(TypeError, match="unhashable"):
        hash(packed(NUMBERS, late=True))


def test_an_attribute_that_is_set_stays() -> None:
    one = packed(NUMBERS, late=True)
    one.data = b"other"
    assert (one.data, length(one), late_of(one)) == (b"other", 5, None)
    assert not hasattr(LateArray.__new__(LateArray), "data")
    assert not hasattr(packed(NUMBERS, late=True), "more")


def test_many_threads_may_read_one_array() -> None:
    value = np.arange(50_000.0)
    expected = packed(value).data
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            one = packed(value, late=True)
            assert all(data == expected for data in pool.map(lambda _, one=one: one.data, range(8)))


def test_numbers_outlive_whose_memory_they_lie_in() -> None:
    late = packed(np.full(SIZE, 7.0), late=True)
    numbers = read(late)
    data = late.data  # the array's own bytes take the place of the memory
    del late
    np.testing.assert_array_equal(numbers, np.full(SIZE, 7.0))
    assert data.endswith(numbers.tobytes())


def test_only_what_is_packed_meanwhile_is_late() -> None:
    with pytest.raises(ValueError, match="no data"), made_late():
        assert late_of(packed(NUMBERS)) is not None
        assert late_of(packed(NUMBERS, late=False)) is None
        raise ValueError("no data")
    assert late_of(packed(NUMBERS)) is None


def test_replies_that_are_collected_hold_what_each_client_sent(grid: InProcessGrid) -> None:
    replies = grid.send_and_receive(asked())
    assert np.isnan(first_of(replies[0].content["arrays"]))
    assert [first_of(reply.content["arrays"]) for reply in replies[1:]] == [1, 2, 3]


def test_replies_that_are_read_in_turn_are_not_copied(grid: InProcessGrid) -> None:
    sent = []
    for reply in StreamingGrid(grid).send_and_receive(asked()):
        record = reply.content["arrays"]
        assert isinstance(record, ArrayRecord) and late_of(record["w"]) is not None
        sent.append(first_of(record))
    assert np.isnan(sent[0]) and sent[1:] == [1, 2, 3]


def test_who_waits_for_a_reply_that_came_too_late_reads_the_others_own_numbers(grid: InProcessGrid) -> None:
    messages = asked()
    messages[1].metadata.ttl = 0.0  # over before the client is asked
    sent = [first_of(reply.content["arrays"]) for reply in StreamingGrid(grid).send_and_receive(messages, timeout=0.2)]
    assert np.isnan(sent[0]) and sent[1:] == [2, 3]


def test_a_client_keeps_its_own_numbers_in_process(grid: InProcessGrid) -> None:
    grid.send_and_receive(asked())
    kept = [first_of(grid._contexts[node].state["own"]) for node in (1, 2, 3, 4)]
    assert np.isnan(kept[0]) and kept[1:] == [1, 2, 3]


def answered(messages: Sequence[Message], *, summed: bool) -> tuple[list[Message], list[float]]:
    """The replies of an actor, and what it keeps of the clients."""
    actor = ClientActor(SimulatedApp(app, 4, {}, uploads=("*",)))
    spans = whole(places_of(messages, 0)) if summed else []
    _, packed, states = actor.answer([pack_message(message, {}) for message in messages], {}, {}, (), spans)
    # What an actor returns is pickled; here, nobody changes it any more.
    kept = [unpack_records(states[node], {})["own"] for node in (1, 2, 3, 4)]
    return [unpack_message(parcel, {}) for parcel in packed], [first_of(record) for record in kept]


def test_a_refused_client_is_refused_for_its_own_numbers_beside_a_sum() -> None:
    messages, broadcast = asked(), pack({"w": torch.zeros(SIZE)})
    (sums, _), (singles, _) = (answered(messages, summed=summed) for summed in (True, False))
    assert refusal(sums[0], broadcast) == refusal(singles[0], broadcast) == "sent w with NaN or infinite values"
    assert ["arrays" in reply.content for reply in sums] == [True, False, False, True]
    assert first_of(sums[3].content["arrays"]) == 1 + 2 + 3
    assert [first_of(reply.content["arrays"]) for reply in singles[1:]] == [1, 2, 3]


@pytest.mark.parametrize("summed", [False, True])
def test_a_client_keeps_its_own_numbers_in_an_actor(summed: bool) -> None:
    _, kept = answered(asked(), summed=summed)
    assert np.isnan(kept[0]) and kept[1:] == [1, 2, 3]


def test_records_made_of_the_same_parts_share_their_bytes_and_no_change() -> None:
    sent = split(np.frombuffer(packed(np.zeros(SIZE)).data, np.uint8))
    one, other = (unpack_arrays([("w", "float64", (SIZE,), "numpy.ndarray", sent)]) for _ in range(2))
    assert one["w"].data is other["w"].data
    one["w"].data = b""
    np.testing.assert_array_equal(read(other["w"]), np.zeros(SIZE))
