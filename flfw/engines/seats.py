"""Seats of the actors of a simulation, and the chunks of messages that each has."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from flfw.engines.errands import PendingMessage


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
