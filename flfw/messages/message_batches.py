"""Cohorts of messages that one process answers together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from flwr.app import Context, Message

Asked: TypeAlias = tuple[Message, Context]
"""Message to a client, with the client's context."""


@final
@dataclass(frozen=True)
class MessageBatches:
    """Rule by which consecutive messages of one kind are answered together.

    The cohorts of a round depend on its messages alone, so every engine makes the same ones.

    Attributes:
        kind: type of the messages; others are answered one by one.
        size: most messages of a cohort, >= 2.
        answer: function of the messages of a cohort for the reply to each, or its failure.
    """

    kind: str
    size: int
    answer: Callable[[Sequence[Asked]], list[Message | Exception]]

    def divided(self, kinds: Sequence[str]) -> list[list[int]]:
        """Divide messages that were sent at once into cohorts, in their order; those of other kinds are left out.

        >>> MessageBatches("train", 2, list).divided(["train", "query", "train", "train"])
        [[0, 2], [3]]

        Args:
            kinds: the messages' types.

        Returns:
            The places of the messages of each cohort.
        """
        chosen = [index for index, kind in enumerate(kinds) if kind == self.kind]
        return [chosen[start : start + self.size] for start in range(0, len(chosen), self.size)]
