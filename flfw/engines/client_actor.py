"""Client process of a simulation: a Ray actor that answers the messages of many clients, one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, final

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from flfw.engines.node_software import versions
from flfw.experiment import Scalar
from flfw.messages.message_cohorts import MessageCohorts
from flfw.messages.parcels import (
    ArrayParts,
    Parcel,
    RecordParts,
    held,
    pack_message,
    pack_records,
    unpack_message,
    unpack_records,
)
from flfw.messages.reasons import words_of

_NOTHING_SHARED: dict[int, int] = {}


@final
class ClientActor:
    """Actor that calls the ClientApp for the clients that it is told.

    A client's Context is made for each of its messages and dropped again. What the app keeps in the Context's state
    travels back with the reply, and comes along with the client's next message, which another actor may answer.

    Args:
        app: the ClientApp.
        clients: number of clients in all.
        run_config: the run configuration in every client's Context.
        told: further configuration of all nodes.
        cohorts: how some messages are answered together; None: none are.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        run_config: dict[str, Scalar],
        told: Mapping[str, Scalar] = MappingProxyType({}),
        cohorts: MessageCohorts | None = None,
    ) -> None:
        self._app, self._clients, self._run_config = app, clients, run_config
        self._told, self._cohorts = told, cohorts
        self._shared: dict[int, ArrayParts] = {}

    def equipment(self) -> tuple[dict[str, str], str]:
        """Return the versions of this process's software, and the address of its node."""
        import ray

        return versions(), ray.util.get_node_ip_address()

    def answer(
        self,
        parcels: list[Parcel],
        states: dict[int, RecordParts],
        stored: dict[int, Any],
        sizes: Sequence[int] = (),
    ) -> tuple[float, list[Parcel], dict[int, RecordParts]]:
        """Answer messages in their order.

        Args:
            parcels: the messages.
            states: what the app kept of these clients, by node.
            stored: references to the arrays that many messages share, by their number. They are unpacked once.
            sizes: sizes of the cohorts into which the messages fall, 1 for one that is answered by itself; empty: all
                are 1.

        Returns:
            The seconds that it took, the replies, and what the app keeps of the clients for which that is anything, or
            was.
        """
        import ray

        began, replies, kept = time.monotonic(), list[Parcel](), dict(states)
        known = self._shared
        self._shared = {n: known[n] if n in known else held(ray.get(place)) for n, place in stored.items()}
        coming = iter(parcels)
        for size in sizes or [1] * len(parcels):
            messages = [unpack_message(parcel, self._shared) for parcel in islice(coming, size)]
            contexts = [self._context(message, kept) for message in messages]
            for (reply, state), context in zip(self._replies(messages, contexts), contexts, strict=True):
                replies.append(reply)
                if state or (state is not None and context.node_id in kept):
                    kept[context.node_id] = state
        return time.monotonic() - began, replies, kept

    def _context(self, message: Message, kept: Mapping[int, RecordParts]) -> Context:
        node = message.metadata.dst_node_id
        state = kept.get(node)
        return Context(
            run_id=message.metadata.run_id,
            node_id=node,
            node_config={**self._told, "partition-id": node - 1, "num-partitions": self._clients},
            state=unpack_records(state, {}) if state else RecordDict(),
            run_config=dict(self._run_config),
        )

    def _replies(self, messages: list[Message], contexts: list[Context]) -> list[tuple[Parcel, RecordParts | None]]:
        """Answer the messages of a cohort together, or the only one; return each reply and each client's state.

        The state is None if the app raised, since it stays what it was.
        """
        answers: Sequence[Message | BaseException]
        if self._cohorts and len(messages) > 1:
            answers = self._cohorts.answer(list(zip(messages, contexts, strict=True)))
        else:
            answers = [self._called(*one) for one in zip(messages, contexts, strict=True)]
        return [self._packed(*one) for one in zip(answers, messages, contexts, strict=True)]

    def _called(self, message: Message, context: Context) -> Message | BaseException:
        """Call the app; only an exit ends the process."""
        try:
            return self._app(message, context)
        except SystemExit:
            raise
        except BaseException as error:  # of asyncio, too: another thread's interrupt does not reach an actor
            return error

    def _packed(
        self, answer: Message | BaseException, message: Message, context: Context
    ) -> tuple[Parcel, RecordParts | None]:
        """Pack a reply; an exception is the client's failure, as is a reply that cannot be sent."""
        try:
            if isinstance(answer, BaseException):
                raise answer
            if context.run_config != self._run_config:
                raise ValueError("the run_config of a Context cannot be changed")
            return pack_message(answer, _NOTHING_SHARED), pack_records(context.state, _NOTHING_SHARED)
        except BaseException as error:
            failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words_of(error))
            return pack_message(Message(failed, reply_to=message), _NOTHING_SHARED), None
