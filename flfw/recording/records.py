"""Records of a Flower message: which of them hold the tensors of an update, under which names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from flwr.app import Array, RecordDict

from flfw.errors import require

_XGBOOST = (b"learner", b"gradient_booster", b"tree_info")


class NoRecord(ValueError):
    """Error: a message does not have the record that an app's description names."""


@final
@dataclass(frozen=True)
class RecordMap:
    """Names under which an app's messages have the tensors of an update.

    Attributes:
        sent: array record in a client's reply; empty: the only one. Where there are several, all are recorded, and the
            record's name comes first in the tensors' names.
        received: array record in the server's message, likewise.
        types: message types that are updates of training; they are recorded as ``train``.
        prefix: start of a tensor's name that is left out, such as ``model.``.
        client: value of the message's configuration or of the reply's metrics that is the client's number.
    """

    sent: str = ""
    received: str = ""
    types: tuple[str, ...] = ("train",)
    prefix: str = ""
    client: str = "client"

    def __post_init__(self) -> None:
        require(not isinstance(self.types, str) and bool(self.types), "a tuple of message types", types=self.types)

    def type_of(self, message_type: str) -> str:
        """Return the type under which a message is recorded.

        >>> RecordMap(types=("train.fit",)).type_of("train.fit"), RecordMap(types=("train.fit",)).type_of("train")
        ('train', 'train.default')
        """
        if message_type in self.types:
            return "train"
        return "train.default" if message_type == "train" else message_type

    def arrays(self, content: RecordDict, name: str) -> dict[str, Array]:
        """Return the arrays of a message by name.

        Args:
            content: of the message.
            name: of the record, ``sent`` or ``received``.

        Raises:
            NoRecord: it has no such record.
        """
        records = content.array_records
        if name and name not in records:
            raise NoRecord(f"there is no array record {name} among {', '.join(records) or 'none'}")
        if name or len(records) == 1:
            (record,) = [records[name]] if name else records.values()
            return {key.removeprefix(self.prefix): array for key, array in record.items()}
        return {
            f"{part}/{key.removeprefix(self.prefix)}": array
            for part, record in records.items()
            for key, array in record.items()
        }


def unreadable(arrays: Mapping[str, Array], error: Exception) -> str:
    """Return why arrays cannot be stored; a model of XGBoost is named."""
    if any(word in array.data[:4096] for array in arrays.values() for word in _XGBOOST):
        return "it is a model of XGBoost: trees have no gradients, and no attack here applies to them"
    return f"the arrays cannot be stored: {' '.join(str(error).split())[:200]}"


def scalars(content: RecordDict) -> dict[str, Any]:
    """Return all values of a message but its arrays; bytes become their length and SHA-256, for JSON."""
    records = [*content.config_records.values(), *content.metric_records.values()]
    return {key: _plain(value) for record in records for key, value in record.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value)} bytes, SHA-256 {hashlib.sha256(value).hexdigest()}"
    return [_plain(item) for item in value] if isinstance(value, list) else value
