"""Pool of a simulation's actors: which messages each has, how many it gets at once, and what a dead one leaves.

How many messages an actor is handed at once follows from the messages answered before.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, inf
from typing import Any, final

import ray
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)

from flfw.engines.branches import fetchable, places_of, rounded, whole
from flfw.engines.client_actor import (
    ClientActor,
    PendingMessage,
    SharedRecords,
    SimulatedApp,
    batch_sizes,
    check_software,
    join_batches,
)
from flfw.engines.ray_start import first_line
from flfw.errors import DIED, RunError
from flfw.messages.message_packing import RecordParts, array_bytes, held, unpack_message

_LOST = (RayActorError, WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError)
_STARTS = 4  # actors that may die in a row before they came
_PLACELESS_S = 30.0
_EXPIRED_S = 10.0  # so long after a message's life its client may go on
_WAKE_S = 1.0  # while waiting, overdue actors are looked for
_NOTHING_S = 0.05  # a pause if nobody is at work
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


@dataclass(eq=False)
class Chunk:
    """Jobs that an actor has been handed at once."""

    jobs: list[PendingMessage]
    branches: list[tuple[int, int]]  # places of the jobs whose replies are added up
    reply: Any  # Ray's reference
    began: float  # on the monotonic clock: when it was handed out, or when the one before it was done
    reported: bool = False  # whether a line about its long time was printed


@dataclass(eq=False)
class ActorSlot:
    """Place of an actor, and the chunks that it has, of which the first is at work.

    Attributes:
        actor: Ray's handle.
        hello: Ray's reference to the actor's equipment, until it has come. Until then the actor gets no message: it
            may have no place in the cluster, or be gone.
        starts: actors that were started here since the last one that came.
        pinned: job that this actor gets first.
        process: number of its process and address of its node, for people; empty: it has not come.
        ready: whether it has answered anything: the first message loads code and data.
        chunks: what it was handed.
    """

    actor: Any
    hello: Any
    starts: int = 1
    pinned: PendingMessage | None = None
    process: str = ""
    ready: bool = False
    chunks: deque[Chunk] = field(default_factory=deque)


@final
class ActorPool:
    """Pool of so many actors; they are started at once, and started again when they die.

    Args:
        simulated: the ClientApp.
        actors: number of actors.
        actor_options: Ray's for each of them: ``num_cpus`` and ``num_gpus``, which it reserves, and ``runtime_env``.
        answered: function that is called with each job and its reply.
        stateful: whether the app may keep something in its Context; then a client answers one message at a time.
    """

    def __init__(
        self,
        simulated: SimulatedApp,
        actors: int,
        actor_options: dict[str, Any],
        answered: Callable[[PendingMessage, Message], None],
        stateful: bool = True,
    ) -> None:
        place = ray.put(simulated)
        factory: Any = ray.remote(ClientActor).options(max_restarts=0, max_task_retries=0, **actor_options)
        self._start = lambda: factory.remote(place)
        self._slots = [ActorSlot(actor, actor.equipment.remote()) for actor in (self._start() for _ in range(actors))]
        self._simulated, self._answered, self._stateful, self._pace = simulated, answered, stateful, ChunkSizer()
        self._waiting: deque[PendingMessage] = deque()
        self._stored, self._askings = SharedRecords(), 0
        self._states: dict[int, RecordParts] = {}
        self._without, self._said = time.monotonic(), False

    def close(self) -> None:
        """End the actors, so that others have their place at once; the replies under way are lost."""
        for slot in self._slots:
            ray.kill(slot.actor)
        self._slots = []

    @property
    def actors(self) -> int:
        """Number of actors."""
        return len(self._slots)

    def add(self, jobs: list[PendingMessage]) -> None:
        """Add jobs behind those that wait."""
        self._stored.note(jobs)
        if self._simulated.batches:
            join_batches(jobs, self._simulated.batches)
        if self._simulated.uploads:
            self._askings += 1
            for job, index in zip(jobs, places_of([job.message for job in jobs], self._askings), strict=True):
                job.branch = index
        self._waiting += jobs
        self._hand_out()

    def ask_each(self, jobs: list[PendingMessage]) -> list[PendingMessage]:
        """Add a job for each actor, as far as there are enough, and return the others."""
        each, others = jobs[: len(self._slots)], jobs[len(self._slots) :]
        self._stored.note(each)
        for slot, job in zip(self._slots, each, strict=False):
            slot.pinned = job
        self._hand_out()
        return others

    def ask_anyone(self) -> None:
        """Let any actor have the jobs of `ask_each` for which their own has not come yet."""
        for slot in self._slots:
            if slot.pinned:
                self._waiting.append(slot.pinned)
                slot.pinned = None

    def step(self, until: float) -> bool:
        """Wait for a chunk to be done, take its replies and hand out others.

        Args:
            until: time on the monotonic clock; at least what is there already is taken.

        Returns:
            Whether anything happened.

        Raises:
            RunError: Ray is gone, or its actors cannot start.
        """
        self._hand_out()
        first_of = {slot.hello or slot.chunks[0].reply: slot for slot in self._slots if slot.hello or slot.chunks}
        wait = min(max(0.0, until - time.monotonic()), _WAKE_S)
        if not first_of:
            time.sleep(min(wait, _NOTHING_S))
            return False
        try:
            ready, _ = ray.wait(list(first_of), timeout=wait)
        except (RaySystemError, ConnectionError, ValueError, RuntimeError) as error:
            raise _gone(error) from error
        for reply in ready:
            slot = first_of[reply]
            self._greet(slot) if slot.hello else self._take(slot)
        self._end_overdue()
        self._say_if_none_came()
        self._hand_out()
        return bool(ready)

    def _greet(self, slot: ActorSlot) -> None:
        """Let a slot have messages, as its actor has come, if its software is this process's."""
        try:
            software, host, number = ray.get(slot.hello)
        except _LOST as error:
            if slot.starts >= _STARTS:
                raise RunError(f"Ray's actors died {_STARTS} times at their start: {_last_line(error)}") from error
            self._replace(slot, error)
            return
        except RayError as error:
            raise _gone(error) from error
        check_software(software, host)
        slot.hello, slot.starts, self._without, slot.process = None, 0, inf, f"{number} on {host}"

    def _take(self, slot: ActorSlot) -> None:
        """Take the replies of a slot's first chunk, or replace its dead actor."""
        chunk = slot.chunks[0]
        try:
            seconds, replies, states = ray.get(chunk.reply)
        except _LOST as error:
            self._replace(slot, error)
            return
        except RayTaskError as error:
            raise RunError(f"An actor failed: {first_line(error.cause if error.cause else error)}") from error
        except RayError as error:
            raise _gone(error) from error
        slot.chunks.popleft()
        slot.ready = True
        if slot.chunks:
            slot.chunks[0].began = time.monotonic()
        size = sum(array_bytes(parts) for _, parts, _ in replies)
        self._pace.note(chunk.jobs[0].kind, len(chunk.jobs), seconds, size)
        for node, parts in states.items():
            if parts:
                self._states[node] = [(n, kind, held(v) if kind == "arrays" else v) for n, kind, v in parts]
            else:
                self._states.pop(node, None)
        over = fetchable(chunk.branches, [job.over for job in chunk.jobs], time.time())
        for job, parcel, until in zip(chunk.jobs, replies, over, strict=True):
            job.over = until
            self._settle(job, unpack_message(parcel, {}))

    def _replace(self, slot: ActorSlot, error: BaseException) -> None:
        """Start an actor in place of a dead one; its messages go out again, those that it was at work on one by one."""
        if getattr(error, "actor_init_failed", False):
            raise RunError(f"Ray's actors did not start: {_last_line(error)}")
        ray.kill(slot.actor)
        lost, slot.chunks, slot.actor, slot.ready = list(slot.chunks), deque(), self._start(), False
        slot.hello, slot.starts = slot.actor.equipment.remote(), slot.starts + 1
        for other in self._slots:  # where one died, as with its node, others that are idle may be dead as well
            if not (other.chunks or other.hello):
                other.hello = other.actor.equipment.remote()
        again: list[PendingMessage] = []
        for chunk in lost:
            for job in chunk.jobs:
                job.deaths += chunk is lost[0]
                if job.deaths >= job.tries - 1:
                    job.batch = None  # somebody in it may be the reason
                if job.deaths < job.tries:
                    again.append(job)
                else:
                    self._settle(job, Message(Error(ErrorCode.UNKNOWN, DIED), reply_to=job.message))
        self._waiting.extendleft(reversed(again))

    def _end_overdue(self) -> None:
        """End actors whose replies nobody wants any more, and those that hold up other messages of theirs.

        Each message is then asked alone. One that is alone, or a batch that nobody waits behind, has all of its time.
        """
        now = time.monotonic()
        for slot in self._slots:
            if not slot.chunks:
                continue
            first = slot.chunks[0]
            left, took = min(job.over for job in first.jobs) - time.time(), now - first.began
            overdue = self._pace.is_overdue(first.jobs[0].kind, len(first.jobs), took)
            together = len(slot.chunks) == len(batch_sizes(first.jobs)) == 1
            if all(time.time() > job.over + _EXPIRED_S for job in first.jobs):
                self._replace(slot, TimeoutError("expired"))
            elif sum(len(chunk.jobs) for chunk in slot.chunks) > 1:
                if slot.ready and (overdue or (0 < left < took and not together)):
                    self._replace(slot, TimeoutError("overdue"))
            elif overdue and not first.reported:
                first.reported = True
                print(_slow(first.jobs[0], took, self._pace.usual(first.jobs[0].kind), slot.process), file=sys.stderr)

    def _say_if_none_came(self) -> None:
        """Say once that no actor has a place: another program's may have it, or the cluster's nodes are gone."""
        if all(slot.hello for slot in self._slots):
            self._without = min(self._without, time.monotonic())
            if not self._said and time.monotonic() > self._without + _PLACELESS_S:
                self._said = True
                print("flfw: Ray has no place for any actor yet; the run waits for one.", file=sys.stderr)

    def _hand_out(self) -> None:
        """Give chunks to actors that have none, and then to those that will soon be done."""
        for depth in (0, 1):
            for slot in self._slots:
                if not slot.hello and len(slot.chunks) == depth and (jobs := self._next(slot)):
                    self._send(slot, jobs)

    def _next(self, slot: ActorSlot) -> list[PendingMessage]:
        """Take the jobs of a slot's next chunk: of one kind, in whole batches; one batch alone after a death at it."""
        if slot.pinned and not slot.chunks:
            pinned, slot.pinned = slot.pinned, None
            return [pinned]
        if not self._waiting:
            return []
        busy, passed = self._busy(), list[PendingMessage]()
        while self._waiting and ((over := time.time() >= self._waiting[0].over) or self._waiting[0].node in busy):
            job = self._waiting.popleft()
            self._settle(job, None) if over else passed.append(job)
        jobs = self._chunk(slot, busy) if self._waiting else []
        self._waiting.extendleft(reversed(passed))
        return jobs

    def _chunk(self, slot: ActorSlot, busy: set[int]) -> list[PendingMessage]:
        """Take the first waiting jobs for a slot, as many as its pace allows."""
        first, number = self._waiting[0], len(self._waiting)
        if slot.chunks:
            ahead = slot.chunks[0].jobs
            soon = slot.ready and self._pace.may_wait_behind(ahead[0].kind, len(ahead))
            if not soon or number < len(self._slots) or first.deaths or ahead[0].deaths:
                return []
        maximum = 1 if first.deaths or not slot.ready else self._length(slot, first)
        jobs: list[PendingMessage] = []
        while self._waiting and (job := self._waiting[0]).kind == first.kind:
            inside = bool(jobs) and job.batch is not None and job.batch is jobs[-1].batch
            if job.node in busy or (not inside and (len(jobs) >= maximum or (jobs and job.deaths))):
                break
            jobs.append(self._waiting.popleft())
        return jobs

    def _length(self, slot: ActorSlot, first: PendingMessage) -> int:
        """Return how many messages to hand to a slot, not to cut branches whose replies may be added up."""
        number, actors, summed = len(self._waiting), len(self._slots), first.branch is not None
        maximum = self._pace.length(first.kind, number, actors, summed)
        if not summed:
            return maximum
        handed = [sum(len(chunk.jobs) for chunk in one.chunks) for one in (slot, *self._slots)]
        share = ceil((number + sum(handed[1:])) / actors) - handed[0]
        return rounded([job.branch for job in islice(self._waiting, 2 * maximum)], maximum, share)

    def _busy(self) -> set[int]:
        """List the clients at work whose next message must wait, since it needs the state that they will leave."""
        chunks = [chunk for slot in self._slots for chunk in slot.chunks] if self._stateful else []
        return {job.node for chunk in chunks for job in chunk.jobs}

    def _send(self, slot: ActorSlot, jobs: list[PendingMessage]) -> None:
        packed, places = self._stored.parcels(jobs)
        states = {job.node: self._states[job.node] for job in jobs if job.node in self._states}
        branches = whole([None if job.deaths else job.branch for job in jobs])
        reply = slot.actor.answer.remote(packed, states, places, batch_sizes(jobs), branches)
        slot.chunks.append(Chunk(jobs, branches, reply, time.monotonic()))

    def _settle(self, job: PendingMessage, reply: Message | None) -> None:
        """Pass a reply on, and forget arrays that no job needs any more."""
        self._stored.forget(job)
        if reply is not None:
            self._answered(job, reply)


def _slow(job: PendingMessage, took: float, usual: float, process: str) -> str:
    return (
        f"flfw: client {job.node - 1} has taken {took:.0f} s, where {usual:.2g} s is usual. Should process {process} "
        f"hang, kill it, and the client is asked again; otherwise its time ends in {job.over - time.time():.0f} s."
    )


def _gone(error: BaseException) -> RunError:
    return RunError(f"Ray is gone: {first_line(error)}")


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
