"""Client process of a simulation: a Ray actor that answers many clients' messages, one after the other or by batches.

All nodes of a cluster must have the same software: an actor on a node with other versions could give other numbers.

Messages on their way to actors are taken apart when they are sent. An app may push a message, change its records, and
push the next. So a message's values are taken down at once. Bytes of arrays cannot be changed, and are not copied.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, final

import ray
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from flfw.engines.branches import BranchPlace
from flfw.errors import InputError
from flfw.experiment import Scalar
from flfw.messages.inprocess import MessageBatches
from flfw.messages.message_packing import (
    ArrayParts,
    Parcel,
    RecordParts,
    inlined,
    keep_records,
    lent,
    pack_arrays,
    pack_message,
    pack_records,
    unpack_message,
    unpack_records,
)
from flfw.messages.npy import made_late
from flfw.messages.reasons import words_of
from flfw.messages.wire import of_kind

_TRIES = 2  # a client whose process dies is asked once more
_TRIES_TOGETHER = 3  # the second time again with its batch, so that a process that dies by chance changes no number

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
        batch: what is the same object for the messages that one actor answers together; None: it is alone.
        tries: number of deaths after which it is given up.
        branch: its place among the messages with whose replies its own may be added up; None: with none.
    """

    message: Message
    over: float
    deaths: int = 0
    parts: RecordParts | None = None
    records: tuple[StoredRecord, ...] = ()
    batch: object = None
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


def join_batches(jobs: Sequence[PendingMessage], batches: MessageBatches) -> None:
    """Note of messages that are sent at once which of them are answered together."""
    for indices in batches.divided([job.kind for job in jobs]):
        batch = object()
        for index in indices if len(indices) > 1 else []:
            jobs[index].batch, jobs[index].tries = batch, _TRIES_TOGETHER


def batch_sizes(jobs: Sequence[PendingMessage]) -> list[int]:
    """Return the sizes of the batches into which consecutive messages fall, 1 for one that is answered by itself."""
    sizes = list[int]()
    for job, before in zip(jobs, [None, *jobs], strict=False):
        if before is not None and job.batch is not None and job.batch is before.batch:
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


if TYPE_CHECKING:
    from flfw.engines.branches import Adder

_NOTHING_SHARED: dict[int, int] = {}
_PACKAGES = ("flfw", "flwr", "torch", "numpy")  # Ray itself refuses other versions of Ray and Python's minor version


@cache
def versions() -> dict[str, str]:
    """List the versions of Python and of the packages on which numbers depend, in this process."""
    return {"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def check_software(there: Mapping[str, str], host: str) -> None:
    """Refuse a node whose versions are not this process's.

    Args:
        there: the versions on the node.
        host: the node's address.

    Raises:
        InputError: one differs.
    """
    for name, here in versions().items():
        if there.get(name) != here:
            raise InputError(f"Expected {name} {here} on every node, as here; got {there.get(name)} on {host}.")


@dataclass(frozen=True)
class SimulatedApp:
    """ClientApp of a simulation, as all actors have it.

    Attributes:
        app: the ClientApp.
        clients: number of clients in all.
        run_config: the run configuration in every client's Context.
        node_config: further configuration of all nodes.
        batches: how some messages are answered together; None: none are.
        uploads: patterns of the tensors whose sums over a branch of clients are wanted in training; empty: none.
    """

    app: ClientApp
    clients: int
    run_config: dict[str, Scalar]
    node_config: Mapping[str, Scalar] = field(default_factory=dict)
    batches: MessageBatches | None = None
    uploads: tuple[str, ...] = ()


@final
class ClientActor:
    """Actor that calls the ClientApp for the clients that it is told.

    A client's Context is made for each of its messages and dropped again. What the app keeps in the Context's state
    travels back with the reply, and comes along with the client's next message, which another actor may answer.

    Args:
        simulated: the app.
    """

    def __init__(self, simulated: SimulatedApp) -> None:
        self._simulated = simulated
        self._shared: dict[int, ArrayParts] = {}

    def equipment(self) -> tuple[dict[str, str], str, int]:
        """Return the versions of this process's software, the address of its node, and its number there."""
        import ray

        return versions(), ray.util.get_node_ip_address(), os.getpid()

    def answer(
        self,
        packed: list[Parcel],
        states: dict[int, RecordParts],
        stored: dict[int, Any],
        sizes: Sequence[int] = (),
        branches: Sequence[tuple[int, int]] = (),
    ) -> tuple[float, list[Parcel], dict[int, RecordParts]]:
        """Answer messages in their order.

        Args:
            packed: the messages.
            states: what the app kept of these clients, by node.
            stored: references to the arrays that many messages share, by their number. They are unpacked once.
            sizes: sizes of the batches into which the messages fall, 1 for one that is answered by itself; empty: all
                are 1.
            branches: places, from and to, of the messages whose replies are added up.

        Returns:
            The seconds that it took, the replies, and what the app keeps of the clients for which that is anything, or
            was.
        """
        import ray

        began, replies, kept = time.monotonic(), list[Parcel](), dict(states)
        adders = self._adders(branches)
        ends, known = {end for _, end in branches}, self._shared
        self._shared = {n: known[n] if n in known else lent(ray.get(index)) for n, index in stored.items()}
        coming, index = iter(packed), 0
        for size in sizes or [1] * len(packed):
            messages = [unpack_message(parcel, self._shared) for parcel in islice(coming, size)]
            contexts = [self._context(message, kept) for message in messages]
            last = index + size == len(packed)  # what it sends is on its way before another message comes
            with made_late() if size == 1 and (last or index in adders) else nullcontext():
                answers = self._answers(messages, contexts)
            for answer, message, context in zip(answers, messages, contexts, strict=True):
                sent, state = self._packed(answer, message, context, adders.get(index))
                replies += sent
                index += 1
                if index in ends:
                    replies += [pack_message(reply, _NOTHING_SHARED) for reply in adders[index - 1].replies()]
                if state or (state is not None and context.node_id in kept):
                    kept[context.node_id] = state
        return time.monotonic() - began, replies, kept

    def _adders(self, branches: Sequence[tuple[int, int]]) -> dict[int, Adder]:
        """Make an adder for each branch; return it by the places of its messages."""
        if not branches:
            return {}
        from flfw.engines.branches import Adder

        uploads = self._simulated.uploads
        return {index: adder for span in branches for adder in [Adder(uploads)] for index in range(*span)}

    def _context(self, message: Message, kept: Mapping[int, RecordParts]) -> Context:
        node, simulated = message.metadata.dst_node_id, self._simulated
        state = kept.get(node)
        return Context(
            run_id=message.metadata.run_id,
            node_id=node,
            node_config={**simulated.node_config, "partition-id": node - 1, "num-partitions": simulated.clients},
            state=unpack_records(state, {}) if state else RecordDict(),
            run_config=dict(simulated.run_config),
        )

    def _answers(self, messages: list[Message], contexts: list[Context]) -> Sequence[Message | BaseException]:
        """Let the app answer the messages of a batch together, or the only one."""
        requested, batches = list(zip(messages, contexts, strict=True)), self._simulated.batches
        if batches and len(requested) > 1:
            try:
                return batches.answer(requested)
            except SystemExit:
                raise
            except BaseException as error:  # nobody can tell whose it is
                logging.getLogger("flwr").debug("a batch raised", exc_info=error)
        return [self._called(*one) for one in requested]

    def _called(self, message: Message, context: Context) -> Message | BaseException:
        """Call the app; only an exit ends the process."""
        try:
            return self._simulated.app(message, context)
        except SystemExit:
            raise
        except BaseException as error:  # of asyncio, too: another thread's interrupt does not reach an actor
            return error

    def _packed(
        self, answer: Message | BaseException, message: Message, context: Context, adder: Adder | None
    ) -> tuple[list[Parcel], RecordParts | None]:
        """Pack a reply and the client's state; an exception is the client's failure, as is a reply that cannot be sent.

        The state is None if the app raised, as the old one then stays. An adder takes the reply, and gives those of
        all its messages at the end.
        """
        try:
            if isinstance(answer, BaseException):
                raise answer
            if context.run_config != self._simulated.run_config:
                raise ValueError("the run_config of a Context cannot be changed")
            if adder is not None:
                keep_records(context.state)  # other messages come before it is sent
            state = pack_records(context.state, _NOTHING_SHARED)
            return _taken(message, answer, adder), state
        except BaseException as error:
            failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words_of(error))
            return _taken(message, Message(failed, reply_to=message), adder), None


def _taken(message: Message, reply: Message, adder: Adder | None) -> list[Parcel]:
    if adder is None:
        return [pack_message(reply, _NOTHING_SHARED)]
    adder.add(message, reply)
    return []
