"""Reading of the replies to one broadcast at the server: whole updates, factors of them, or sums of some clients'.

Sums are made where the clients are simulated, by `flfw.engines.branches.Adder`. Only a simulation's server accepts
them, where no single update is needed: see `flfw.engines.branches.summable`. There the tensors of a reply are read
where they lie, by the server too: they are added up before anybody changes them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from flfw.errors import RunError
from flfw.messages.factored_upload import FactoredUpload, FactorReader
from flfw.messages.replies import read_metrics, read_update
from flfw.messages.wire import lent, of_kind
from flfw.nets.net import Tensors
from flfw.server.aggregation import WeightedSum

SUMMED, SUM = "summed", "sum"
"""Records of a reply that was added up: its own bytes, and the numbers of the sum beside it."""


@final
class ReplyReader:
    """Reader of the replies to one broadcast.

    Args:
        arrays: the broadcast.
        uploads: patterns of the names that a client may send.
        form: settings of a factored upload; None: whole tensors are sent.
        counted: whether replies tell the number of examples; see `flfw.messages.replies.read_update`.
        check: function that refuses a client's numbers.
        summed: whether replies may be sums, and are added up at once.
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
        if self._factors:
            read = self._factors(reply)
        else:
            read = read_update(reply, self._uploads, self._arrays, counted=self._counted, copied=self._sums is None)
        self._check(read[1])
        return read

    def end(self) -> None:
        """Refuse a round whose last sum has not come.

        Raises:
            RunError: it is so.
        """
        if self._sums:
            self._sums.require_complete()


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
        if SUMMED not in records:
            return None
        self._waiting += 1
        size: Any = records[SUMMED]["bytes"]
        if SUM not in records:
            return None, read_metrics(reply), size
        contents: Any = records[SUM]
        self._waiting -= contents["clients"]
        self.require_complete()
        kinds = {name: getattr(torch, kind) for name, kind in zip(contents["names"], contents["kinds"], strict=True)}
        total = WeightedSum(lent(of_kind(reply.content, ArrayRecord)["arrays"]), kinds, contents["examples"])
        return total, read_metrics(reply), size

    def require_complete(self) -> None:
        """Refuse a round in which only a part of a branch's replies has come: a sum cannot be divided.

        Raises:
            RunError: it is so.
        """
        if self._waiting:
            raise RunError(f"Expected all answers beside their sum, got {self._waiting:+d} of them.")
