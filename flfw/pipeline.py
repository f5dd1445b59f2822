"""Pipeline of client-side defences, and the defences of an experiment: none, one, or the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from flfw import nets, plugins
from flfw.defence import Defence, DefendedData, LocalStep
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import Net, Tensors
from flfw.plugins import build_settings, short_name, split_assignment

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

    It claims no independent noise: a stage may give structure to the noise of the stage before.
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
        """Return every stage in its mildest form; None: one has none."""
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

    def check_data(self, held: DefendedData) -> None:
        """Refuse data for which one of the stages does not work."""
        for stage in self.stages.values():
            stage.check_data(held)

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


def defence_stages(experiment: Experiment, of_another: Fields | None = None) -> tuple[DefenceStage, ...]:
    """Return the defences of an experiment with their settings, in the order in which they act.

    Args:
        experiment: the experiment.
        of_another: names the fields of other plug-ins with a defence's name; None: assignments to fields that the
            defence does not have are ignored, since they are such a plug-in's or were refused before.

    Raises:
        InputError: a defence or one of its settings is unknown.
    """
    everything = frozenset(split_assignment(one)[0].rpartition(".")[2] for one in experiment.set)
    stages = []
    for name in experiment.defences:
        cls, short = plugins.load_class(plugins.DEFENCE, name, Defence), plugins.short_name(name)
        fields = of_another(short) if of_another else everything
        stages.append(
            DefenceStage(name, cls, plugins.build_settings(cls.Settings, short, experiment.set, of_another=fields))
        )
    return tuple(stages)


def build_defence(stages: Sequence[DefenceStage]) -> Defence | None:
    """Build the defence of a client: one defence, or a pipeline of several; None: there is none."""
    if not stages:
        return None
    return stages[0].build() if len(stages) == 1 else Pipeline(PipelineSettings(tuple(stages)))


def build_net(experiment: Experiment, shape: tuple[int, ...], classes: int) -> Net:
    """Build an experiment's network, as a malicious server and a defence change it, from torch's current generator.

    Args:
        experiment: the experiment, without ``auto`` in any field.
        shape: of one input.
        classes: number of classes.

    Raises:
        InputError: the network does not accept such inputs, or lacks the layer that the defence needs.
    """
    net = tampered_net(experiment, plain_net(experiment, experiment.net, shape, classes))
    defence = build_defence(defence_stages(experiment))
    return net if defence is None else defence.network(net)


def plain_net(experiment: Experiment, name: str, shape: tuple[int, ...], classes: int) -> Net:
    """Build a network as the experiment initialises and tunes it, without its defence.

    Args:
        experiment: the experiment, without ``auto`` in any field.
        name: of the network, the experiment's own or another.
        shape: of one input.
        classes: number of classes.
    """
    tuning = tuning_of(experiment) if name == experiment.net else None
    return nets.build(name, shape, classes, experiment.init, experiment.norm, tuning)


def tampered_net(experiment: Experiment, net: Net) -> Net:
    """Return a network as the experiment's malicious server changes it; without one as it is."""
    tampering = tampering_of(experiment)
    return net if tampering is None else tampering.network_for(net, experiment.clients)


def tampering_of(experiment: Experiment) -> ModelModification | None:
    """Build the change of the network by the experiment's malicious server; None: its server follows the protocol.

    Raises:
        InputError: the attack is unknown, changes no network, or one of its settings is unknown.
    """
    name = experiment.tampered_by
    if not name:
        return None
    try:
        cls: Any = plugins.load_class(plugins.ATTACK, name, ModelModification)
    except InputError:
        known = name in plugins.names(plugins.ATTACK)
        require(not known, "an attack whose server changes the network", tampered_by=name)
        raise
    everything = frozenset(split_assignment(one)[0].rpartition(".")[2] for one in experiment.set)
    return cls(build_settings(cls.Settings, short_name(name), experiment.set, of_another=everything))


def isolated_client(experiment: Experiment) -> int | None:
    """Return the client whose update the experiment's malicious server isolates in sums; None: nobody's."""
    tampering = tampering_of(experiment)
    return None if tampering is None else tampering.isolates


def tuning_of(experiment: Experiment) -> nets.Tuning | None:
    """Return the part of a pretrained network that an experiment trains; None: its network is not pretrained.

    Raises:
        InputError: a setting of the adapters is unknown, or a network that is not pretrained is to be trained in part.
    """
    if nets.card(experiment.net).architecture is None:
        whole = experiment.train in ("auto", "full")
        require(whole, f"train=full for net={experiment.net}, which is not pretrained", train=experiment.train)
        return None
    adapters = build_settings(nets.AdapterSettings, short_name(experiment.net), experiment.set)
    trained = "full" if experiment.train == "auto" else experiment.train
    return nets.Tuning(trained, adapters, experiment.weights_sha256)


def with_weights(experiment: Experiment, usual: nets.Trained) -> Experiment:
    """Return the experiment with the trained part of its network and the SHA-256 of its weights, if it has any.

    A client process is given the SHA-256, so that it reads no file here.

    Args:
        experiment: the experiment, without ``auto`` for the network.
        usual: the trained part for ``train=auto``.

    Raises:
        InputError: this machine has no such weights, or the network takes none.
    """
    tuning, architecture = tuning_of(experiment), nets.card(experiment.net).architecture
    if tuning is None or architecture is None:
        unused = not (experiment.weights or experiment.weights_sha256)
        require(unused, "a pretrained network for --weights", net=experiment.net)
        return experiment
    if experiment.train == "auto":
        experiment = replace(experiment, train=usual)
    if experiment.weights_sha256:
        return experiment
    return replace(experiment, weights_sha256=nets.weights_digest(architecture))


def changes_network(experiment: Experiment) -> bool:
    """Return whether an experiment's defence changes the network."""
    return any("network" in stage.active_hooks for stage in defence_stages(experiment))


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
