"""The plug-ins an experiment names, with their hyper-parameters; resolved in every process from its own code."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flfw import data, nets, plugins
from flfw.data.splits import partition
from flfw.defence import Defence, refuse_beside_factors
from flfw.errors import BadInput, require
from flfw.experiment import Experiment
from flfw.messages.sharing import matches
from flfw.method import Method
from flfw.plugins import settings, split_assignment
from flfw.server.strategy import FederatedStrategy
from flfw.task import input_space
from flfw.victims.operator import Operator


def short_name(plugin: str) -> str:
    """What a plug-in is called in ``--set``: its file's name, or the class's for somebody's own."""
    return plugin.rpartition(":")[2]


def method(experiment: Experiment) -> tuple[type[FederatedStrategy], Any]:
    """The server half and the method's hyper-parameters.

    Beside an attack of its name, each takes what is its own; a field without a name is the method's.
    """
    cls, name = plugins.find(plugins.METHOD, experiment.method, FederatedStrategy), short_name(experiment.method)
    alike = [fields(plugins.ATTACK, attack) for attack in experiment.attacks if short_name(attack) == name]
    return cls, settings(cls.Settings, name, experiment.set, bare=True, of_another=frozenset().union(*alike))


def fields(kind: plugins.Kind, name: str) -> frozenset[str]:
    """What can be set of a method or an attack."""
    from flfw.adversary.attack import Attack

    found: Any = plugins.find(kind, name, Attack if kind == plugins.ATTACK else FederatedStrategy)
    return frozenset(field.name for field in dataclasses.fields(found.Settings))


def blank_model(experiment: Experiment) -> nn.Module:
    """The method's model without any numbers in it: for its names and sizes.

    Raises:
        BadInput: the network does not fit the data, or the method does not fit the network.
    """
    cls, chosen = method(experiment)
    with torch.device("meta"):
        return cls.build_model(nets.build(experiment.net, *input_space(experiment)), chosen)


def client(experiment: Experiment) -> type:
    """The client half: what the method names, else the file of the method's name, else `sgd`."""
    from flfw.client.federated_client import FederatedClient

    name = method(experiment)[0].client
    if not name:
        name = experiment.method if experiment.method in plugins.names(plugins.CLIENT) else "sgd"
    return plugins.find(plugins.CLIENT, name, FederatedClient)


def defence(experiment: Experiment) -> Defence | None:
    """The client-side defence, if there is one."""
    if experiment.defence == "none":
        return None
    cls = plugins.find(plugins.DEFENCE, experiment.defence, Defence)
    return cls(settings(cls.Settings, short_name(experiment.defence), experiment.set))


def adaptation(experiment: Experiment) -> type[Operator] | None:
    """What an attacker has written for the experiment's defence; of somebody's own defence there is none."""
    if experiment.defence not in plugins.names(plugins.ADAPTATION):
        return None
    return plugins.find(plugins.ADAPTATION, experiment.defence, Operator)


def attacks(experiment: Experiment) -> dict[str, Any]:
    """The attacks by the name they were asked for."""
    from flfw.adversary.attack import Attack
    from flfw.inversion.compute import Compute

    found: dict[str, Any] = {name: plugins.find(plugins.ATTACK, name, Attack) for name in experiment.attacks}
    compute, own = Compute(experiment.attack_memory_gb, experiment.attack_compile), short_name(experiment.method)
    made = {}
    for name, cls in found.items():
        of_method = fields(plugins.METHOD, experiment.method) if short_name(name) == own else frozenset()
        made[name] = cls(settings(cls.Settings, short_name(name), experiment.set, of_another=of_method), compute)
    return made


def check(experiment: Experiment) -> None:
    """Refuse an experiment that names what there is not, before anything is started or written.

    Raises:
        BadInput: an unknown plug-in, a field it does not have, or a value out of its range.
    """
    for resolve in (client, defence, attacks):
        resolve(experiment)
    (cls, chosen), model = method(experiment), blank_model(experiment)
    form = cls.factored_upload(chosen)
    if form and experiment.defended_partitions:
        refuse_beside_factors(experiment.defence, defence(experiment))
    uploads = cls.shared(model, chosen).uploads
    if cls.uploads and not any(matches(name, uploads) for name, _ in model.named_parameters()):
        shared = ", ".join(cls.uploads)
        raise BadInput(f"Expected a network with {shared} to share, got net={experiment.net} without; choose another.")
    cls.check_model(model, chosen)
    settings(partition.scheme(experiment.split), experiment.split, experiment.set)
    others = [experiment.split, *experiment.attacks, *([experiment.defence] if experiment.defence != "none" else [])]
    present = {short_name(name) for name in (experiment.method, *others)}
    for assignment in experiment.set:
        target = split_assignment(assignment)[0]
        plugin = target.rpartition(".")[0]
        if plugin and plugin not in present:
            raise BadInput(
                f"Expected --set for a plug-in of this run among {', '.join(sorted(present))}; got {target}."
            )


def resolve(experiment: Experiment, methods: Sequence[str] = ()) -> Experiment:
    """The experiment with every ``auto`` replaced: by what the data set's card says, by the method's own attack.

    Args:
        experiment: as asked for.
        methods: that are attacked alike; empty: the experiment's.
    """
    if "auto" in experiment.attack:
        written = [name for name in methods or (experiment.method,) if name in plugins.names(plugins.ATTACK)]
        named = [name for word in experiment.attack for name in (written if word == "auto" else [word])]
        require(bool(named), "an attack beside auto, since none bears the method's name", attack="auto")
        experiment = dataclasses.replace(experiment, attack=tuple(dict.fromkeys(named)))
    if "auto" not in (experiment.net, experiment.split, experiment.augment):
        return experiment  # as client processes get it; to look at a large folder again takes long
    dataset = data.absolute(experiment.dataset)
    card = data.describe(dataset)
    preferred = plugins.find(plugins.METHOD, experiment.method, Method).net
    net = (preferred or card.net) if experiment.net == "auto" else experiment.net
    split = card.split if experiment.split == "auto" else experiment.split
    augment = card.augment if experiment.augment == "auto" else experiment.augment
    images = len(card.shape) == 3
    require(images or augment == "none", f"images for {dataset} to be varied", augment=augment)
    require(images or not experiment.side, f"images in {dataset} to be resized", side=experiment.side)
    return dataclasses.replace(experiment, dataset=dataset, net=net, split=split, augment=augment)
