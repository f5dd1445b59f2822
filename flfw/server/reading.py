"""Reading of a round's replies: whole tensors, factors of them, or the sum of those of some clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from flwr.app import ArrayRecord, Message

from flfw.messages.factored_upload import FactoredUpload, FactorReader
from flfw.messages.replies import read_update
from flfw.nets.net import Tensors
from flfw.server.aggregation import WeightedSum
from flfw.server.partial_sums import SumReader


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
