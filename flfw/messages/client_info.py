"""Introduction of a client: what it tells the server of itself in node assignment, before any training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from flwr.app import ConfigRecord, Message, RecordDict

from flfw.messages.reasons import WITHHELD, UnusableReplyError, in_one_line

_RECORD = "about"
_WORD = re.compile(r"[0-9A-Za-z]{0,128}")
_AXES = 8  # of one input
_LARGEST = 2**31


@final
@dataclass(frozen=True)
class ClientInfo:
    """Claims of a client about itself and its data.

    Attributes:
        partition: number of the client, >= 0.
        code: hash of its code.
        gpu: whether its process sees a GPU.
        volunteered: number of examples that it volunteers for probes; -1: any.
        shape: shape of one input of its data.
        classes: number of classes of its data.
        labels: digest of its class names; empty if the server knows them.
        trouble: why its data cannot be used, in one line; empty if they can.
    """

    partition: int
    code: str
    gpu: bool = False
    volunteered: int = -1
    shape: tuple[int, ...] = ()
    classes: int = 0
    labels: str = ""
    trouble: str = ""

    def to_message(self, message: Message) -> Message:
        """Build the answer to the server's question."""
        return Message(
            RecordDict({_RECORD: ConfigRecord({**asdict(self), "shape": list(self.shape)})}), reply_to=message
        )

    @classmethod
    def from_message(cls, reply: Message) -> ClientInfo:
        """Read a client's answer; a client may write anything into it.

        Raises:
            UnusableReplyError: the answer is an error, or has not this form.
        """
        if reply.has_error():
            raise UnusableReplyError(in_one_line(reply.error.reason))
        if list(reply.content) != [_RECORD] or _RECORD not in reply.content.config_records:
            raise UnusableReplyError("sent no introduction")
        sent: dict[str, Any] = dict(reply.content.config_records[_RECORD])
        given = {name: sent[name] for name in _HOLDS if name in sent}  # other code may say more or less of itself
        if not {"partition", "code"} <= given.keys():
            raise UnusableReplyError("sent an introduction without a partition and a code")
        if wrong := [name for name, value in given.items() if not _HOLDS[name](value)]:
            raise UnusableReplyError(f"sent an introduction with an impossible {wrong[0]}")
        trouble = given.get("trouble", "")
        return cls(
            **{**given, "shape": tuple(given.get("shape", ())), "trouble": in_one_line(trouble) if trouble else ""}
        )


def is_plain(content: RecordDict) -> bool:
    """Return whether an introduction holds nothing but known entries in their forms, and no words on its data."""
    if list(content) != [_RECORD] or _RECORD not in content.config_records:
        return False
    entries: dict[str, Any] = dict(content.config_records[_RECORD])
    known = all(name in _HOLDS and _HOLDS[name](value) for name, value in entries.items())
    return known and entries.get("trouble", "") in ("", WITHHELD)


def too_few_volunteered(clients: Iterable[ClientInfo], needed: int) -> str:
    """Return a line on the first client that volunteers fewer examples than needed; empty: there is none."""
    for one in clients:
        if 0 <= one.volunteered < needed:
            return f"client {one.partition} volunteers {one.volunteered} of the {needed} examples that probes need"
    return ""


def speak_for_all(known: Sequence[ClientInfo]) -> bool:
    """Return whether every other client of a simulation would say the same with its own number.

    Args:
        known: one or more introductions, of a client in each process.
    """
    first = known[0]
    return not any(replace(one, partition=first.partition) != first or one.trouble for one in known)


def _is_count(value: object, minimum: int = 0) -> bool:
    return type(value) is int and minimum <= value <= _LARGEST


def _is_word(value: object) -> bool:
    return type(value) is str and bool(_WORD.fullmatch(value))


_HOLDS = {
    "partition": _is_count,
    "code": _is_word,
    "gpu": lambda value: type(value) is bool,
    "volunteered": lambda value: _is_count(value, -1),
    "shape": lambda value: type(value) is list and len(value) <= _AXES and all(map(_is_count, value)),
    "classes": _is_count,
    "labels": _is_word,
    "trouble": lambda value: type(value) is str,
}
