"""Failures of clients, and the server's tolerance of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Tolerance:
    """The amount of failure that a run bears.

    Attributes:
        on_failure: a failed client ends the run, or is dropped from the round.
        min_clients: a round with fewer usable updates ends the run; >= 1.
        deadline: seconds that clients have for a round.
        replaces_the_dead: whether the engine starts another process for one that died. Where it does not, it hands
            the dead one's place all other clients too, so a death ends the run.
    """

    on_failure: Literal["fail", "drop"] = "fail"
    min_clients: int = 1
    deadline: float = 3600.0
    replaces_the_dead: bool = True


@dataclass(frozen=True)
class Failure:
    """A client without a usable answer.

    Attributes:
        client: its partition; -1 if unknown.
        reason: in one line.
    """

    client: int
    reason: str

    def __str__(self) -> str:
        return f"{f'client {self.client}' if self.client >= 0 else 'a client'}: {self.reason}"
