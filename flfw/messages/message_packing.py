"""Messages in plain parts, for the way to another process and back: the bytes of arrays travel beside the pickle.

Flower's classes copy and check every array, and their pickle holds the bytes. Here a message becomes a tuple of its
metadata, its records as plain values, and its error. The other side makes a message of its own of it, so that nothing
that it changes is seen by anybody else; only the bytes of the arrays, which nobody can change, may be shared.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message

from flfw.messages.npy import LateArray, LateBytes, late_of, split

ArrayParts: TypeAlias = list[tuple[str, str, tuple[int, ...], str, Any]]
"""Name, type, shape, encoding and bytes of each array of a record; many bytes as an array, which Ray does not copy.

Of an array whose bytes have not been made they are two: those before the numbers, and the numbers'.
"""
RecordParts: TypeAlias = list[tuple[str, str, Any]]
"""Name and kind of each record, and its values; of a record that is sent once for many messages, its number."""
Parcel: TypeAlias = tuple[Any, RecordParts | None, Any]
"""Metadata, records and error of a message."""

_SMALL = 4096  # bytes of an array that travels within the pickle: a buffer of its own costs more than a copy
_ARRAYS, _SHARED, _METRICS, _CONFIG = "arrays", "shared", "metrics", "config"


def pack_arrays(record: ArrayRecord) -> ArrayParts:
    """Take an ArrayRecord apart; no byte is copied before the parts are sent, unless an app put in a bytearray."""
    return [(name, one.dtype, one.shape, one.stype, _bytes_of(one)) for name, one in record.items()]


def _bytes_of(array: Array) -> Any:
    late = late_of(array)
    if late is not None and len(late) >= _SMALL:
        return late.head, late.body
    data = bytes(array.data)
    return data if len(data) < _SMALL else np.frombuffer(data, np.uint8)


def held(parts: ArrayParts) -> ArrayParts:
    """Return parts whose bytes are this process's own, since those that came from another one lie in its store."""
    return [(name, dtype, shape, stype, _own(data)) for name, dtype, shape, stype, data in parts]


def _own(data: Any) -> bytes:
    if isinstance(data, tuple):
        return data[0] + data[1].tobytes()
    return data if isinstance(data, bytes) else data.tobytes()


def lent(parts: ArrayParts) -> ArrayParts:
    """Return parts whose bytes stay in the store of another process; they are copied once when somebody wants them."""
    return [(name, dtype, shape, stype, _late(data)) for name, dtype, shape, stype, data in parts]


def _late(data: Any) -> bytes | LateBytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, tuple):
        return LateBytes(*data)
    late = split(data)
    return data.tobytes() if late is None else late


def unpack_arrays(parts: ArrayParts) -> ArrayRecord:
    """Make an ArrayRecord of `held` or `lent` parts; it shares their bytes with all other records made of them."""
    record = ArrayRecord()  # filled one by one: of a dictionary it would make every Array once more
    for name, dtype, shape, stype, data in parts:
        late = isinstance(data, LateBytes)
        record[name] = LateArray(dtype, shape, stype, data) if late else Array(dtype, tuple(shape), stype, data)
    return record


def pack_records(content: RecordDict, shared: Mapping[int, int]) -> RecordParts:
    """Take the records of a message or of a state apart.

    Args:
        content: the records.
        shared: numbers of the ArrayRecords that are sent once for many messages, by the identity of the object.
    """
    parts: RecordParts = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            number = shared.get(id(record))
            parts.append((name, _ARRAYS, pack_arrays(record)) if number is None else (name, _SHARED, number))
        else:
            values = {key: list(value) if isinstance(value, list) else value for key, value in record.items()}
            parts.append((name, _METRICS if isinstance(record, MetricRecord) else _CONFIG, values))
    return parts


def inlined(parts: RecordParts, arrays: Mapping[int, ArrayParts]) -> RecordParts:
    """Put arrays in the place of their numbers, as far as they are given.

    Args:
        parts: the records of a message.
        arrays: parts of ArrayRecords by their number.
    """
    return [
        (name, _ARRAYS, arrays[values]) if kind == _SHARED and values in arrays else (name, kind, values)
        for name, kind, values in parts
    ]


def unpack_records(parts: RecordParts, shared: Mapping[int, ArrayParts]) -> RecordDict:
    """Make the records of parts that came from another process.

    Args:
        parts: the parts.
        shared: `held` or `lent` parts of the ArrayRecords that were sent once for many messages, by their number.
    """
    records = RecordDict()
    for name, kind, values in parts:
        if kind == _METRICS:
            records[name] = MetricRecord(values)
        elif kind == _CONFIG:
            records[name] = ConfigRecord(values)
        else:
            records[name] = unpack_arrays(lent(values) if kind == _ARRAYS else shared[values])
    return records


def pack_message(message: Message, shared: Mapping[int, int]) -> Parcel:
    """Take a message apart; for ``shared`` see `pack_records`."""
    if message.has_error():
        return message.metadata, None, message.error
    return message.metadata, pack_records(message.content, shared), None


def unpack_message(packed: Parcel, shared: Mapping[int, ArrayParts]) -> Message:
    """Make a message of a parcel; for ``shared`` see `unpack_records`."""
    metadata, parts, error = packed
    if parts is None:
        return make_message(metadata, error=error)
    return make_message(metadata, unpack_records(parts, shared))


def array_bytes(parts: RecordParts | None) -> int:
    """Count the bytes of the arrays in parts; those of shared records are not among them."""
    arrays = [part[4] for _, kind, values in parts or () if kind == _ARRAYS for part in values]
    return sum(sum(map(len, data)) if isinstance(data, tuple) else len(data) for data in arrays)


def lent_bytes(message: Message) -> int:
    """Count the bytes of a message's arrays that lie in the store of another process."""
    if not message.has_content():
        return 0
    records = [record for record in message.content.values() if isinstance(record, ArrayRecord)]
    return sum(len(late) for record in records for array in record.values() if (late := late_of(array)) is not None)


def keep(message: Message) -> None:
    """Copy the arrays of a message that lie in the store of another process, or in memory that a client may change."""
    if message.has_content():
        keep_records(message.content)


def keep_records(content: RecordDict) -> None:
    """Copy the arrays of some records as `keep` does."""
    for record in content.values():
        for array in record.values() if isinstance(record, ArrayRecord) else ():
            _ = array.data
