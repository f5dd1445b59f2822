"""Branches of clients whose replies an actor may add up: in which runs, where messages are cut, and the adding.

An actor that has all clients of a branch of the mean's tree (`flfw.server.aggregation`) reads each reply with the
server's own checks, adds it up, and sends its numbers alone. The last usable reply of the branch has the sum. A reply
that cannot be used is no part of the sum and goes as it is, so the server refuses it for the same reason.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flfw.messages.message_packing import keep
from flfw.messages.reasons import UnusableReplyError
from flfw.messages.replies import read_update
from flfw.messages.wire import of_kind, pack
from flfw.server.aggregation import LEVELS, BranchSums, Update, level_between
from flfw.server.reply_reader import SUM, SUMMED
from flfw.server.strategy import FederatedStrategy
from flfw.task.client_plan import ClientPlan
from flfw.task.method import Method

_FETCHED_S = 600.0  # the replies of a branch wait so long for those before them
_APART = LEVELS + 1  # the level of clients whose branches do not meet in a block

_OF_SINGLE_UPDATES = frozenset(("check_metrics", "aggregate_train", "aggregate_round", "_checked_updates"))
"""Functions of `flfw.server.strategy` through which each update goes."""


def summable(plan: ClientPlan, engine: str, recorded: bool) -> bool:
    """Return whether sums may stand for the updates of a run: nobody looks at a single one, and clients are simulated.

    On the engine inproc nothing is sent, and the server adds up the clients' own tensors.

    Recordings, attacks, canaries, defences and robust means need single updates, as do factors of an upload. Cohorts of
    clients that train together are other groups than the branches of a sum. With metrics that have noise, or none, no
    client tells its number of examples. A method whose class changes what is done with single updates gets these, also
    where it declares `Method.reduces` or inherits it.

    Args:
        plan: what the clients do.
        engine: of the run.
        recorded: whether updates are attacked or recorded.
    """
    alone = engine in ("ray", "inproc") and not plan.real
    unseen = not (recorded or plan.privacy.canaries or plan.defences.stages)
    plain = plan.rounds.robust_rule == "none" and plan.privacy.metrics == "all" and plan.local.clients_per_batch == 1
    return (
        alone and unseen and plain and _means_alone(plan.method) and plan.method.factored_upload(plan.settings) is None
    )


def _means_alone(method: type[Method]) -> bool:
    """Return whether a method's server takes the mean of updates and looks at none.

    A declaration holds for the `aggregate` of its own class and of those it inherits from, not for one in a subclass.
    """
    kind = method.__mro__
    below = kind[: kind.index(FederatedStrategy)]  # mixins are among them
    overridden = {name for one in below for name in vars(one)}
    declared, aggregating = (
        next((index for index, one in enumerate(kind) if name in vars(one)), len(kind))
        for name in ("reduces", "aggregate")
    )
    looks = overridden & _OF_SINGLE_UPDATES or method.needed_metric
    return method.reduces == "mean" and declared <= aggregating and not looks


class BranchPlace(NamedTuple):
    """Place of a message among those that were asked at once, in the tree of `flfw.server.aggregation`.

    Attributes:
        asking: number of the asking.
        number: place among its messages.
        before: height at which the client's branch meets that of the client asked before it.
        after: the same for the client after it.
    """

    asking: int
    number: int
    before: int
    after: int


def places_of(messages: Sequence[Message], asking: int) -> list[BranchPlace | None]:
    """Return the place of each message of those that were sent at once; None: it is not one of training."""
    clients = [
        message.metadata.dst_node_id - 1 if message.metadata.message_type == "train" else None for message in messages
    ]
    levels = [_level(*pair) for pair in zip([None, *clients], [*clients, None], strict=True)]
    return [
        None if client is None else BranchPlace(asking, number, levels[number], levels[number + 1])
        for number, client in enumerate(clients)
    ]


def _level(one: int | None, other: int | None) -> int:
    return _APART if one is None or other is None or one >= other else level_between(one, other)


def rounded(waiting: Sequence[BranchPlace | None], maximum: int, share: int) -> int:
    """Return how many of the waiting messages to hand out: about ``maximum``, so that large branches are not cut.

    Args:
        waiting: places of the messages.
        maximum: number without regard to branches; at most as many again are added.
        share: what an actor gets if each gets as much; not more are handed out, if it is more than ``maximum``.

    >>> waiting = [BranchPlace(0, n, 0, level_between(n, n + 1)) for n in range(16)]
    >>> [rounded(waiting, most, share=8) for most in (1, 2, 3, 5, 7)]
    [1, 4, 4, 8, 8]
    """
    if maximum == 1:
        return 1
    limit = min(max(maximum, min(2 * maximum, share)), len(waiting))

    def goodness(number: int) -> tuple[int, int]:
        place = waiting[number - 1]
        return (place.after if place else 0), -abs(number - maximum)

    return max(range(min((maximum + 1) // 2, limit), limit + 1), key=goodness)


def fetchable(branches: Sequence[tuple[int, int]], over: Sequence[float], now: float) -> list[float]:
    """Return until when each reply of a chunk may be fetched: those of a branch all, or none if one of them is late.

    A sum is of use only with all of its replies.

    Args:
        branches: places, from and to, of the branches.
        over: time from which the reply to each message is not wanted.
        now: the present time.

    >>> fetchable([(0, 2), (2, 4)], [9.0, 5.0, 9.0, 9.0, 9.0], now=6.0)
    [0.0, 0.0, 606.0, 606.0, 9.0]
    """
    until = list(over)
    for start, end in branches:
        until[start:end] = (end - start) * [now + _FETCHED_S if now < min(over[start:end]) else 0.0]
    return until


def whole(places: Sequence[BranchPlace | None]) -> list[tuple[int, int]]:
    """Return the places from and to which a branch of two or more messages has all of its messages in a chunk.

    >>> a, b, c = BranchPlace(0, 0, 4, 1), BranchPlace(0, 1, 1, 2), BranchPlace(0, 2, 2, 1)
    >>> whole([a, b, c]), whole([None, b, c]), whole([a, c])
    ([(0, 2)], [], [])
    """
    spans, start = list[tuple[int, int]](), 0
    while start < len(places):
        end = _end_of_branch(places, start)
        if end > start + 1:
            spans.append((start, end))
        start = end
    return spans


def _end_of_branch(places: Sequence[BranchPlace | None], start: int) -> int:
    """Return where the largest branch ends that begins with a message and is whole."""
    first, end = places[start], start + 1
    if first is None:
        return end
    inside, last = 0, first
    for number, place in enumerate(places[start + 1 :], start + 1):
        if place is None or place[:2] != (first.asking, last.number + 1) or place.before >= first.before:
            break
        inside, last = max(inside, place.before), place
        if inside < place.after:
            end = number + 1
    return end


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
            arrays = of_kind(message.content, ArrayRecord)["arrays"]
            tensors, metrics, size = read_update(reply, self._uploads, arrays, copied=False)
        except UnusableReplyError:
            keep(reply)  # the server refuses what this client sent, not what the next one writes in the same memory
            self._replies.append(reply)
            return
        self._sums.add(Update(message.metadata.dst_node_id - 1, metrics["num-examples"], tensors))
        self._clients += 1
        numbers = of_kind(reply.content, MetricRecord)["metrics"]
        self._last = Message(RecordDict({"metrics": numbers, SUMMED: ConfigRecord({"bytes": size})}), reply_to=message)
        self._replies.append(self._last)

    def replies(self) -> list[Message]:
        """Return the replies to send, without tensors and in the messages' order; the last usable one has the sum."""
        if self._last is not None:
            total = self._sums.total()
            kinds = {name: str(kind).removeprefix("torch.") for name, kind in total.kinds.items()}
            contents: dict[str, Any] = {"clients": self._clients, "examples": total.examples}
            contents |= {"names": list(kinds), "kinds": list(kinds.values())}
            self._last.content[SUM] = ConfigRecord(contents)
            self._last.content["arrays"] = pack(total.tensors, late=True)
        return self._replies
