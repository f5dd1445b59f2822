"""Pool of the actors of a simulation: who has which messages, and what becomes of those that a dead actor had."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import ray
from flwr.app import ArrayRecord, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)

from flfw.engines.client_actor import ClientActor
from flfw.engines.pace import Pace
from flfw.engines.ray_start import first_line
from flfw.errors import DIED, RunFailed
from flfw.experiment import Scalar
from flfw.messages.parcels import RecordParts, array_bytes, held, pack_arrays, pack_message, unpack_message
from flfw.messages.wire import of_kind

_LOST = (RayActorError, WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError)
_TRIES = 2  # a client whose process dies is asked once more
_WAKE_S = 1.0  # while waiting, overdue actors are looked for
_NOTHING_S = 0.05  # a pause if nobody is at work


@dataclass(eq=False)
class Errand:
    """Message for which a reply is sought.

    Attributes:
        message: the message.
        over: time on the wall clock from which no reply is wanted.
        deaths: number of actors that died at work on it, or on others of its chunk.
        records: the arrays that it had when it was added; an app may use its records again.
    """

    message: Message
    over: float
    deaths: int = 0
    records: tuple[ArrayRecord, ...] = ()

    @property
    def kind(self) -> str:
        """Type of the message."""
        return self.message.metadata.message_type


@dataclass(eq=False)
class _Chunk:
    """Jobs that an actor has been handed at once."""

    jobs: list[Errand]
    reply: Any  # Ray's reference
    began: float  # on the monotonic clock: when it was handed out, or when the one before it was done


@dataclass(eq=False)
class _Seat:
    """Place of an actor, and the chunks that it has, of which the first is at work."""

    actor: Any
    ready: bool = False  # whether it has answered anything: its start may take a minute on a busy machine
    chunks: deque[_Chunk] = field(default_factory=deque)


@dataclass(eq=False)
class _Stored:
    """ArrayRecord in Ray's object store, for as long as a job needs it."""

    record: ArrayRecord  # kept, so that no other object gets its identity
    number: int
    jobs: int
    place: Any = None  # Ray's reference, once a chunk needs it


@final
class ActorPool:
    """Pool of so many actors; they are started at once, and started again when they die.

    Args:
        app: the ClientApp.
        clients: number of clients in all.
        run_config: the run configuration in every client's Context.
        actors: number of actors.
        shares: what Ray reserves for each of them, as ``num_cpus`` and ``num_gpus``.
        answered: function that is called with each job and its reply.
        told: further configuration of all nodes; None: there is none.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        run_config: dict[str, Scalar],
        actors: int,
        shares: dict[str, Any],
        answered: Callable[[Errand, Message], None],
        told: dict[str, Scalar] | None = None,
    ) -> None:
        place = ray.put(app)
        factory = ray.remote(ClientActor).options(max_restarts=0, max_task_retries=0, **shares)
        self._start = lambda: factory.remote(place, clients, run_config, told or {})
        self._seats = [_Seat(self._start()) for _ in range(actors)]
        self._answered, self._pace = answered, Pace()
        self._waiting: deque[Errand] = deque()
        self._stored: dict[int, _Stored] = {}
        self._numbers = 0
        self._states: dict[int, RecordParts] = {}

    @property
    def actors(self) -> int:
        """Number of actors."""
        return len(self._seats)

    def add(self, jobs: list[Errand]) -> None:
        """Add jobs behind those that wait."""
        self._note_records(jobs)
        self._waiting += jobs
        self._hand_out()

    def ask_each(self, jobs: list[Errand]) -> list[Errand]:
        """Add a job for each actor, as far as there are enough, and return the others."""
        each, others = jobs[: len(self._seats)], jobs[len(self._seats) :]
        self._note_records(each)
        for seat, job in zip(self._seats, each, strict=False):
            self._send(seat, [job])
        return others

    def step(self, until: float) -> bool:
        """Wait for a chunk to be done, take its replies and hand out others.

        Args:
            until: time on the monotonic clock; at least what is there already is taken.

        Returns:
            Whether anything happened.

        Raises:
            RunFailed: Ray is gone, or its actors cannot start.
        """
        self._hand_out()
        first_of = {seat.chunks[0].reply: seat for seat in self._seats if seat.chunks}
        wait = min(max(0.0, until - time.monotonic()), _WAKE_S)
        if not first_of:
            time.sleep(min(wait, _NOTHING_S))
            return False
        try:
            ready, _ = ray.wait(list(first_of), timeout=wait)
        except (RaySystemError, ConnectionError, ValueError, RuntimeError) as error:
            raise RunFailed(f"Ray is gone: {first_line(error)}") from error
        for reply in ready:
            self._take(first_of[reply])
        self._end_overdue()
        self._hand_out()
        return bool(ready)

    def _take(self, seat: _Seat) -> None:
        """Take the replies of a seat's first chunk, or replace its dead actor."""
        chunk = seat.chunks[0]
        try:
            seconds, replies, states = ray.get(chunk.reply)
        except _LOST as error:
            self._replace(seat, error)
            return
        except RayTaskError as error:
            raise RunFailed(f"An actor failed: {first_line(error.cause if error.cause else error)}") from error
        seat.chunks.popleft()
        seat.ready = True
        if seat.chunks:
            seat.chunks[0].began = time.monotonic()
        size = sum(array_bytes(parts) for _, parts, _ in replies)
        self._pace.note(chunk.jobs[0].kind, len(chunk.jobs), seconds, size)
        for node, parts in states.items():
            if parts:
                self._states[node] = [(n, kind, held(v) if kind == "arrays" else v) for n, kind, v in parts]
            else:
                self._states.pop(node, None)
        for job, parcel in zip(chunk.jobs, replies, strict=True):
            self._settle(job, unpack_message(parcel, {}))

    def _replace(self, seat: _Seat, error: BaseException) -> None:
        """Start an actor in place of a dead one; its messages go out again, those that it was at work on one by one."""
        if getattr(error, "actor_init_failed", False):
            raise RunFailed(f"Ray's actors did not start: {_last_line(error)}")
        ray.kill(seat.actor)
        lost, seat.chunks, seat.actor, seat.ready = list(seat.chunks), deque(), self._start(), False
        again: list[Errand] = []
        for chunk in lost:
            for job in chunk.jobs:
                job.deaths += chunk is lost[0]
                if job.deaths < _TRIES:
                    again.append(job)
                else:
                    self._settle(job, Message(Error(ErrorCode.UNKNOWN, DIED), reply_to=job.message))
        self._waiting.extendleft(reversed(again))

    def _end_overdue(self) -> None:
        """End actors that take far longer than usual while others of their messages wait; each is then asked alone."""
        now = time.monotonic()
        for seat in self._seats:
            behind = sum(len(chunk.jobs) for chunk in seat.chunks) > 1
            if not (behind and seat.ready):
                continue
            first = seat.chunks[0]
            left = min(job.over for job in first.jobs) - time.time()
            took = now - first.began
            if self._pace.is_overdue(first.jobs[0].kind, len(first.jobs), took) or 0 < left < took:
                self._replace(seat, TimeoutError("overdue"))

    def _hand_out(self) -> None:
        """Give chunks to actors that have none, and then to those that will soon be done."""
        for depth in (0, 1):
            for seat in self._seats:
                if len(seat.chunks) == depth and (jobs := self._next(seat)):
                    self._send(seat, jobs)

    def _next(self, seat: _Seat) -> list[Errand]:
        """Take the jobs of a seat's next chunk: of one kind; one alone if an actor has died at work on it."""
        while self._waiting and time.time() >= self._waiting[0].over:
            self._settle(self._waiting.popleft(), None)
        if not self._waiting:
            return []
        first, number = self._waiting[0], len(self._waiting)
        if seat.chunks:
            ahead = seat.chunks[0].jobs
            soon = seat.ready and self._pace.may_wait_behind(ahead[0].kind, len(ahead))
            if not soon or number < len(self._seats) or first.deaths or ahead[0].deaths:
                return []
        most = 1 if first.deaths or not seat.ready else self._pace.length(first.kind, number, len(self._seats))
        jobs: list[Errand] = []
        while self._waiting and len(jobs) < most and (job := self._waiting[0]).kind == first.kind:
            if jobs and job.deaths:
                break
            jobs.append(self._waiting.popleft())
        return jobs

    def _send(self, seat: _Seat, jobs: list[Errand]) -> None:
        shared: dict[int, int] = {}
        places: dict[int, Any] = {}
        for entry in self._shared_by(jobs):
            if entry.place is None:
                entry.place = ray.put(pack_arrays(entry.record))
            shared[id(entry.record)], places[entry.number] = entry.number, entry.place
        parcels = [pack_message(job.message, shared) for job in jobs]
        nodes = {job.message.metadata.dst_node_id for job in jobs}
        states = {node: self._states[node] for node in nodes if node in self._states}
        reply = seat.actor.answer.remote(parcels, states, places)
        seat.chunks.append(_Chunk(jobs, reply, time.monotonic()))

    def _shared_by(self, jobs: list[Errand]) -> Iterator[_Stored]:
        """List the records of some jobs that others have as well, or have had."""
        seen: set[int] = set()
        for job in jobs:
            for record in job.records:
                entry = self._stored[id(record)]
                if entry.number not in seen and (entry.place is not None or entry.jobs > 1):
                    seen.add(entry.number)
                    yield entry

    def _note_records(self, jobs: list[Errand]) -> None:
        """Count the jobs that have each ArrayRecord: one that many have is stored once."""
        for job in jobs:
            job.records = tuple(of_kind(job.message.content, ArrayRecord).values())
            for record in job.records:
                entry = self._stored.get(id(record))
                if entry is None:
                    self._numbers += 1
                    entry = self._stored[id(record)] = _Stored(record, self._numbers, 0)
                entry.jobs += 1

    def _settle(self, job: Errand, reply: Message | None) -> None:
        """Pass a reply on, and forget arrays that no job needs any more."""
        for record in job.records:
            entry = self._stored[id(record)]
            entry.jobs -= 1
            if not entry.jobs:
                del self._stored[id(record)]
        if reply is not None:
            self._answered(job, reply)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
