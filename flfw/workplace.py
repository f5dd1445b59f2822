"""All that a client half is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flfw.defence import Defence
from flfw.experiment import Experiment
from flfw.store import ClientStore
from flfw.strategy import FederatedStrategy
from flfw.task import Task


@dataclass(frozen=True)
class Workplace:
    """All that one client needs for one message.

    Attributes:
        experiment: what is run.
        task: the data and the network.
        method: the server half, for its declaration of what is shared; the client's own copy of it.
        settings: the method's hyper-parameters.
        partition: which client this is.
        round: which round.
        defence: what the client does to what it sends, if anything.
        store: where private tensors are kept; None for methods without any.
        probe: numbers that tell a round's probes apart, so that no two bear the same noise; none in training.
    """

    experiment: Experiment
    task: Task
    method: type[FederatedStrategy]
    settings: Any
    partition: int
    round: int
    defence: Defence | None
    store: ClientStore | None
    probe: tuple[int, ...] = ()
