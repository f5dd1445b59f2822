"""Grid of a simulation on Ray: actors of this project's own, each handed some consecutive messages at once.

Flower's engine stores every message in a link state, walks all of them for every node ten times a second, keeps a
Context for each node, and pickles the broadcast anew for every client. Here the broadcast is put into Ray's object
store once, each actor unpacks it once, and the server's own thread waits for the replies.

Of simulated clients one in each actor is asked to introduce itself. A simulated client has nothing of its own but its
number (`flfw.engines.client_actor.ClientActor`): code, data folder and GPU are those of the actor's process. Where all
actors introduce themselves alike, every other client would say the same with its own number.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, TypeAlias, final
from uuid import uuid4

from flwr.app import Message
from flwr.app.message import make_message
from flwr.clientapp import ClientApp

from flfw.engines.actor_pool import ActorPool
from flfw.engines.client_actor import PendingMessage, SimulatedApp
from flfw.experiment import Scalar
from flfw.messages.client_info import ClientInfo, speak_for_all
from flfw.messages.inprocess import FORCED, MessageBatches, SimulatedGrid
from flfw.messages.message_packing import keep, lent_bytes
from flfw.messages.reasons import UnusableReplyError
from flfw.messages.streaming import WaitingGrid

_LENT_BYTES = 32_000_000  # of replies that wait for others in Ray's store, which has little room
_SAMPLE_S = 60.0  # then also the others are asked for their introductions
Answer: TypeAlias = Callable[[Message], Message]
"""Function that gives the reply of a client to its message."""

KIND = "query"
"""Type of the messages that ask for introductions."""


@dataclass(eq=False)
class IntroductionSample:
    """Jobs of which some were sent, one to each actor.

    Attributes:
        sent: those that were sent.
        others: those that wait for their replies.
        until: time on the monotonic clock from which the others are asked themselves.
        replies: the replies so far, by the place of the job.
    """

    sent: list[PendingMessage]
    others: list[PendingMessage]
    until: float
    replies: dict[int, Message] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True once all replies have come."""
        return len(self.replies) == len(self.sent)

    def take(self, job: PendingMessage, reply: Message) -> None:
        """Take a reply, if it is to one of the sample's jobs."""
        if job in self.sent:
            self.replies[self.sent.index(job)] = reply


def answer_for_all(replies: Sequence[Message]) -> Answer | None:
    """Return a function that answers for other clients; None: the replies differ, or tell of trouble, or are errors.

    Args:
        replies: the introduction of a client in each actor.
    """
    try:
        known = [ClientInfo.from_message(reply) for reply in replies]
    except UnusableReplyError:
        return None
    first = known[0]
    numbered = all(one.partition == reply.metadata.src_node_id - 1 for one, reply in zip(known, replies, strict=True))
    if not numbered or not speak_for_all(known):
        return None
    return lambda requested: replace(first, partition=requested.metadata.dst_node_id - 1).to_message(requested)


@final
class RayGrid(SimulatedGrid, WaitingGrid):
    """Grid of the nodes 1 to ``clients``, whose ClientApps run in Ray's actors; node i holds partition i - 1.

    Replies to one `send_and_receive` come in the order of the messages. The grid may be used from several threads.
    Ray must have been started.

    Args:
        app: the ClientApp.
        clients: number of nodes.
        run_config: the run configuration in every client's Context.
        actors: number of actors; no more are started than there are clients.
        actor_options: Ray's for each actor: ``num_cpus`` and ``num_gpus``, which it reserves, and ``runtime_env``.
        grace: seconds at the end of a message's life in which nobody begins to answer it any more.
        introduced: whether the app answers queries by a `ClientInfo`; then one client in each actor is asked for
            all, where that is enough: see `flfw.engines.ray_grid`.
        one_disk: see `SimulatedGrid`.
        stateful: whether the app may keep something in its Context; then a client answers one message at a time.
        batches: how some messages are answered together; None: none are.
        uploads: patterns of the tensors whose sums may stand for the updates of some clients: see
            `flfw.engines.branches.Adder`; empty: each update is sent.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        run_config: dict[str, Scalar],
        *,
        actors: int,
        actor_options: dict[str, Any],
        grace: float = 0.0,
        introduced: bool = False,
        one_disk: bool = False,
        stateful: bool = True,
        batches: MessageBatches | None = None,
        uploads: tuple[str, ...] = (),
    ) -> None:
        super().__init__(clients, one_disk)
        self._grace, self._introduced = grace, introduced
        self._sample: IntroductionSample | None = None
        self._lock = threading.RLock()  # Flower's older strategies ask each client in a thread of its own
        self._requested: dict[str, PendingMessage] = {}
        self._arrived: dict[str, Message] = {}
        self._lent: dict[str, int] = {}  # bytes of replies that have come and still lie in Ray's store
        node_config: dict[str, Scalar] = {FORCED: True} if one_disk else {}
        work = SimulatedApp(app, clients, run_config, node_config, batches, uploads)
        self._pool = ActorPool(work, min(actors, clients), actor_options, self._keep, stateful)

    @property
    def representatives(self) -> Sequence[int]:
        """Implement `SimulatedGrid.representatives`: actors that have answered nothing yet get a message each."""
        return self._nodes[: self._pool.actors] if self._introduced else ()

    def close(self) -> None:
        """End the actors."""
        with self._lock:
            self._pool.close()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Give messages to the actors; the others wait until replies are asked for."""
        with self._lock:
            self._forget()
            jobs = [self._job(message) for message in messages]
            self._requested |= {job.message.metadata.message_id: job for job in jobs}
            alike = self._introduced and self._sample is None and all(job.kind == KIND for job in jobs)
            if alike and len(jobs) > self._pool.actors:
                others = self._pool.ask_each(jobs)
                self._sample = IntroductionSample(jobs[: len(jobs) - len(others)], others, time.monotonic() + _SAMPLE_S)
            else:
                self._pool.add(jobs)
            return [job.message.metadata.message_id for job in jobs]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have come to some messages, each once."""
        with self._lock:
            while self._step(0.0):
                pass
            return [reply for message_id in dict.fromkeys(message_ids) if (reply := self._handed_out(message_id))]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies until the timeout (seconds) is over."""
        ids = self.push_messages(messages)
        until = inf if timeout is None else time.monotonic() + timeout
        replies = [reply for message_id in ids if (reply := self.reply_to(message_id, until))]
        with self._lock:
            for message_id in ids:  # nobody else knows them
                self._requested.pop(message_id, None)
                self._arrived.pop(message_id, None)
        return replies

    def reply_to(self, message_id: str, until: float) -> Message | None:
        """Implement `WaitingGrid.reply_to`."""
        while True:
            with self._lock:
                if message_id in self._arrived:
                    return self._handed_out(message_id)
                if (job := self._requested.get(message_id)) is None or time.time() >= job.over:
                    return None
                late = time.monotonic() >= until
                stepped = self._step(min(until, time.monotonic() + job.over - time.time()))
            if late and not stepped:
                return None

    def _step(self, until: float) -> bool:
        """Wait for replies; once a sample has answered for the others, or is late, deal with these."""
        self._make_room()
        stepped = self._pool.step(until)
        if (sample := self._sample) is None or not (sample.complete or time.monotonic() > sample.until):
            return stepped
        self._sample = None
        answer = answer_for_all([sample.replies[n] for n in range(len(sample.sent))]) if sample.complete else None
        if answer is None:
            self._pool.ask_anyone()
            self._pool.add(sample.others)
        else:
            for job in sample.others:
                self._keep(job, answer(job.message))
        return True

    def _job(self, message: Message) -> PendingMessage:
        metadata = message.metadata
        if metadata.dst_node_id not in self._nodes:
            raise ValueError(f"Expected a node from 1 to {len(self._nodes)}, got {metadata.dst_node_id}.")
        metadata.__dict__["_message_id"] = str(uuid4())
        sent = copy(metadata)  # the same message may be sent once more
        snapshot = (
            make_message(sent, error=message.error) if message.has_error() else make_message(sent, message.content)
        )
        return PendingMessage(snapshot, metadata.created_at + metadata.ttl - self._grace)

    def _keep(self, job: PendingMessage, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        if self._sample:
            self._sample.take(job, reply)
        if job.message.metadata.message_id in self._requested:
            self._arrived[job.message.metadata.message_id] = reply
            if size := lent_bytes(reply):
                self._lent[job.message.metadata.message_id] = size

    def _make_room(self) -> None:
        """Copy replies out of Ray's store that wait for others, unless they are small."""
        self._lent = {one: size for one, size in self._lent.items() if one in self._arrived}
        if sum(self._lent.values()) > _LENT_BYTES:
            for message_id in self._lent:
                keep(self._arrived[message_id])
            self._lent = {}

    def _handed_out(self, message_id: str) -> Message | None:
        """Return a reply that has come, and forget it and its message; None: there is none, or it came too late."""
        reply = self._arrived.pop(message_id, None)
        if reply is None:
            return None
        return reply if time.time() < self._requested.pop(message_id).over else None

    def _forget(self) -> None:
        """Forget messages that have expired."""
        now = time.time()
        for message_id in [message_id for message_id, job in self._requested.items() if now >= job.over]:
            self._requested.pop(message_id)
            self._arrived.pop(message_id, None)
