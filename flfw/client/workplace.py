"""The workplace of a client half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from flfw.client.store import ClientStore
from flfw.defence import Defence
from flfw.experiment import Experiment
from flfw.messages.sharing import matches
from flfw.method import Method
from flfw.rng import initialising
from flfw.task import Task


@dataclass(frozen=True)
class Workplace:
    """The task, the method and the place of one client, for one message.

    Attributes:
        experiment: what is run.
        task: the data and the network.
        method: the declaration of what is shared; the client's own copy of it.
        settings: the method's hyper-parameters.
        partition: which client this is.
        round: which round.
        defence: what the client does to what it sends, if anything.
        store: where private tensors are kept; None for methods without any.
        probe: numbers that tell a round's probes apart, so that no two bear the same noise; none in training.
    """

    experiment: Experiment
    task: Task
    method: type[Method]
    settings: Any
    partition: int
    round: int
    defence: Defence | None
    store: ClientStore | None
    probe: tuple[int, ...] = ()

    def fresh_model(self) -> nn.Module:
        """Build the method's model as this client starts with it: every shared tensor is the same for all clients."""
        model = self._drawn()
        if not self.method.common_start(self.settings):
            state, downloads = model.state_dict(), self.method.shared(model, self.settings).downloads
            for name, value in self._drawn(self.partition).state_dict().items():
                if not matches(name, downloads):
                    state[name].copy_(value)
        return model

    def _drawn(self, *numbers: int) -> nn.Module:
        with initialising(self.experiment.seed, "model", *numbers):
            return self.method.build_model(self.task.build_net(), self.settings)
