"""Pace of clients: how many messages an actor is handed at once, from the messages answered before."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import final

_CHUNK_S = 0.25
"""Seconds of work in one chunk: enough to make its way cost little, little enough to hold nobody else up."""
_CHUNK_LEAST_S = 0.02
"""Seconds of work in one chunk below which it is not divided, to come out even at the end: the way costs more."""
_CHUNK_BYTES = 16_000_000
"""Bytes of the replies in one chunk; a single reply may be larger."""
_AHEAD_S = 5.0
"""Longest work of a chunk behind which a second one may wait at the same actor."""
_OVERDUE, _OVERDUE_S = 10.0, 30.0
"""An actor is overdue that takes so many times the usual time, and so many seconds more."""
_NEW = 0.7  # weight of the latest chunk: the first messages of an actor load code and data


@dataclass
class _Usual:
    seconds: float
    size: float


@final
class ChunkSizer:
    """Seconds and bytes of a reply to each kind of message, by the latest chunks."""

    def __init__(self) -> None:
        self._usual: dict[str, _Usual] = {}

    def note(self, kind: str, messages: int, seconds: float, size: int) -> None:
        """Note a chunk that was answered: its messages, its seconds and the bytes of its replies."""
        new, old = _Usual(seconds / messages, size / messages), self._usual.get(kind)
        if old:
            new.seconds = _NEW * new.seconds + (1 - _NEW) * old.seconds
            new.size = max(new.size, _NEW * new.size + (1 - _NEW) * old.size)
        self._usual[kind] = new

    def length(self, kind: str, waiting: int, actors: int, summed: bool = False) -> int:
        """Return how many messages to hand out at once; 1 while it is not known how long they take.

        Args:
            kind: type of the messages.
            waiting: messages that no actor has yet: the last of them are handed out in small chunks.
            actors: number of actors.
            summed: whether the replies are added up, so that more of them are hardly larger than one.
        """
        if (usual := self._usual.get(kind)) is None:
            return 1
        by_time, by_size = _CHUNK_S / max(usual.seconds, 1e-6), _CHUNK_BYTES / max(usual.size, 1.0)
        fewest = min(waiting, ceil(_CHUNK_LEAST_S / max(usual.seconds, 1e-6)))
        even = max(ceil(waiting / (2 * actors)), min(fewest, ceil(waiting / actors)))
        return max(1, int(min(by_time, even) if summed else min(by_time, by_size, even)))

    def may_wait_behind(self, kind: str, messages: int) -> bool:
        """Return whether a chunk of so many messages is soon done and small, so that another may wait for its end.

        Of large replies more would lie in Ray's store than it has room for.
        """
        usual = self._usual.get(kind)
        return usual is not None and messages * usual.seconds < _AHEAD_S and messages * usual.size <= _CHUNK_BYTES

    def usual(self, kind: str) -> float:
        """Return the seconds that a message usually takes; 0: none was answered."""
        usual = self._usual.get(kind)
        return usual.seconds if usual else 0.0

    def is_overdue(self, kind: str, messages: int, seconds: float) -> bool:
        """Return whether a chunk takes far longer than such chunks do."""
        usual = self._usual.get(kind)
        return usual is not None and seconds > _OVERDUE_S + _OVERDUE * messages * usual.seconds
