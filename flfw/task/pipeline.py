"""Pipeline of client-side defences, and the defences of an experiment: none, one, or the stages of a pipeline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from flfw import nets, plugins
from flfw.errors import InputError
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import Net, Tensors
from flfw.plugins import split_assignment
from flfw.rng import secret_generator
from flfw.task.defence import Defence, DefendedData, LocalStep

Fields = Callable[[str], frozenset[str]]
"""Names of the fields of other plug-ins that bear a defence's name."""


@final
@dataclass(frozen=True)
class DefenceStage:
    """Defence of an experiment with its settings, alone or in a pipeline.

    Attributes:
        name: as the experiment gives it.
        kind: the class.
        settings: an instance of ``kind.Settings``.
    """

    name: str
    kind: type[Defence]
    settings: Any

    @property
    def active_hooks(self) -> frozenset[str]:
        """Names of the hooks at which it acts."""
        return self.build().active_hooks

    def build(self) -> Defence:
        """Build the defence anew, since it may keep state."""
        return self.kind(self.settings)


@final
@dataclass(frozen=True)
class PipelineSettings:
    """Stages of a pipeline in order; each has its own settings."""

    stages: tuple[DefenceStage, ...] = ()


@final
class Pipeline(Defence):
    """Defences one after the other: at each hook every stage acts on the result of the stage before.

    The hooks keep their own order: all stages act on the batch before any acts on a step, and on each step before any
    acts on the update. So a stage that acts on steps comes before one that acts on updates wherever it is named.
    """

    Settings = PipelineSettings

    def __init__(self, settings: PipelineSettings | None = None) -> None:
        super().__init__(settings)
        self.stages = {stage.name: stage.build() for stage in self.settings.stages}

    @property
    def active_hooks(self) -> frozenset[str]:
        """Names of the hooks at which any stage acts."""
        return frozenset[str]().union(*(stage.active_hooks for stage in self.stages.values()))

    @classmethod
    def weakest_settings(cls, settings: PipelineSettings) -> PipelineSettings | None:
        """Return every stage in its weakest form; None: one has none."""
        return _changed(settings.stages, lambda stage: stage.kind.weakest_settings(stage.settings))

    @classmethod
    def disabled_settings(cls, settings: PipelineSettings) -> PipelineSettings | None:
        """Return the stages that change the network, so that they hide nothing; None: one has no such form."""
        staying = [stage for stage in settings.stages if "network" in stage.active_hooks]
        return _changed(staying, lambda stage: stage.kind.disabled_settings(stage.settings))

    def network(self, net: Net) -> Net:
        """Return the network as all stages change it."""
        for stage in self.stages.values():
            net = stage.network(net)
        return net

    def prepare(self, model: nn.Module, rng: torch.Generator) -> None:
        """Set up a client's model for every stage."""
        for stage in self.stages.values():
            stage.prepare(model, rng)

    def check_model(self, model: nn.Module, uploads: Sequence[str]) -> None:
        """Refuse a model for which one of the stages does not work."""
        for stage in self.stages.values():
            stage.check_model(model, uploads)

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        """Refuse inputs for which one of the stages does not work."""
        for stage in self.stages.values():
            stage.check_inputs(shape)

    def check_data(self, defended: DefendedData) -> None:
        """Refuse data for which one of the stages does not work."""
        for stage in self.stages.values():
            stage.check_data(defended)

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the batch after all stages."""
        for stage in self.stages.values():
            x, y = stage.batch(x, y, rng)
        return x, y

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        """Return the gradients after all stages."""
        for stage in self.stages.values():
            gradients = stage.gradients(gradients, rng)
        self._gather()
        return gradients

    def step(self, step: LocalStep, rng: torch.Generator) -> Tensors:
        """Return the gradients after all stages; each sees those of the stage before, and the same batch and model."""
        for stage in self.stages.values():
            step = replace(step, gradients=stage.step(step, rng))
        self._gather()
        return step.gradients

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Return the update after all stages."""
        for stage in self.stages.values():
            update = stage.update(update, rng)
        self._gather()
        return update

    def _gather(self) -> None:
        """Gather the figures of all stages; one whose name an earlier stage has bears its own stage's name as well."""
        figures: dict[str, float] = {}
        for name, stage in self.stages.items():
            figures |= {f"{name}_{key}" if key in figures else key: value for key, value in stage.measures.items()}
        self.measures = figures


def _changed(stages: Sequence[DefenceStage], change: Callable[[DefenceStage], Any]) -> PipelineSettings | None:
    changed = [replace(stage, settings=change(stage)) for stage in stages]
    return None if any(stage.settings is None for stage in changed) else PipelineSettings(tuple(changed))


@final
class DrawnInSecret(Defence):
    """Defence of one client whose hooks each get a new secret generator, in the place of the one handed over.

    So it holds for every defence that draws from the generator that it is given, also for a plug-in's. No two calls
    have a common state: a message that is asked for again, after a restart or not, has other draws.

    Args:
        defence: the defence.
    """

    def __init__(self, defence: Defence) -> None:
        super().__init__(defence.settings)
        self._defence = defence
        self.measures = defence.measures

    @property
    def active_hooks(self) -> frozenset[str]:
        """Names of the hooks at which the defence acts."""
        return self._defence.active_hooks

    def network(self, net: Net) -> Net:
        """Return the network as the defence changes it."""
        return self._defence.network(net)

    def prepare(self, model: nn.Module, rng: torch.Generator) -> None:
        """Set up a client's model, with a generator of its own."""
        self._defence.prepare(model, secret_generator())
        self.measures = self._defence.measures

    def check_model(self, model: nn.Module, uploads: Sequence[str]) -> None:
        """Refuse a model for which the defence does not work."""
        self._defence.check_model(model, uploads)

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        """Refuse inputs for which the defence does not work."""
        self._defence.check_inputs(shape)

    def check_data(self, defended: DefendedData) -> None:
        """Refuse data for which the defence does not work."""
        self._defence.check_data(defended)

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the batch after the defence, whose draws nobody can repeat."""
        x, y = self._defence.batch(x, y, secret_generator())
        self.measures = self._defence.measures
        return x, y

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        """Return the gradients after the defence, whose draws nobody can repeat."""
        return self._noting(self._defence.gradients(gradients, secret_generator()))

    def step(self, step: LocalStep, rng: torch.Generator) -> Tensors:
        """Return the gradients of a step after the defence, whose draws nobody can repeat."""
        return self._noting(self._defence.step(step, secret_generator()))

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Return the update after the defence, whose draws nobody can repeat."""
        return self._noting(self._defence.update(update, secret_generator()))

    def _noting(self, result: Tensors) -> Tensors:
        self.measures = self._defence.measures
        return result


@final
@dataclass(frozen=True)
class DefencePlan:
    """Client-side defences of a run, and the clients that use them.

    Attributes:
        stages: defences with their settings, in the order in which they act; empty: none.
        partitions: numbers of the clients that use them.
        randomness: where their random numbers come from: the run's ``seed``, or ``secure``, each client's own system.
    """

    stages: tuple[DefenceStage, ...] = ()
    partitions: range | frozenset[int] = frozenset()
    randomness: str = "seed"

    @property
    def name(self) -> str:
        """Names of the defences, as the experiment has them."""
        return "+".join(stage.name for stage in self.stages) or "none"

    @property
    def changes_network(self) -> bool:
        """Whether a defence changes the network."""
        return any("network" in stage.active_hooks for stage in self.stages)

    def build(self) -> Defence | None:
        """Build the defence of a client anew, since it may keep state: one, or a pipeline of several; None: none."""
        if not self.stages:
            return None
        return self.stages[0].build() if len(self.stages) == 1 else Pipeline(PipelineSettings(self.stages))

    def of_client(self, partition: int) -> Defence | None:
        """Build the defence that one client uses, with the run's kind of draws; None: that client uses none."""
        defence = self.build() if partition in self.partitions else None
        return DrawnInSecret(defence) if defence and self.randomness == "secure" else defence


@final
@dataclass(frozen=True)
class NetworkPlan:
    """Network of a run, as all its parties build it.

    Attributes:
        name: of the network.
        init: first weights.
        norm: normalisation.
        tuning: trained part of a pretrained network; None: the network is not pretrained.
        malicious: change of the network by a malicious server; None: the server follows the protocol.
        malicious_name: name of the attack that makes this change; empty: none.
        defences: client-side defences, of which some change the network.
        clients: number of clients, on which the malicious server's change may depend.
    """

    name: str
    init: nets.Init = "torch"
    norm: nets.Norm = "own"
    tuning: nets.Tuning | None = None
    malicious: ModelModification | None = None
    malicious_name: str = ""
    defences: DefencePlan = DefencePlan()
    clients: int = 1

    @property
    def isolated_client(self) -> int | None:
        """Client whose update the malicious server isolates in sums; None: nobody's."""
        return None if self.malicious is None else self.malicious.isolates

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        """Build the network, as a malicious server and a defence change it, from torch's current generator.

        Args:
            shape: of one input.
            classes: number of classes.

        Raises:
            InputError: the network does not accept such inputs, or lacks the layer that the defence needs.
        """
        net = self.tampered(self.plain(shape, classes))
        defence = self.defences.build()
        return net if defence is None else defence.network(net)

    def plain(self, shape: tuple[int, ...], classes: int, name: str = "") -> Net:
        """Build the network without the defence and the server's change, or another one by its name.

        Args:
            shape: of one input.
            classes: number of classes.
            name: of another network, which is not tuned; empty: the run's own.
        """
        tuning = self.tuning if name in ("", self.name) else None
        return nets.build(name or self.name, shape, classes, self.init, self.norm, tuning)

    def tampered(self, net: Net) -> Net:
        """Return a network as the malicious server changes it; without one as it is."""
        return net if self.malicious is None else self.malicious.network_for(net, self.clients)


def defence_stages(
    names: Sequence[str], assignments: Sequence[str], of_another: Fields | None = None
) -> tuple[DefenceStage, ...]:
    """Return defences with their settings, in the order in which they act.

    Args:
        names: of the defences.
        assignments: settings of plug-ins, as ``--set`` has them.
        of_another: names the fields of other plug-ins with a defence's name; None: assignments to fields that the
            defence does not have are ignored, since they are such a plug-in's or were refused before.

    Raises:
        InputError: a defence or one of its settings is unknown.
    """
    everything = fields_of(assignments)
    stages = []
    for name in names:
        cls, short = plugins.load_class(plugins.DEFENCE, name, Defence), plugins.short_name(name)
        fields = of_another(short) if of_another else everything
        stages.append(
            DefenceStage(name, cls, plugins.build_settings(cls.Settings, short, assignments, of_another=fields))
        )
    return tuple(stages)


def fields_of(assignments: Sequence[str]) -> frozenset[str]:
    """Return the names of all fields that are assigned, of whatever plug-in."""
    return frozenset(split_assignment(one)[0].rpartition(".")[2] for one in assignments)


def refuse_beside_factors(name: str, defence: Defence | None) -> None:
    """Refuse a defence on updates that are sent as factors: it raises their rank, and needs every digit.

    Args:
        name: of the defence.
        defence: of the client, if any.

    Raises:
        InputError: naming the form of the upload and the defence.
    """
    if defence is not None and "update" in defence.active_hooks:
        raise InputError(
            f"Expected upload=dense with a defence that acts on updates, got upload=factors and defence={name}."
        )
