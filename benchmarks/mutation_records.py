"""Operators of mutation on the records of Flower's messages: arrays with their headers, scalars, whole answers."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from benchmarks.mutation_operators import NUMBERS, WORDS, bytes_mutant, tree_mutant, word_mutant

_TYPES = ("?", "|b1", "<f4", ">f4", "<f2", "<f8", "<i8", "<U9", "|O", "<M8[s]", "<c8", "|V4", "f4,f4", "float32")


_SHAPES = ("()", "(0,)", "(-1,)", "(4, 3)", "(3, 4)", "(12,)", "(1, 12)", "(9999999999999,)", "(2, 3), 'x': 1", "4")


def _array_mutant(array: Array, rng: Random) -> Array:
    """Return an array with another header, other bytes, or another description beside them."""
    data, change = array.data, rng.random()
    head, end = data[:10], 10 + int.from_bytes(data[8:10], "little")
    words, body = data[10:end].decode("latin1"), data[end:]
    if change < 0.35:
        old, news = rng.choice(
            ((words.split("'")[3], _TYPES), (words[words.index("(") : words.index(")") + 1], _SHAPES))
        )
        words = words.replace(old, rng.choice(news), 1)
        words = words if rng.random() < 0.5 else words.replace("False", rng.choice(("True", "1", "None")), 1)
        data = head[:8] + len(words).to_bytes(2, "little") + words.encode("latin1") + body
    elif change < 0.55:
        numbers = [torch.tensor(float(rng.choice(NUMBERS[:11] + NUMBERS[13:]))) for _ in range(2)]
        data = data[:end] + numbers[0].numpy().tobytes() + body[4:] if len(body) >= 4 else data
    elif change < 0.65:
        deep = rng.choice(("(" * 5000, "[" * 5000, "{" * 300, "'" * 9, "\x00" * 99, "lambda: 1", "9" * 5000))
        data = head[:8] + len(deep).to_bytes(2, "little") + deep.encode() + body
    elif change < 0.72:
        data = data[:6] + rng.randbytes(4) + data[10:]
    elif change < 0.8:
        return Array(rng.choice(WORDS[:20]), (rng.choice((0, 4, 2**40)),), rng.choice(("numpy.ndarray", "x", "")), data)
    else:
        data = bytes_mutant(data, rng)
    return Array(array.dtype, array.shape, array.stype, data)


def arrays_mutant(record: ArrayRecord, rng: Random) -> ArrayRecord:
    """Return arrays of which one is changed, or has another name, is left out or is there twice."""
    arrays = dict(record.items())
    if not arrays:
        return record
    name, change = rng.choice(list(arrays)), rng.random()
    if change < 0.65:
        arrays[name] = _array_mutant(arrays[name], rng)
    elif change < 0.75:
        arrays[word_mutant(name, rng).replace("\ud800", "?")] = arrays.pop(name)
    elif change < 0.85:
        del arrays[name]
    elif change < 0.95:
        arrays[name] = arrays[rng.choice(list(arrays))]
    else:
        arrays |= {f"{name}/{i}": arrays[name] for i in range(rng.choice((1, 300)))}
    return ArrayRecord(arrays)


def scalars_mutant(values: dict[str, Any], rng: Random) -> dict[str, Any]:
    """Return scalars of a record of which one is changed, renamed, added or removed."""
    changed = tree_mutant(values, rng)
    changed = changed if isinstance(changed, dict) else {**values, rng.choice(list(values)): changed}
    return {str(key).replace("\ud800", "?"): value for key, value in changed.items()}


def record_mutant(kind: type[Any], values: dict[str, Any], rng: Random) -> Any:
    """Return a record of changed scalars; Flower's records refuse some types, which no message can hold."""
    for _ in range(20):
        try:
            made = kind(scalars_mutant(values, rng))
            made.deflate()
            return made
        except (TypeError, ValueError, AttributeError, OverflowError):
            continue
    return kind(values)


def content_mutant(arrays: ArrayRecord, metrics: dict[str, Any], rng: Random) -> RecordDict:
    """Return the changed content of an answer."""
    content: dict[str, Any] = {"arrays": arrays, "metrics": MetricRecord(metrics)}
    change = rng.random()
    if change < 0.55:
        content["arrays"] = arrays_mutant(arrays, rng)
    elif change < 0.88:
        content["metrics"] = record_mutant(MetricRecord, metrics, rng)
    elif change < 0.92:
        content["arrays"], content["metrics"] = content["metrics"], content["arrays"]
    elif change < 0.96:
        content[word_mutant("arrays", rng).replace("\ud800", "?")] = content.pop("arrays")
    else:
        content["more"] = rng.choice((arrays, ConfigRecord({"words": "x" * 1000})))
    return RecordDict(content)


def reply_to(content: RecordDict, rng: Random, to: Message | None = None) -> Message:
    """Return an answer with a content, or at times with an error; to any message, or to this one."""
    to = to or Message(RecordDict(), dst_node_id=1, message_type="train")
    if rng.random() < 0.06:
        reason = rng.choice(WORDS).replace("\ud800", "?") * rng.choice((1, 1000))
        error = Error(rng.choice((0, 2, 10**6)), rng.choice((reason, f"<class 'x'>:<'{reason}'>", "RayActorError")))
        return Message(error, reply_to=to)
    return Message(content, reply_to=to)
