"""What can go wrong with a client, and what the server makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord, Message

from flfw.nets.net import Tensors
from flfw.wire import matches, nbytes, unpack


@dataclass(frozen=True)
class Tolerance:
    """How much failure a run bears.

    Attributes:
        on_failure: a failed client ends the run, or is dropped from the round.
        min_clients: a round with fewer usable updates ends the run; >= 1.
        deadline: seconds that clients have for a round.
    """

    on_failure: Literal["fail", "drop"] = "fail"
    min_clients: int = 1
    deadline: float = 3600.0


@dataclass(frozen=True)
class Failure:
    """One client that gave nothing usable.

    Attributes:
        client: its partition; -1 if unknown.
        reason: in one line.
    """

    client: int
    reason: str

    def __str__(self) -> str:
        return f"{f'client {self.client}' if self.client >= 0 else 'a client'}: {self.reason}"


class Unusable(RuntimeError):
    """A client's reply cannot be used; the message says why."""


def usable(reply: Message, uploads: Sequence[str], broadcast: ArrayRecord) -> tuple[Tensors, dict[str, Any], int]:
    """A training reply's tensors, metrics and bytes, after every check that the server can make of them.

    Args:
        reply: from a client.
        uploads: patterns of the names it may send.
        broadcast: what it was sent: what comes back under the same name has the same shape and type, and all of it.

    Raises:
        Unusable: it is an error, it is not in form, or its numbers are not numbers.
    """
    if reply.has_error():
        raise Unusable(in_one_line(reply.error.reason))
    metrics = metrics_of(reply)
    examples = metrics.get("num-examples")
    if not (isinstance(examples, int) and examples > 0):
        raise Unusable(f"expected num-examples >= 1, got {examples}")
    try:
        record = reply.content.array_records["arrays"]
        tensors = unpack(record)
    except (KeyError, ValueError, TypeError, EOFError, OSError) as error:
        raise Unusable(f"sent arrays that cannot be read: {in_one_line(repr(error))}") from error
    _check_names(tensors, uploads, broadcast)
    for name, value in tensors.items():
        if name in broadcast:
            _check_form(name, value, broadcast[name].shape, broadcast[name].dtype)
        if not bool(torch.isfinite(value).all()):
            raise Unusable(f"sent {name} with NaN or infinite values")
    return tensors, metrics, nbytes(record)


def metrics_of(reply: Message) -> dict[str, Any]:
    """What a reply says of itself in numbers; what is not finite becomes None, which JSON can hold.

    Raises:
        Unusable: the reply is an error, or holds no metrics.
    """
    if reply.has_error():
        raise Unusable(in_one_line(reply.error.reason))
    if "metrics" not in reply.content.metric_records:
        raise Unusable("sent no metrics")
    return {name: _finite(value) for name, value in reply.content.metric_records["metrics"].items()}


def in_one_line(reason: str | None) -> str:
    """What the client said, without what Flower's engine wraps around it."""
    said = (reason or "no reason given").rpartition("occurred. Message: ")[2].removesuffix("'>")
    if "ActorDied" in said or "ActorUnavailable" in said or "RayActorError" in said:
        return "its process died"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _check_names(tensors: Mapping[str, Any], uploads: Sequence[str], broadcast: ArrayRecord) -> None:
    for name in tensors:
        if not matches(name, uploads):
            raise Unusable(f"sent {name}, which is not to be uploaded")
    for name in broadcast:
        if name not in tensors and matches(name, uploads):
            raise Unusable(f"did not send {name}")


def _check_form(name: str, value: torch.Tensor, shape: Sequence[int], dtype: str) -> None:
    got = str(value.dtype).removeprefix("torch.")
    if tuple(value.shape) != tuple(shape) or got != dtype:
        raise Unusable(f"expected {name} as {dtype}{tuple(shape)}, got {got}{tuple(value.shape)}")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not torch.isfinite(torch.tensor(value)) else value
