"""Client process of a simulation: a Ray actor that answers the messages of many clients, one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, final

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from flfw.engines.node_software import versions
from flfw.experiment import Scalar
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
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        run_config: dict[str, Scalar],
        told: Mapping[str, Scalar] = MappingProxyType({}),
    ) -> None:
        self._app, self._clients, self._run_config, self._told = app, clients, run_config, told
        self._shared: dict[int, ArrayParts] = {}

    def equipment(self) -> tuple[dict[str, str], str]:
        """Return the versions of this process's software, and the address of its node."""
        import ray

        return versions(), ray.util.get_node_ip_address()

    def answer(
        self, parcels: list[Parcel], states: dict[int, RecordParts], stored: dict[int, Any]
    ) -> tuple[float, list[Parcel], dict[int, RecordParts]]:
        """Answer messages in their order.

        Args:
            parcels: the messages.
            states: what the app kept of these clients, by node.
            stored: references to the arrays that many messages share, by their number. They are unpacked once.

        Returns:
            The seconds that it took, the replies, and what the app keeps of the clients for which that is anything, or
            was.
        """
        import ray

        began, replies, kept = time.monotonic(), list[Parcel](), dict(states)
        known = self._shared
        self._shared = {n: known[n] if n in known else held(ray.get(place)) for n, place in stored.items()}
        for parcel in parcels:
            message = unpack_message(parcel, self._shared)
            node = message.metadata.dst_node_id
            reply, state = self._reply(message, self._context(message.metadata.run_id, node, kept.get(node)))
            replies.append(reply)
            if state or (state is not None and node in kept):
                kept[node] = state
        return time.monotonic() - began, replies, kept

    def _context(self, run_id: int, node: int, state: RecordParts | None) -> Context:
        return Context(
            run_id=run_id,
            node_id=node,
            node_config={**self._told, "partition-id": node - 1, "num-partitions": self._clients},
            state=unpack_records(state, {}) if state else RecordDict(),
            run_config=dict(self._run_config),
        )

    def _reply(self, message: Message, context: Context) -> tuple[Parcel, RecordParts | None]:
        """Call the app; return its reply, and its state: None if it raised, since the state stays what it was.

        Its exception is the client's failure, as is a reply that cannot be sent. Only an exit ends the process.
        """
        try:
            reply = self._app(message, context)
            if context.run_config != self._run_config:
                raise ValueError("the run_config of a Context cannot be changed")
            return pack_message(reply, _NOTHING_SHARED), pack_records(context.state, _NOTHING_SHARED)
        except SystemExit:
            raise
        except BaseException as error:  # of asyncio, too: another thread's interrupt does not reach an actor
            failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words_of(error))
            return pack_message(Message(failed, reply_to=message), _NOTHING_SHARED), None
