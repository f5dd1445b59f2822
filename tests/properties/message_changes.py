"""Strategies that change one thing in the records of a message: arrays and their headers, scalars, whole replies."""

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.properties.changes import changed_bytes, changed_tree, changed_word, words

_TYPES = ("?", "|b1", "<f4", ">f4", "<f2", "<f8", "<i8", "<U9", "|O", "<M8[s]", "<c8", "|V4", "f4,f4", "float32")
_SHAPES = ("()", "(0,)", "(-1,)", "(4, 3)", "(3, 4)", "(12,)", "(1, 12)", "(9999999999999,)", "(2, 3), 'x': 1", "4")
_ORDERS = ("False", "True", "1", "None")
_DEEP = ("(" * 5000, "[" * 5000, "{" * 300, "'" * 9, "\x00" * 99, "lambda: 1", "9" * 5000)


def writable(word: str) -> str:
    """A word that UTF-8 can write, as no message holds another."""
    return word.replace("\ud800", "?")


@st.composite
def changed_array(draw: DrawFn, array: Array) -> Array:
    """An array with another header, other bytes, or another description beside them."""
    data = array.data
    end = 10 + int.from_bytes(data[8:10], "little")
    header, body = data[10:end].decode("latin1"), data[end:]
    kinds = ("header", "header", "value", "value", "deep", "version", "description", "bytes")
    change = draw(st.sampled_from(kinds))
    if change == "header":
        old, new = draw(
            st.one_of(
                st.tuples(st.just(header.split("'")[3]), st.sampled_from(_TYPES)),
                st.tuples(st.just(header[header.index("(") : header.index(")") + 1]), st.sampled_from(_SHAPES)),
                st.tuples(st.just("False"), st.sampled_from(_ORDERS)),
            )
        )
        header = header.replace(old, new, 1)
        data = data[:8] + len(header).to_bytes(2, "little") + header.encode("latin1") + body
    elif change == "value" and len(body) >= 4:
        at = 4 * draw(st.integers(0, len(body) // 4 - 1))
        value = np.float32(draw(st.one_of(st.sampled_from((np.nan, np.inf, -np.inf)), st.floats(width=32))))
        data = data[:end] + body[:at] + value.tobytes() + body[at + 4 :]
    elif change == "deep":
        deep = draw(st.sampled_from(_DEEP))
        data = data[:8] + len(deep).to_bytes(2, "little") + deep.encode() + body
    elif change == "version":
        data = data[:6] + draw(st.binary(min_size=4, max_size=4)) + data[10:]
    elif change == "description":
        kind, shape = draw(words()), (draw(st.sampled_from((0, 4, 2**40))),)
        return Array(kind, shape, draw(st.sampled_from(("numpy.ndarray", "x", ""))), data)
    else:
        data = draw(changed_bytes(data))
    return Array(array.dtype, array.shape, array.stype, data)


@st.composite
def changed_arrays(draw: DrawFn, record: ArrayRecord) -> ArrayRecord:
    """Arrays of which one is changed, or has another name, is left out or is there more than once."""
    arrays = dict(record.items())
    name = draw(st.sampled_from(list(arrays)))
    change = draw(st.sampled_from(("array",) * 5 + ("renamed", "left out", "another's", "repeated")))
    if change == "array":
        arrays[name] = draw(changed_array(arrays[name]))
    elif change == "renamed":
        arrays[writable(draw(changed_word(name)))] = arrays.pop(name)
    elif change == "left out":
        del arrays[name]
    elif change == "another's":
        arrays[name] = arrays[draw(st.sampled_from(list(arrays)))]
    else:
        arrays |= {f"{name}/{i}": arrays[name] for i in range(draw(st.sampled_from((1, 300))))}
    return ArrayRecord(arrays)


@st.composite
def changed_scalars(draw: DrawFn, values: dict[str, Any]) -> dict[str, Any]:
    """Scalars of a record of which one is changed, renamed, added or removed."""
    changed = draw(changed_tree(values))
    if not isinstance(changed, dict):
        changed = {**values, draw(st.sampled_from(list(values))): changed}
    return {writable(str(key)): value for key, value in changed.items()}


@st.composite
def changed_record(draw: DrawFn, kind: type[Any], values: dict[str, Any]) -> Any:
    """A record of changed scalars; Flower's records refuse some types, which no message can hold."""
    for _ in range(5):
        try:
            made = kind(draw(changed_scalars(values)))
            made.deflate()
        except (TypeError, ValueError, AttributeError, OverflowError):
            continue
        return made
    return kind(values)


@st.composite
def changed_content(draw: DrawFn, arrays: ArrayRecord, metrics: dict[str, Any]) -> RecordDict:
    """Changed content of an answer with arrays and metrics."""
    content: dict[str, Any] = {"arrays": arrays, "metrics": MetricRecord(metrics)}
    change = draw(st.sampled_from(("arrays",) * 6 + ("metrics",) * 3 + ("exchanged", "renamed", "more")))
    if change == "arrays":
        content["arrays"] = draw(changed_arrays(arrays))
    elif change == "metrics":
        content["metrics"] = draw(changed_record(MetricRecord, metrics))
    elif change == "exchanged":
        content["arrays"], content["metrics"] = content["metrics"], content["arrays"]
    elif change == "renamed":
        content[writable(draw(changed_word("arrays")))] = content.pop("arrays")
    else:
        content["more"] = draw(st.sampled_from((arrays, ConfigRecord({"words": "x" * 1000}))))
    return RecordDict(content)


@st.composite
def failures(draw: DrawFn) -> Error:
    """Errors with any reason."""
    reason = draw(words()) * draw(st.sampled_from((1, 1000)))
    written = draw(st.sampled_from((reason, f"<class 'x'>:<'{reason}'>", "RayActorError")))
    return Error(draw(st.sampled_from((0, 2, 10**6))), written)


@st.composite
def answer(draw: DrawFn, content: RecordDict, to: Message | None = None) -> Message:
    """An answer with a content, or at times with an error; to any message, or to this one."""
    to = to or Message(RecordDict(), dst_node_id=1, message_type="train")
    if draw(st.integers(0, 14)) == 14:
        return Message(draw(failures()), reply_to=to)
    return Message(content, reply_to=to)
