"""Context of a client half: the data and settings for one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from flfw.client.model_copies import ModelCopies
from flfw.client.store import ClientStore
from flfw.client_plan import ClientPlan
from flfw.defence import Defence
from flfw.earlier_names import EarlierHooks
from flfw.experiment.training import LocalSettings
from flfw.messages.sharing import matches
from flfw.method import Method
from flfw.rng import initialising
from flfw.task import Task

_FIRST = ModelCopies()


@dataclass(frozen=True)
class ClientContext(EarlierHooks):
    """Data and settings that one client needs for one message.

    Attributes:
        plan: what each client of the run does.
        task: the data and the network.
        partition: number of the client.
        round: number of the round.
        defence: the client's defence; None: the client uses none.
        store: store of the private tensors; None for methods without private tensors.
        probe: numbers that identify a probe of the round, so that each probe has its own noise; empty in training.
        run: id of the run, whose clients' first models are copies of one; empty: each model is built.
    """

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {"experiment": "plan"}

    plan: ClientPlan
    task: Task
    partition: int
    round: int
    defence: Defence | None
    store: ClientStore | None
    probe: tuple[int, ...] = ()
    run: str = ""

    @property
    def method(self) -> type[Method]:
        """Declaration of the method."""
        return self.plan.method

    @property
    def settings(self) -> Any:
        """Hyper-parameters of the method."""
        return self.plan.settings

    @property
    def local(self) -> LocalSettings:
        """Settings of local training."""
        return self.plan.local

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
        key = (self.run, self.plan, dataset.shape, dataset.classes)
        return _FIRST.model(key, self._drawn) if self.run and _is_hashable(self.settings) else self._drawn()

    def _drawn(self, *numbers: int) -> nn.Module:
        with initialising(self.plan.seed, "model", *numbers):
            return self.method.build_model(self.task.build_net(), self.settings)


def _is_hashable(settings: Any) -> bool:
    try:
        hash(settings)
    except TypeError:  # of a plug-in that holds a list, which may change
        return False
    return True
