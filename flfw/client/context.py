"""Workplace of a client half: the data and settings for one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from flfw.client.model_copies import ModelCopies
from flfw.client.store import ClientStore
from flfw.defence import Defence
from flfw.experiment import Experiment
from flfw.messages.sharing import matches
from flfw.method import Method
from flfw.rng import initialising
from flfw.task import Task

_FIRST = ModelCopies()


@dataclass(frozen=True)
class ClientContext:
    """Data and settings that one client needs for one message.

    Attributes:
        experiment: the experiment of the run.
        task: the data and the network.
        method: the method's declaration, in the client's own copy.
        settings: the method's hyper-parameters.
        partition: number of the client.
        round: number of the round.
        defence: the client's defence; None: the client uses none.
        store: store of the private tensors; None for methods without private tensors.
        probe: numbers that identify a probe of the round, so that each probe has its own noise; empty in training.
        run: id of the run, whose clients' first models are copies of one; empty: each model is built.
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
    run: str = ""

    def fresh_model(self) -> nn.Module:
        """Build the method's model at its start: every shared tensor is the same for all clients."""
        model = self._common()
        if not self.method.common_start(self.settings):
            state, downloads = model.state_dict(), self.method.shared(model, self.settings).downloads
            for name, value in self._drawn(self.partition).state_dict().items():
                if not matches(name, downloads):
                    state[name].copy_(value)
        return model

    def _common(self) -> nn.Module:
        """Build the model that all clients begin with, or copy the one that was built for an earlier message."""
        dataset = self.task.dataset
        key = (self.run, self.experiment, self.method, self.settings, dataset.shape, dataset.classes)
        return _FIRST.model(key, self._drawn) if self.run and _is_hashable(self.settings) else self._drawn()

    def _drawn(self, *numbers: int) -> nn.Module:
        with initialising(self.experiment.seed, "model", *numbers):
            return self.method.build_model(self.task.build_net(), self.settings)


def _is_hashable(settings: Any) -> bool:
    try:
        hash(settings)
    except TypeError:  # of a plug-in that holds a list, which may change
        return False
    return True
