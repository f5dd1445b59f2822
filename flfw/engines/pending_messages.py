"""Messages on their way to actors, taken apart when they are sent: what an app changes in them later does not count.

An app may push a message, change its records, and push the next. So a message's values are taken down at once. Bytes
of arrays cannot be changed, and are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import ray
from flwr.app import ArrayRecord, Message

from flfw.engines.branches import BranchPlace
from flfw.messages.message_batches import MessageBatches
from flfw.messages.message_packing import ArrayParts, Parcel, RecordParts, inlined, pack_arrays, pack_records
from flfw.messages.wire import of_kind

_TRIES = 2  # a client whose process dies is asked once more
_TRIES_TOGETHER = 3  # the second time again with its cohort, so that a process that dies by chance changes no number

_Contents: TypeAlias = list[tuple[str, int]]
"""Names of a record's arrays and identities of their bytes: two that are equal have the same values."""


@dataclass(eq=False)
class StoredRecord:
    """ArrayRecord as it was when its first message was sent; in Ray's object store, if several messages have it.

    Attributes:
        record: kept, so that no other object gets its identity.
        number: by which actors know it.
        contents: what it held.
        parts: its arrays.
        jobs: number of messages that have it and wait for a reply.
        place: Ray's reference, once a chunk needs it.
    """

    record: ArrayRecord
    number: int
    contents: _Contents
    parts: ArrayParts
    jobs: int = 0
    place: Any = None


@dataclass(eq=False)
class PendingMessage:
    """Message for which a reply is sought.

    Attributes:
        message: the message.
        over: time on the wall clock from which no reply is wanted.
        deaths: number of actors that died at work on it, or on others of its chunk.
        parts: its records when it was sent; the arrays are numbers of ``records``.
        records: its arrays.
        cohort: what is the same object for the messages that one actor answers together; None: it is alone.
        tries: number of deaths after which it is given up.
        branch: its place among the messages with whose replies its own may be added up; None: with none.
    """

    message: Message
    over: float
    deaths: int = 0
    parts: RecordParts | None = None
    records: tuple[StoredRecord, ...] = ()
    cohort: object = None
    tries: int = _TRIES
    branch: BranchPlace | None = None

    @property
    def kind(self) -> str:
        """Type of the message."""
        return self.message.metadata.message_type

    @property
    def node(self) -> int:
        """Node that is asked."""
        return self.message.metadata.dst_node_id


def join_cohorts(jobs: Sequence[PendingMessage], cohorts: MessageBatches) -> None:
    """Note of messages that are sent at once which of them are answered together."""
    for indices in cohorts.divided([job.kind for job in jobs]):
        cohort = object()
        for index in indices if len(indices) > 1 else []:
            jobs[index].cohort, jobs[index].tries = cohort, _TRIES_TOGETHER


def cohort_sizes(jobs: Sequence[PendingMessage]) -> list[int]:
    """Return the sizes of the cohorts into which consecutive messages fall, 1 for one that is answered by itself."""
    sizes = list[int]()
    for job, before in zip(jobs, [None, *jobs], strict=False):
        if before is not None and job.cohort is not None and job.cohort is before.cohort:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes


@final
class SharedRecords:
    """ArrayRecords of the messages that wait for a reply; one that many messages have is stored once."""

    def __init__(self) -> None:
        self._known: dict[int, StoredRecord] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._known)

    def note(self, jobs: list[PendingMessage]) -> None:
        """Take down the values of messages, and count those that have each ArrayRecord."""
        fresh: dict[int, StoredRecord] = {}
        for job in jobs:
            if job.message.has_error():
                continue
            records = list(of_kind(job.message.content, ArrayRecord).values())
            for record in records:
                entry = fresh.get(id(record))
                if entry is None:
                    entry = fresh[id(record)] = self._entry(record)
                entry.jobs += 1
            job.records = tuple(fresh[id(record)] for record in records)
            job.parts = pack_records(job.message.content, {id(one.record): one.number for one in job.records})

    def _entry(self, record: ArrayRecord) -> StoredRecord:
        contents = [(name, id(one.data)) for name, one in record.items()]
        entry = self._known.get(id(record))
        if entry is None or entry.contents != contents:
            self._numbers += 1
            entry = self._known[id(record)] = StoredRecord(record, self._numbers, contents, pack_arrays(record))
        return entry

    def parcels(self, jobs: list[PendingMessage]) -> tuple[list[Parcel], dict[int, Any]]:
        """Return the messages to be sent, and Ray's references to the arrays that others have as well, or have had."""
        places: dict[int, Any] = {}
        packed: list[Parcel] = []
        for job in jobs:
            alone: dict[int, ArrayParts] = {}
            for entry in job.records:
                if entry.place is None and entry.jobs > 1:
                    entry.place = ray.put(entry.parts)
                if entry.place is None:
                    alone[entry.number] = entry.parts
                else:
                    places[entry.number] = entry.place
            message = job.message
            error = message.error if message.has_error() else None
            packed.append((message.metadata, None if job.parts is None else inlined(job.parts, alone), error))
        return packed, places

    def forget(self, job: PendingMessage) -> None:
        """Forget the arrays of a settled job that no other job needs."""
        for entry in job.records:
            entry.jobs -= 1
            if not entry.jobs and self._known.get(id(entry.record)) is entry:
                del self._known[id(entry.record)]
        job.parts, job.records = None, ()
