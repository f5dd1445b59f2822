"""Forged answers, down to the objects in which Flower sends a message."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree


@final
@dataclass(frozen=True)
class Sent:
    """Answer as it is sent.

    Attributes:
        envelope: its message without content.
        tree: tree of the names of its objects.
        objects: the objects by name.
    """

    envelope: Message
    tree: ObjectTree
    objects: Mapping[str, bytes]


@final
@dataclass(frozen=True)
class Forged:
    """Object with a name that fits its bytes, and any content.

    Attributes:
        kind: name of its class in Flower.
        body: its bytes.
        parts: objects in it.
    """

    kind: str
    body: bytes
    parts: Sequence[Forged] = field(default=())

    @property
    def content(self) -> bytes:
        """Bytes as Flower sends them."""
        names = ",".join(dict.fromkeys(part.name for part in self.parts))
        return f"{self.kind} {names} {len(self.body)}".encode() + b"\x00" + self.body

    @property
    def name(self) -> str:
        """Hash of its bytes."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def tree(self) -> ObjectTree:
        """Tree of the names."""
        parts = {part.name: part for part in self.parts}
        return ObjectTree(object_id=self.name, children=[part.tree for part in parts.values()])

    @property
    def objects(self) -> dict[str, bytes]:
        """All objects by name."""
        inner = {name: content for part in self.parts for name, content in part.objects.items()}
        return {self.name: self.content, **inner}


def sealed(message: Message) -> Sent:
    """Return a message as an honest site sends it."""
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    return Sent(message, get_object_tree(message), objects)


def forged_answer(message: Message, top: Forged, **changed: Any) -> Sent:
    """Return a forged object under an envelope that answers a message.

    Args:
        message: the message.
        top: the object.
        changed: metadata of the envelope.
    """
    envelope = Message(RecordDict(), reply_to=message)
    envelope.metadata.__dict__["_message_id"] = top.name
    for name, value in changed.items():
        envelope.metadata.__dict__[f"_{name}"] = value
    return Sent(envelope, top.tree, top.objects)


def changed(message: Message, **metadata: Any) -> Message:
    """Return a message with other metadata."""
    for name, value in metadata.items():
        message.metadata.__dict__[f"_{name}"] = value
    return message


def in_message(message: Message, *parts: Forged) -> Forged:
    """Return a forged message around forged content."""
    whole = Message(RecordDict(), reply_to=message).deflate()
    return Forged("Message", whole.partition(b"\x00")[2], parts)


def record_dict(**records: Forged) -> Forged:
    """Return a forged content of some records."""
    refs = {name: record.name for name, record in records.items()}
    return Forged("RecordDict", json.dumps(refs).encode(), tuple(records.values()))


def plain(record: ArrayRecord | MetricRecord | ConfigRecord | Array) -> Forged:
    """Return a record as an honest site makes it."""
    parts = tuple(plain(part) for part in (record.children or {}).values())  # type: ignore[arg-type]
    return Forged(type(record).__qualname__, record.deflate().partition(b"\x00")[2], parts)


def array(data: bytes, like: Array, stype: str = "numpy.ndarray") -> Array:
    """Return an array of any bytes that says of itself as another one does."""
    return Array(dtype=like.dtype, shape=tuple(like.shape), stype=stype, data=data)


def npy(header: bytes, data: bytes, version: bytes = b"\x01\x00") -> bytes:
    """Return an array file of any header."""
    width = 2 if version == b"\x01\x00" else 4
    return b"\x93NUMPY" + version + len(header).to_bytes(width, "little") + header + data


def failure(message: Message, reason: str, code: int = 2) -> Message:
    """Return an error in answer to a message."""
    return Message(Error(code, reason), reply_to=message)


def answering(message: Message, content: RecordDict) -> Message:
    """Return content in answer to a message."""
    return Message(content, reply_to=message)


def envelope_of(message: Message, inner: Message) -> Sent:
    """Return one message under the envelope of another one."""
    sent = sealed(inner)
    message.metadata.__dict__["_message_id"] = inner.object_id
    return Sent(message, sent.tree, sent.objects)
