"""Resolution of an experiment: from the names of plug-ins to their classes and settings, in every process.

`resolve` is called where names are read: on the command line, at the start of a run, in Flower's apps and in processes
with a run configuration. All other code takes the `Resolved` that it returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, final

import torch
from torch import nn

from flfw import data, nets, plugins
from flfw.adversary.attack import Attack, AttackPlugin
from flfw.adversary.membership_attack import MembershipAttack
from flfw.client import FederatedClient
from flfw.client.secret_defence import DrawnInSecret
from flfw.defence import Defence
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.inversion.compute import ComputeLimits
from flfw.messages.sharing import Sharing, matches
from flfw.method import Method
from flfw.nets.net import draws_in_training, moved_in_training, statistics_in_words
from flfw.pipeline import (
    DefenceStage,
    build_defence,
    build_net,
    defence_stages,
    plain_net,
    with_weights,
)
from flfw.plugins import build_settings
from flfw.rng import initialising
from flfw.server import FederatedStrategy
from flfw.task import form_of, input_space
from flfw.victims.operator import Operator

_PAIRS = "300"  # of a client, for membership-pairs=auto
_TRIED = 8  # inputs of the trial whether a network draws: a rare draw may spare one


@final
@dataclass(frozen=True)
class Resolved:
    """Experiment with the classes and settings that it names.

    Attributes:
        experiment: the experiment, without ``auto`` in any field.
        method: class of the server half, which is also the method's declaration.
        settings: the method's hyper-parameters, an instance of ``method.Settings``.
        space: shape of one input and number of classes; None: those of the experiment's data set.
    """

    experiment: Experiment
    method: type[FederatedStrategy]
    settings: Any
    space: tuple[tuple[int, ...], int] | None = None

    @cached_property
    def client(self) -> type[FederatedClient]:
        """Client half: the class that the method names, else the one in the file of the method's name, else `sgd`."""
        name = self.method.client
        if not name:
            name = self.experiment.method if self.experiment.method in plugins.names(plugins.CLIENT) else "sgd"
        return plugins.load_class(plugins.CLIENT, name, FederatedClient)

    @cached_property
    def model(self) -> nn.Module:
        """Model of the method without numbers, on the meta device: its names, shapes and modules.

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

    @cached_property
    def sharing(self) -> Sharing:
        """Names of the downloaded and uploaded tensors of the model."""
        return self.method.shared(self.model, self.settings)

    @cached_property
    def input_space(self) -> tuple[tuple[int, ...], int]:
        """Shape of one input and number of classes."""
        return self.space or input_space(self.experiment)

    def with_input_space(self, shape: tuple[int, ...], classes: int) -> Resolved:
        """Return the same experiment with this input shape and number of classes, where the data set is not known."""
        return dataclasses.replace(self, space=(shape, classes))

    def build_net(self, net: str = "") -> nets.Net:
        """Build the experiment's network as its defence changes it, or a plain one by its name."""
        if not net:
            return build_net(self.experiment, *self.input_space)
        return plain_net(self.experiment, net, *self.input_space)

    @cached_property
    def draws(self) -> bool:
        """True where the experiment's network, without its defence, draws random numbers in training, as dropout does.

        These are the client's own: nobody else knows them.
        """
        shape, _ = self.input_space
        with initialising(0, "network that may draw"):
            return draws_in_training(self.build_net(self.experiment.net), torch.rand(_TRIED, *shape))

    @cached_property
    def sent_statistics(self) -> tuple[str, ...]:
        """Names of the statistics of clients' data, as BatchNorm keeps them, that clients send beside the weights."""
        shape, _ = self.input_space
        with initialising(0, "network with statistics"):
            moved = moved_in_training(self.build_net(self.experiment.net), torch.rand(_TRIED, *shape))
        return tuple(name for name in moved if matches(name, self.sharing.uploads))

    @property
    def unread_statistics(self) -> str:
        """The same in words, for an audit that does not attack them; empty: there are none."""
        return statistics_in_words(self.sent_statistics)

    def build_model(self) -> nn.Module:
        """Build the method's model, initialised from torch's current generator."""
        return self.method.build_model(self.build_net(), self.settings)

    @cached_property
    def defence(self) -> Defence | None:
        """Client-side defence, for inspection only; each client gets its own from `new_defence`."""
        return self.new_defence()

    def new_defence(self) -> Defence | None:
        """Build the client-side defence, if there is one; each client gets its own, since it may keep state."""
        return build_defence(self.stages)

    def defence_of(self, partition: int) -> Defence | None:
        """Build the defence that one client uses, with the experiment's kind of draws; None: that client uses none."""
        defence = self.new_defence() if partition in self._defended else None
        return DrawnInSecret(defence) if defence and self.experiment.defence_draws == "secret" else defence

    @cached_property
    def _defended(self) -> range | frozenset[int]:
        return self.experiment.defended_partitions

    @cached_property
    def stages(self) -> tuple[DefenceStage, ...]:
        """Client-side defences with their settings, in the order in which they act; empty: none."""
        return defence_stages(self.experiment, self._fields_of_attacks)

    def _fields_of_attacks(self, name: str) -> frozenset[str]:
        alike = [attack for attack in self.experiment.attacks if plugins.short_name(attack) == name]
        return frozenset[str]().union(*map(attack_fields, alike))

    def adaptation(self, defence: str) -> type[Operator] | None:
        """Return the adaptation written for a defence of this name; None: there is none."""
        if defence not in plugins.names(plugins.ADAPTATION):
            return None
        return plugins.load_class(plugins.ADAPTATION, defence, Operator)

    @property
    def attacks(self) -> dict[str, Attack]:
        """New attacks that reconstruct examples, by the names that the experiment gives them."""
        return self._built(Attack)

    @property
    def membership(self) -> dict[str, MembershipAttack]:
        """New attacks that tell members from others, by the names that the experiment gives them."""
        return self._built(MembershipAttack)

    def _built(self, kind: type[Any]) -> dict[str, Any]:
        run = self.experiment
        compute = ComputeLimits(run.attack_memory_gb, run.attack_compile, run.attack_precision)
        chosen = self._attacks.items()
        return {name: cls(asked, compute) for name, (cls, asked) in chosen if issubclass(cls, kind)}

    @cached_property
    def _attacks(self) -> Mapping[str, tuple[Any, Any]]:
        """Class and settings of each attack; fields of a method or a defence of the same name are ignored."""
        classes: dict[str, Any] = {
            name: plugins.load_class(plugins.ATTACK, name, AttackPlugin) for name in self.experiment.attacks
        }
        others: dict[str, Any] = {plugins.short_name(self.experiment.method): self.method}
        for defence in self.experiment.defences:
            others[plugins.short_name(defence)] = plugins.load_class(plugins.DEFENCE, defence, Defence)
        of_others = {name: frozenset(f.name for f in dataclasses.fields(cls.Settings)) for name, cls in others.items()}
        return {
            name: (cls, self._settings_of(cls, name, of_others.get(plugins.short_name(name), frozenset())))
            for name, cls in classes.items()
        }

    def _settings_of(self, cls: Any, name: str, of_another: frozenset[str]) -> Any:
        return build_settings(cls.Settings, plugins.short_name(name), self.experiment.set, of_another=of_another)

    def replaced(self, **changes: Any) -> Resolved:
        """Resolve the experiment with some fields changed."""
        return resolve(dataclasses.replace(self.experiment, **changes))


@lru_cache(maxsize=64)
def resolve(experiment: Experiment) -> Resolved:
    """Resolve an experiment, once per process for equal experiments.

    Args:
        experiment: the experiment; fields may be ``auto``.

    Raises:
        InputError: the method or one of its settings is unknown.
    """
    experiment = without_auto(experiment)
    name = plugins.short_name(experiment.method)
    cls = plugins.load_class(plugins.METHOD, experiment.method, FederatedStrategy)
    # A method and an attack with the same name each take their own fields; a field without a plug-in is the method's.
    alike = [attack for attack in experiment.attacks if plugins.short_name(attack) == name]
    fields = frozenset().union(*map(attack_fields, alike))
    chosen = (*_of_variant(cls, name, experiment.variant), *experiment.set)
    return Resolved(experiment, cls, build_settings(cls.Settings, name, chosen, bare=True, of_another=fields))


def _of_variant(cls: type[FederatedStrategy], name: str, variant: str) -> tuple[str, ...]:
    """Return the settings of a method's variant as assignments; a later ``--set`` of the same field counts more."""
    if variant != "ours" and variant not in cls.variants:
        known = ", ".join(("ours", *cls.variants))
        raise InputError(f"Expected a variant of {name} among {known}; got variant={variant}.")
    return tuple(f"{field}={value}" for field, value in cls.variants.get(variant, {}).items())


def attack_fields(name: str) -> frozenset[str]:
    """Return the names of an attack's hyper-parameters.

    Raises:
        InputError: the attack is unknown.
    """
    attack: Any = plugins.load_class(plugins.ATTACK, name, AttackPlugin)
    return frozenset(field.name for field in dataclasses.fields(attack.Settings))


def needs_pairs(experiment: Experiment) -> bool:
    """Return whether an attack of the experiment is on membership, for which pairs must have been drawn.

    Raises:
        InputError: an attack is unknown.
    """
    named = (name for name in experiment.attacks if name != "auto")
    return any(issubclass(plugins.load_class(plugins.ATTACK, name, AttackPlugin), MembershipAttack) for name in named)


def without_auto(experiment: Experiment, methods: Sequence[str] = ()) -> Experiment:
    """Replace every ``auto``: by the entry of the data set's card, or by the attack with the method's name.

    ``membership_pairs=auto`` is 300 with an attack on membership. Without one it stays, and means none.
    ``metrics=auto`` is none for a method with a claim on real clients, whose server sees what they report; else all.
    ``defence_draws=auto`` is secret on real clients, whose server knows the seed; else seed.

    Args:
        experiment: the experiment as requested.
        methods: methods with the same attacks, for which ``metrics=auto`` stays; empty: the experiment's method.

    Raises:
        InputError: no attack is left, or an option for images is set for data without images.
    """
    if "auto" in experiment.attack:
        written = [name for name in methods or (experiment.method,) if name in plugins.names(plugins.ATTACK)]
        named = [name for word in experiment.attack for name in (written if word == "auto" else [word])]
        require(bool(named), "an attack beside auto, since none bears the method's name", attack="auto")
        experiment = dataclasses.replace(experiment, attack=tuple(dict.fromkeys(named)))
    if experiment.membership_pairs == "auto" and needs_pairs(experiment):
        experiment = dataclasses.replace(experiment, membership_pairs=_PAIRS)
    if experiment.metrics == "auto" and not methods:
        claims = _method(experiment).mechanism.__func__ is not Method.mechanism.__func__
        silent = claims and experiment.federation is not None
        experiment = dataclasses.replace(experiment, metrics="none" if silent else "all")
    if experiment.defence_draws == "auto":
        draws = "seed" if experiment.federation is None else "secret"
        experiment = dataclasses.replace(experiment, defence_draws=draws)
    named = data.configured(experiment.dataset, experiment.set)
    experiment = experiment if named == experiment.dataset else dataclasses.replace(experiment, dataset=named)
    if "auto" not in (experiment.net, experiment.split, experiment.augment):
        # client processes get no auto: reading a large folder again takes long
        return experiment if methods else with_weights(experiment, _method(experiment).train)
    dataset = data.absolute(experiment.dataset)
    pictures = data.is_of_pictures(dataset)
    require(pictures or not experiment.resize, "folder:PATH with --resize; other sets have --side", dataset=dataset)
    card = data.describe(dataset, form_of(experiment, experiment.side or None))
    net = (_method(experiment).net or card.net) if experiment.net == "auto" else experiment.net
    split = card.split if experiment.split == "auto" else experiment.split
    augment = card.augment if experiment.augment == "auto" else experiment.augment
    images = len(card.shape) == 3
    require(images or augment == "none", f"images for {dataset} to be varied", augment=augment)
    require(images or not experiment.side, f"images in {dataset} to be resized", side=experiment.side)
    experiment = dataclasses.replace(experiment, dataset=dataset, net=net, split=split, augment=augment)
    return experiment if methods else with_weights(experiment, _method(experiment).train)


def _method(experiment: Experiment) -> type[Method]:
    return plugins.load_class(plugins.METHOD, experiment.method, Method)
