"""Sums of some clients' updates, made where the clients are simulated, and the reading of replies that may be sums.

A process that has all clients of a branch of the mean's tree (`flfw.server.aggregation`) reads each reply with the
server's own checks, adds it up, and sends its numbers alone. The last usable reply of the branch has the sum. A reply
that cannot be used is no part of the sum and goes as it is, so the server refuses it for the same reason.

Only a simulation's server accepts sums, where no single update is needed: see `summable` in `flfw.engines.branches`.
There the tensors of a reply are read where they lie, by the server too: they are added up before anybody changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flfw.errors import RunError
from flfw.messages.factored_upload import FactoredUpload, FactorReader
from flfw.messages.message_packing import keep
from flfw.messages.reasons import UnusableReplyError
from flfw.messages.replies import read_metrics, read_update
from flfw.messages.wire import lent, of_kind, pack
from flfw.nets.net import Tensors
from flfw.server.aggregation import BranchSums, Update, WeightedSum

_ARRAYS, _METRICS = "arrays", "metrics"
_SUMMED, _SUM = "summed", "sum"


@final
class Adder:
    """Adder of the replies to the messages of one branch.

    Args:
        uploads: patterns of the names that a client may send.
    """

    def __init__(self, uploads: Sequence[str]) -> None:
        self._uploads, self._sums = uploads, BranchSums()
        self._replies: list[Message] = []
        self._last: Message | None = None
        self._clients = 0

    def add(self, message: Message, reply: Message) -> None:
        """Add a client's tensors to the sum; of a reply that cannot be used nothing is added."""
        try:
            arrays = of_kind(message.content, ArrayRecord)[_ARRAYS]
            tensors, metrics, size = read_update(reply, self._uploads, arrays, copied=False)
        except UnusableReplyError:
            keep(reply)  # the server refuses what this client sent, not what the next one writes in the same memory
            self._replies.append(reply)
            return
        self._sums.add(Update(message.metadata.dst_node_id - 1, metrics["num-examples"], tensors))
        self._clients += 1
        numbers = of_kind(reply.content, MetricRecord)[_METRICS]
        self._last = Message(RecordDict({_METRICS: numbers, _SUMMED: ConfigRecord({"bytes": size})}), reply_to=message)
        self._replies.append(self._last)

    def replies(self) -> list[Message]:
        """Return the replies to send, without tensors and in the messages' order; the last usable one has the sum."""
        if self._last is not None:
            total = self._sums.total()
            kinds = {name: str(kind).removeprefix("torch.") for name, kind in total.kinds.items()}
            contents: dict[str, Any] = {"clients": self._clients, "examples": total.examples}
            contents |= {"names": list(kinds), "kinds": list(kinds.values())}
            self._last.content[_SUM] = ConfigRecord(contents)
            self._last.content[_ARRAYS] = pack(total.tensors, late=True)
        return self._replies


@final
class SumReader:
    """Reader of the replies of a round, of which some were added up."""

    def __init__(self) -> None:
        self._waiting = 0  # replies whose sum has not come yet

    def read(self, reply: Message) -> tuple[WeightedSum | None, dict[str, Any], int] | None:
        """Read a reply of a branch.

        Returns:
            The sum (None: a later reply of the branch has it), the client's numbers, and the bytes of its upload. None:
            the reply is that of one client alone, or an error.

        Raises:
            RunError: the sum has more clients than have answered.
        """
        records = of_kind(reply.content, ConfigRecord) if reply.has_content() else {}
        if _SUMMED not in records:
            return None
        self._waiting += 1
        size: Any = records[_SUMMED]["bytes"]
        if _SUM not in records:
            return None, read_metrics(reply), size
        contents: Any = records[_SUM]
        self._waiting -= contents["clients"]
        self.require_complete()
        kinds = {name: getattr(torch, kind) for name, kind in zip(contents["names"], contents["kinds"], strict=True)}
        total = WeightedSum(lent(of_kind(reply.content, ArrayRecord)[_ARRAYS]), kinds, contents["examples"])
        return total, read_metrics(reply), size

    def require_complete(self) -> None:
        """Refuse a round in which only a part of a branch's replies has come: a sum cannot be divided.

        Raises:
            RunError: it is so.
        """
        if self._waiting:
            raise RunError(f"Expected all answers beside their sum, got {self._waiting:+d} of them.")


@final
class ReplyReader:
    """Reader of the replies to one broadcast.

    Args:
        arrays: the broadcast.
        uploads: patterns of the names that a client may send.
        form: settings of a factored upload; None: whole tensors are sent.
        counted: whether replies tell the number of examples; see `flfw.messages.replies.read_update`.
        check: function that refuses a client's numbers.
        summed: whether replies may be sums, and are added up at once; see `flfw.server.partial_sums`.
    """

    def __init__(
        self,
        arrays: ArrayRecord,
        uploads: Sequence[str],
        form: FactoredUpload | None,
        *,
        counted: bool,
        check: Callable[[Mapping[str, Any]], None],
        summed: bool,
    ) -> None:
        self._arrays, self._uploads, self._counted, self._check = arrays, uploads, counted, check
        self._factors = FactorReader(form, uploads, arrays, counted=counted) if form else None
        self._sums = SumReader() if summed else None

    def __call__(self, reply: Message) -> tuple[Tensors | WeightedSum | None, dict[str, Any], int]:
        """Return a reply's tensors, numbers and bytes; its tensors are None if they are in a sum that comes later.

        Raises:
            UnusableReplyError: the reply cannot be used.
            RunError: a sum has more clients than have answered.
        """
        if self._sums and (read := self._sums.read(reply)):
            return read
        read = self._factors(reply) if self._factors else self._whole(reply)
        self._check(read[1])
        return read

    def _whole(self, reply: Message) -> tuple[Tensors, dict[str, Any], int]:
        copied = self._sums is None
        return read_update(reply, self._uploads, self._arrays, counted=self._counted, copied=copied)

    def end(self) -> None:
        """Refuse a round whose last sum has not come.

        Raises:
            RunError: it is so.
        """
        if self._sums:
            self._sums.require_complete()
