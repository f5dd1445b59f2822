"""Introductions of simulated clients, of which one in each actor is asked for all.

A simulated client has nothing of its own but its number, see `flfw.engines.client_actor.ClientActor`: code, folder of
the data and GPU, of which an introduction tells, are those of the actor's process. So where all actors introduce
themselves alike, every other client would say the same with its own number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from flwr.app import Message

from flfw.engines.errands import PendingMessage
from flfw.messages.client_info import ClientInfo, speak_for_all
from flfw.messages.reasons import UnusableReplyError

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
    return lambda asked: replace(first, partition=asked.metadata.dst_node_id - 1).to_message(asked)
