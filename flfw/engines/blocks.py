"""Blocks of messages whose replies an actor may add up: which of them stay together, and which are a block's all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from flwr.app import Message

from flfw.server.aggregation import block_of

_TRAIN = "train"
_FETCHED_S = 600.0  # the replies of a block wait so long for those before them


class ClientBlock(NamedTuple):
    """Block of clients that were asked at once: the number of the asking, that of the block, and how many they are."""

    asking: int
    number: int
    size: int


def blocks_of(messages: Sequence[Message], asking: int) -> list[ClientBlock | None]:
    """Return the block of each message of those that were sent at once; None: it is not one of training."""
    numbers = [
        block_of(message.metadata.dst_node_id - 1) if message.metadata.message_type == _TRAIN else None
        for message in messages
    ]
    sizes = Counter(numbers)
    return [None if number is None else ClientBlock(asking, number, sizes[number]) for number in numbers]


def rounded(waiting: Sequence[ClientBlock | None], most: int) -> int:
    """Return how many of the waiting messages to hand out: about ``most``, so that no block is cut that need not be.

    A block is added if that makes it less than twice as many as there would have been. If already the first is larger,
    its messages are handed out one by one.

    >>> a, b = ClientBlock(0, 0, 3), ClientBlock(0, 1, 3)
    >>> [rounded([a, a, a, b, b, b], most) for most in (1, 2, 3, 4, 5)]
    [1, 3, 3, 3, 6]
    """
    number = 0
    while number < min(most, len(waiting)):
        block = waiting[number]
        size = block.size if block and list(waiting[number : number + block.size]) == block.size * [block] else 1
        if size > 2 * (most - number):
            return number or most
        number += size
    return number


def fetchable(blocks: Sequence[tuple[int, int]], over: Sequence[float], now: float) -> list[float]:
    """Return until when each reply of a chunk may be fetched: those of a block all, or none if one of them is late.

    A sum is of use only with all of its replies.

    Args:
        blocks: places, from and to, of the blocks.
        over: time from which the reply to each message is not wanted.
        now: the present time.

    >>> fetchable([(0, 2), (2, 4)], [9.0, 5.0, 9.0, 9.0, 9.0], now=6.0)
    [0.0, 0.0, 606.0, 606.0, 9.0]
    """
    until = list(over)
    for start, end in blocks:
        until[start:end] = (end - start) * [now + _FETCHED_S if now < min(over[start:end]) else 0.0]
    return until


def whole(blocks: Sequence[ClientBlock | None]) -> list[tuple[int, int]]:
    """Return the places from and to which a block of two or more messages has all of its messages in a chunk.

    >>> whole([None, ClientBlock(0, 4, 2), ClientBlock(0, 4, 2), ClientBlock(0, 5, 2)])
    [(1, 3)]
    """
    spans, place = list[tuple[int, int]](), 0
    for block, same in groupby(blocks):
        start, place = place, place + len(list(same))
        if block and place - start == block.size > 1:
            spans.append((start, place))
    return spans
