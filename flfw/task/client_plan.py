"""Plan of a client: what it does in each round, as every party of the run knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import nn

from flfw.errors import InputError
from flfw.experiment.training import LocalSettings, PrivacySettings, RoundSettings
from flfw.files.earlier_names import EarlierHooks
from flfw.files.tensor_names import matches
from flfw.messages.sharing import Sharing
from flfw.nets.net import draws_in_training, moved_in_training, statistics_in_words
from flfw.rng import initialising
from flfw.task.defence import Defence
from flfw.task.method import Method
from flfw.task.pipeline import DefencePlan
from flfw.task.task import TaskPlan

_TRIED = 8  # inputs of the trial whether a network draws: a rare draw may spare one


@final
@dataclass(frozen=True, eq=False)
class ClientPlan:
    """What the clients of a run do, as every party knows it: the server, each client, and an attacker.

    Attributes:
        name: of the method.
        method: class of the server half, which is also the method's declaration.
        settings: the method's hyper-parameters, an instance of ``method.Settings``.
        client_class: class of the client half, a subclass of `flfw.client.FederatedClient`.
        task: data, their cut and the network.
        defences: client-side defences and who uses them.
        rounds: who takes part in the rounds, and how many there are.
        local: settings of local training.
        privacy: what is required and claimed of privacy, and the metrics that clients report.
        seed: of the run.
        on_gpu: whether clients compute on a GPU.
        real: whether the clients are real sites, in place of simulated ones.
    """

    name: str
    method: type[Method]
    settings: Any
    client_class: type[Any]
    task: TaskPlan
    defences: DefencePlan
    rounds: RoundSettings
    local: LocalSettings
    privacy: PrivacySettings
    seed: int
    on_gpu: bool = False
    real: bool = False

    @cached_property
    def model(self) -> nn.Module:
        """Model of the method without values, on the meta device: its names, shapes and modules.

        Raises:
            InputError: the network does not fit the data, the method does not fit the network, or a size is too large.
        """
        try:
            with torch.device("meta"):
                return self.build_model()
        except (OverflowError, RuntimeError, TypeError) as error:  # torch has all of them for a size too large
            if "overflow" not in str(error).lower():
                raise
            raise InputError("Expected a model whose sizes can be counted, got larger ones; lower --set.") from error

    def build_model(self) -> nn.Module:
        """Build the method's model, initialised from torch's current generator."""
        return self.method.build_model(self.task.build_net(), self.settings)

    @cached_property
    def sharing(self) -> Sharing:
        """Names of the downloaded and uploaded tensors of the model."""
        return self.method.shared(self.model, self.settings)

    @cached_property
    def draws(self) -> bool:
        """True where the network, without its defence, draws random numbers in training, as dropout does.

        These are the client's own: nobody else knows them.
        """
        shape, _ = self.task.input_space
        with initialising(0, "network that may draw"):
            return draws_in_training(self.task.build_net(self.task.network.name), torch.rand(_TRIED, *shape))

    @cached_property
    def sent_statistics(self) -> tuple[str, ...]:
        """Names of the statistics of clients' data, as BatchNorm keeps them, that clients send beside the weights."""
        shape, _ = self.task.input_space
        with initialising(0, "network with statistics"):
            moved = moved_in_training(self.task.build_net(self.task.network.name), torch.rand(_TRIED, *shape))
        return tuple(name for name in moved if matches(name, self.sharing.uploads))

    @property
    def unread_statistics(self) -> str:
        """The same in words, for an audit that does not attack them; empty: there are none."""
        return statistics_in_words(self.sent_statistics)

    @cached_property
    def defence(self) -> Defence | None:
        """Client-side defence, for inspection only; each client gets its own from `DefencePlan.of_client`."""
        return self.defences.build()

    def defence_of(self, client: int) -> str:
        """Return the defence that a client applies to its messages, or ``none``."""
        return self.defences.name if client in self.defences.partitions else "none"

    def with_defences(self, defences: DefencePlan) -> ClientPlan:
        """Return the plan with other defences, which change the network in their own way."""
        network = replace(self.task.network, defences=defences)
        return replace(self, defences=defences, task=replace(self.task, network=network))

    def with_input_space(self, shape: tuple[int, ...], classes: int) -> ClientPlan:
        """Return the plan with this input shape and number of classes, where the data set is not known."""
        return replace(self, task=replace(self.task, space=(shape, classes)))


@dataclass(frozen=True)
class PlanContext(EarlierHooks):
    """Part of the contexts of both halves: the plan of the run's clients.

    Attributes:
        plan: what each client of the run does.
    """

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {"experiment": "plan"}

    plan: ClientPlan

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
