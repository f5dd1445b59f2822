"""Ways to answer a message with something else than an honest client would; `tests.support.client_lies` uses them."""

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.recorddict_pb2 import MetricRecord as ProtoRecord
from flwr.proto.recorddict_pb2 import MetricRecordValue as ProtoValue

from flfw.files.provenance import code_hash
from flfw.messages.client_info import ClientInfo
from flfw.messages.factored_upload import Layers
from flfw.messages.wire import views
from tests.support.forgery import (
    Forged,
    Sent,
    answering,
    array,
    changed,
    envelope_of,
    failure,
    forged_answer,
    in_message,
    npy,
    plain,
    record_dict,
    sealed,
)  # fmt: skip

Answer: TypeAlias = "RecordDict | Message | Sent | Sequence[Message | Sent]"


@final
@dataclass(frozen=True)
class Lie:
    """One lie.

    Attributes:
        name: what it is.
        words: part of the line by which the server names the client; empty: the answer counts.
        answer: makes it from the message that is answered.
    """

    name: str
    words: str
    answer: Callable[[Message], Answer]


def honest(message: Message) -> RecordDict:
    """Return an answer that an honest client could give: the model as it came."""
    arrays = ArrayRecord(dict(message.content.array_records["arrays"]))
    return RecordDict({"arrays": arrays, "metrics": MetricRecord(dict(NUMBERS))})


NUMBERS = {"num-examples": 40, "loss": 1.0, "acc_global": 0.5, "acc_local": 0.5, "seconds": 0.1}
WEIGHT, BIAS = "classifier.weight", "classifier.bias"
EVIL = 0  # the evil client: all others wait for the first one
SPACES = b"                \n"


def tensors(**sent: Array | None) -> Callable[[Message], RecordDict]:
    """Return an answer with some tensors in place of the honest ones; None: without it."""

    def answer(message: Message) -> RecordDict:
        content = honest(message)
        arrays = {**content.array_records["arrays"], **{name.replace("_", "."): one for name, one in sent.items()}}
        content["arrays"] = ArrayRecord({name: one for name, one in arrays.items() if one is not None})
        return content

    return answer


def file(make: Callable[[Array], bytes], stype: str = "numpy.ndarray") -> Callable[[Message], RecordDict]:
    """Return an answer whose weight is any bytes."""

    def answer(message: Message) -> RecordDict:
        like = message.content.array_records["arrays"][WEIGHT]
        return tensors(classifier_weight=array(make(like), like, stype))(message)

    return answer


def header(words: str | bytes, version: bytes = b"\x01\x00") -> Callable[[Message], RecordDict]:
    """Return an answer whose weight has any header before its numbers."""
    text = words.encode() if isinstance(words, str) else words
    return file(lambda like: npy(text + SPACES, like.data[-_size(like) :], version))


def values(make: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], RecordDict]:
    """Return an answer whose weight is other numbers."""

    def answer(message: Message) -> RecordDict:
        made = make(message.content.array_records["arrays"][WEIGHT].numpy().copy())
        return tensors(classifier_weight=Array(made))(message)

    return answer


def numbers(**sent: Any) -> Callable[[Message], RecordDict]:
    """Return an answer with other metrics beside the honest ones."""
    return metrics({name.replace("_", "-") if name == "num_examples" else name: v for name, v in sent.items()})


def metrics(sent: dict[str, Any]) -> Callable[[Message], RecordDict]:
    """Return an answer with metrics of any names; None: without it."""

    def answer(message: Message) -> RecordDict:
        content = honest(message)
        all_of_them = {**NUMBERS, **sent}
        content["metrics"] = MetricRecord({name: value for name, value in all_of_them.items() if value is not None})
        return content

    return answer


def many_metrics(message: Message) -> Sent:
    """Return an answer with 200,000 metrics, which Flower would take half a minute to write."""
    items = [ProtoRecord.Item(key=f"m{i}", value=ProtoValue(double=0.5)) for i in range(200_000)]
    numbers = Forged("MetricRecord", ProtoRecord(items=items).SerializeToString())
    return forged(lambda content: record_dict(arrays=plain(content.array_records["arrays"]), metrics=numbers))(message)


def records(**sent: Any) -> Callable[[Message], RecordDict]:
    """Return an answer with other records; None: without it."""

    def answer(message: Message) -> RecordDict:
        content = {**honest(message), **sent}
        return RecordDict({name: record for name, record in content.items() if record is not None})

    return answer


def reason(text: str, code: int = 2) -> Callable[[Message], Message]:
    """Return an error of any words."""
    return lambda requested: failure(requested, text, code)


def forged(make: Callable[[RecordDict], Forged]) -> Callable[[Message], Sent]:
    """Return an honest message around forged content."""
    return lambda requested: forged_answer(requested, in_message(requested, make(honest(requested))))


def forged_array(body: str, chunk: bytes = b"", *more: Forged) -> Callable[[Message], Sent]:
    """Return an answer in which one array's description is forged."""

    def make(content: RecordDict) -> Forged:
        parts = (Forged("ArrayChunk", chunk), *more) if chunk else more
        one = Forged("Array", body.encode("utf-8", "surrogateescape"), parts)
        refs = f'{{"{WEIGHT}": "{one.name}"}}'.encode()
        return record_dict(arrays=Forged("ArrayRecord", refs, (one,)), metrics=plain(content.metric_records["metrics"]))

    return forged(make)


def unlike(**metadata: Any) -> Callable[[Message], Sent]:
    """Return an answer whose content says another thing of itself than its envelope."""

    def answer(message: Message) -> Sent:
        outer = answering(message, honest(message))
        return envelope_of(outer, changed(answering(message, honest(message)), **metadata))

    return answer


def then_an_error(make: Callable[[Message], Message]) -> Callable[[Message], Sequence[Message]]:
    """Return an answer that the SuperLink is to refuse, and then an error, which it is to take."""
    return lambda requested: [make(requested), failure(requested, "gave up")]


def _size(like: Array) -> int:
    return int(np.prod(like.shape)) * 4


def stray(**metadata: Any) -> Callable[[Message], Message]:
    return lambda requested: changed(answering(requested, honest(requested)), **metadata)


def incomplete(message: Message) -> Sent:
    whole = sealed(answering(message, honest(message)))
    return Sent(whole.envelope, whole.tree, {})


def in_the_way(message: Message) -> Sent:
    """Return an answer that never comes whole, and takes the names of the next messages for objects of its own.

    A SuperLink keeps one object for each hash, and the scalars of a message to another client can be foreseen.
    """
    config, k = dict(message.content.config_records["config"]), int(message.content.config_records["config"]["round"])  # type: ignore[arg-type]
    foreseen = [ConfigRecord({**config, "round": k + 1, "state_version": k, "client": client}) for client in range(3)]
    names = {record.object_id for record in foreseen} | {RecordDict().object_id}  # and what asks for an introduction
    whole, other = sealed(answering(message, honest(message))), Forged("ArrayChunk", b"").tree
    whole.tree.children.extend(ObjectTree(object_id=name, children=[other]) for name in sorted(names))
    return Sent(whole.envelope, whole.tree, {})


def twice(message: Message) -> Sequence[Message]:
    return [answering(message, honest(message)), answering(message, values(lambda w: w * 0 + 1e30)(message))]


def end(message: Message) -> Answer:
    os._exit(9)


F4 = "{'descr': '<f4', 'fortran_order': False, 'shape': "
UNREAD, UNINFLATED = "sent arrays that cannot be read: ", "sent what cannot be read: "
DESCRIBED = UNREAD + "a header that does not describe plain numbers"
EXAMPLES = "expected 1 <= num-examples <= 2147483648, got "
CURSOR = "\x1b[2J\x1b]0;owned\x07"
ARRAY = '{"dtype": "float32", "shape": [10, 64], "stype": "numpy.ndarray", "arraychunk_ids": '


def introduction() -> ClientInfo:
    """Return what an honest client with the digits says of itself."""
    return ClientInfo(EVIL, code_hash(), shape=(1, 8, 8), classes=10)


def introduced_as(**changed: Any) -> Callable[[Message], RecordDict]:
    """Return an introduction with other fields; None: without it."""

    def change(words: ConfigRecord) -> dict[str, Any]:
        fields = {**words, **changed}
        return {"about": ConfigRecord({name: value for name, value in fields.items() if value is not None})}

    return introduced(change)


def introduced(change: Callable[[ConfigRecord], dict[str, Any]]) -> Callable[[Message], RecordDict]:
    """Return other records in place of an introduction."""
    return lambda requested: RecordDict(change(introduction().to_message(requested).content.config_records["about"]))


def of_another(message: Message) -> Sent:
    """Return an introduction whose content answers another message."""
    inner = changed(introduction().to_message(message), reply_to_message_id="f" * 64)
    return envelope_of(introduction().to_message(message), inner)


def factors(
    *, full: bool = False, raw: bytes = b"", count: int = 0, more: dict[str, Any] | None = None, **changed: Any
) -> Callable[[Message], RecordDict]:
    """Return an answer whose heads are factors that change nothing, but for one of their parts.

    Args:
        full: whether the tensors that they replace are sent as well.
        raw: header of the axes; empty: their own.
        count: number in the stream, for each row.
        more: further parts by name.
        changed: other values of a part; None: without it.
    """

    def answer(message: Message) -> RecordDict:
        content, received = honest(message), views(message.content.array_records["arrays"])
        layers = Layers.matching(HEADS, received)
        assert layers is not None
        rows, columns = layers.shape
        parts: dict[str, np.ndarray] = {
            "base": np.frombuffer(layers.digest(received), np.uint8),
            "scales": np.array([1.0, 0.0]),
            "axes": np.zeros((columns, 1), np.float32),
            "planes": np.ones(1, np.uint8),
            "stream": np.frombuffer(zlib.compress(bytes([count]) * rows), np.uint8),
        }
        for name, value in {**changed, **(more or {})}.items():
            parts[name] = _part(parts.get(name), value)
        arrays = {f"{HEADS}/{name}": Array(part) for name, part in parts.items() if changed.get(name, 0) is not None}
        if raw:
            arrays[f"{HEADS}/axes"] = array(npy(raw + SPACES, b""), arrays[f"{HEADS}/axes"])
        kept = {n: a for n, a in content.array_records["arrays"].items() if full or n not in layers.names}
        content["arrays"] = ArrayRecord({**kept, **arrays})
        return content

    return answer


def _part(like: np.ndarray | None, value: Any) -> np.ndarray:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, list):
        return np.array(value)
    return np.zeros(0) if like is None or value is None else np.full_like(like, value)


HEADS = "hypernet.heads.*"
SWELLING = zlib.compress(bytes(2**27))
