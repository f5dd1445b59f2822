"""Failures of clients, and the server's rules for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FailurePolicy:
    """Rules for the failures in a run.

    Attributes:
        on_failure: ``fail``: a failed client ends the run; ``drop``: it is dropped from the round.
        min_clients: least number of usable updates in a round, >= 1; fewer end the run.
        deadline: seconds that clients have for a round.
        replaces_the_dead: whether the engine starts a new process for one that died. If it does not, it also sends
            all other clients to the dead process, so a death ends the run.
    """

    on_failure: Literal["fail", "drop"] = "fail"
    min_clients: int = 1
    deadline: float = 3600.0
    replaces_the_dead: bool = True


@dataclass(frozen=True)
class Failure:
    """Failure of one client, which gave nothing usable.

    Attributes:
        client: partition of the client; -1 if unknown.
        reason: one line of text.
    """

    client: int
    reason: str

    def __str__(self) -> str:
        return f"{f'client {self.client}' if self.client >= 0 else 'a client'}: {self.reason}"
