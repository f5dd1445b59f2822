"""Plan of a run: what an experiment names, looked up once in every process.

`plan` is called where an experiment is read: on the command line, at the start of a run, in Flower's apps, in attack
processes. All other code takes a part of the plan, or the values that it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, final

from flfw import data, nets, plugins
from flfw.adversary.attack import Attack, AttackPlugin
from flfw.adversary.membership_attack import MembershipAttack
from flfw.client import FederatedClient
from flfw.client.gradient_client import GradientClient
from flfw.errors import InputError, require
from flfw.experiment import FREE_ON_RESUME, Experiment, Scalar
from flfw.experiment.audit import AttackSettings, ProbeSettings, RecordingSettings
from flfw.experiment.experiment import ExecutionSettings
from flfw.experiment.training import DataSettings, LocalSettings, NetworkSettings, PrivacySettings, RoundSettings
from flfw.files.tensor_names import matches
from flfw.inversion.compute import ComputeLimits
from flfw.nets.malicious_model import ModelModification
from flfw.nets.training.optimisers import LocalTraining
from flfw.plugins import build_settings, short_name
from flfw.server import FederatedStrategy
from flfw.task.client_plan import ClientPlan
from flfw.task.method import Method
from flfw.task.pipeline import DefencePlan, NetworkPlan, defence_stages, fields_of
from flfw.task.task import TaskPlan, image_format

_CLOSED_FORM = "analytic"  # a part of attack=auto
_PAIRS = "300"  # of a client, for membership-pairs=auto
_WITHHELD = {"dataset": "withheld", "split": "withheld"}  # paths of a user's own data, withheld from attacks
_NEEDED = ("attack_timeout",)  # kept for attacks, although they change no numbers

Group = TypeVar("Group")


@final
@dataclass(frozen=True, eq=False)
class AuditPlan:
    """Attacks of a run, and what they are to see.

    Attributes:
        probes: the audited rounds, the probes in them and the attackers' positions.
        settings: of the attacks, their process and resources.
        assignments: settings of plug-ins, as ``--set`` has them.
        others: the run's method and defences, by name: a field of theirs may have an attack's name before it.
        recordings: settings of the recordings.
        record: whether what sites send is recorded for a later audit.
        rounds: number of rounds of training.
        sum_sizes: numbers of clients in a sum: the target's first, then those of the curve.
        colluding: number of clients whose own messages an attacker on sums knows, >= 1.
        process: where attacks run: ``concurrent`` with training or ``after`` it in another process, or ``inline``.
        run_config: the experiment as every participant knows it, for attackers.
    """

    probes: ProbeSettings
    settings: AttackSettings
    assignments: tuple[str, ...]
    others: Mapping[str, Any]
    recordings: RecordingSettings
    record: bool
    rounds: int
    sum_sizes: tuple[int, ...]
    colluding: int
    process: str
    run_config: Mapping[str, Scalar]

    @cached_property
    def classes(self) -> Mapping[str, tuple[Any, Any]]:
        """Class and settings of each attack, by the name that the experiment gives it; clients look none of them up.

        Raises:
            InputError: an attack or one of its settings is unknown.
        """
        chosen: dict[str, tuple[Any, Any]] = {}
        for name in self.settings.attacks:
            attack: Any = plugins.load_class(plugins.ATTACK, name, AttackPlugin)
            taken = self._of_others.get(short_name(name), frozenset[str]())
            chosen[name] = attack, build_settings(attack.Settings, short_name(name), self.assignments, of_another=taken)
        return chosen

    @property
    def _of_others(self) -> dict[str, frozenset[str]]:
        named = self.others.items()
        return {short_name(name): frozenset(f.name for f in fields(one.Settings)) for name, one in named}

    def takes(self, assignment: str) -> bool:
        """Return whether an assignment of ``--set`` is for an attack, and not for the method or a defence."""
        plugin, _, field = plugins.split_assignment(assignment)[0].rpartition(".")
        return plugin in map(short_name, self.settings.attacks) and field not in self._of_others.get(plugin, ())

    @property
    def reconstructions(self) -> dict[str, Attack]:
        """New attacks that reconstruct examples, by name."""
        return self._built(Attack)

    @property
    def memberships(self) -> dict[str, MembershipAttack]:
        """New attacks that tell members from others, by name."""
        return self._built(MembershipAttack)

    def _built(self, kind: type[Any]) -> dict[str, Any]:
        how = self.settings
        precision: Any = how.attack_precision.removesuffix("_compiled")
        compute = ComputeLimits(compiled=how.attack_compile, precision=precision)
        chosen = self.classes.items()
        return {name: cls(settings, compute) for name, (cls, settings) in chosen if issubclass(cls, kind)}

    @property
    def audited(self) -> tuple[int, ...]:
        """Audited rounds, ascending; empty when there is no audit and no recording for an audit."""
        return self.audited_by(self.rounds)

    def audited_by(self, last: int) -> tuple[int, ...]:
        """Return the audited rounds of a run that ended after round ``last``."""
        return self.probes.rounds_audited(self.rounds, last) if self.settings.attacks or self.record else ()

    @property
    def sees_updates(self) -> bool:
        """Whether messages of single clients are attacked, probes or uploads, or recorded for an attack."""
        return bool(self.settings.attacks) or self.record

    @property
    def records_uploads(self) -> bool:
        """Whether uploads of audited rounds are recorded: attacked as such, read by an attack beside, or asked for."""
        read = bool(self.memberships) or any("uploads" in attack.uses for attack in self.reconstructions.values())
        return self.record or read or self.probes.audit_source != "probe"

    @property
    def attacks_uploads(self) -> bool:
        """Whether the examples behind uploads of audited rounds are to be reconstructed."""
        return bool(self.settings.attacks) and self.probes.audit_source != "probe"

    def attacks_uploads_of(self, server_round: int) -> bool:
        """Return whether clients note the examples of a round: one that is audited, as was known before the run."""
        return self.attacks_uploads and server_round > 0 and server_round in self.audited


@final
@dataclass(frozen=True, eq=False)
class RunPlan:
    """Plan of a run: its experiment, and the parts that the code of its phases takes.

    Attributes:
        experiment: the experiment, without ``auto`` in any field, for what is stored of it.
        client: what each client does, as every party of the run knows it.
        audit: the attacks and what they see.
        engine: settings of the engine and of failures.
        federation: folder of a federation of real sites; None: the run is a simulation.
    """

    experiment: Experiment
    client: ClientPlan
    audit: AuditPlan
    engine: ExecutionSettings
    federation: Path | None

    @property
    def strategy(self) -> type[FederatedStrategy]:
        """Class of the server half."""
        return cast(type[FederatedStrategy], self.client.method)

    @property
    def client_class(self) -> type[FederatedClient]:
        """Class of the client half."""
        return self.client.client_class

    @property
    def task(self) -> TaskPlan:
        """Data, their cut and the network."""
        return self.client.task

    def with_input_space(self, shape: tuple[int, ...], classes: int) -> RunPlan:
        """Return the same plan with this input shape and number of classes, where the data set is not known."""
        return replace(self, client=self.client.with_input_space(shape, classes))

    def replaced(self, **changes: Any) -> RunPlan:
        """Plan the experiment with some fields changed."""
        return plan(replace(self.experiment, **changes))


@lru_cache(maxsize=64)
def plan(experiment: Experiment) -> RunPlan:
    """Plan an experiment, once per process for equal experiments.

    Args:
        experiment: the experiment; fields may be ``auto``.

    Raises:
        InputError: a plug-in or one of its settings is unknown.
    """
    experiment = without_auto(experiment)
    name, assignments = short_name(experiment.method), experiment.set
    method = plugins.load_class(plugins.METHOD, experiment.method, FederatedStrategy)
    # A method and an attack with the same name each take their own fields; a field without a plug-in is the method's.
    alike = frozenset[str]().union(*(attack_fields(one) for one in experiment.attacks if short_name(one) == name))
    chosen = (*_of_variant(method, name, experiment.variant), *assignments)
    settings = build_settings(method.Settings, name, chosen, bare=True, of_another=alike)

    def of_attacks(defence: str) -> frozenset[str]:
        same = [one for one in experiment.attacks if short_name(one) == defence]
        return frozenset[str]().union(*map(attack_fields, same))

    stages = defence_stages(experiment.defences, assignments, of_attacks)
    defences = DefencePlan(stages, experiment.defended_partitions, experiment.defence_randomness)
    network = NetworkPlan(
        name=experiment.net,
        init=experiment.init,
        norm=experiment.norm,
        tuning=_tuning(experiment, assignments),
        malicious=_malicious(experiment.malicious_server, assignments),
        malicious_name=experiment.malicious_server,
        defences=defences,
        clients=experiment.clients,
    )
    task = TaskPlan(
        data=_group(experiment, DataSettings),
        clients=experiment.clients,
        network=network,
        assignments=assignments,
        seed=experiment.seed,
        canaries=experiment.canaries,
        membership_pairs=experiment.membership_pairs,
    )
    client = ClientPlan(
        name=experiment.method,
        method=method,
        settings=settings,
        client_class=_client_half(method, experiment.method),
        task=task,
        defences=defences,
        rounds=_group(experiment, RoundSettings),
        local=_group(experiment, LocalSettings),
        privacy=_group(experiment, PrivacySettings),
        seed=experiment.seed,
        on_gpu=bool(experiment.gpus_per_client),
        real=experiment.federation is not None,
    )
    others = {experiment.method: method, **{stage.name: stage.kind for stage in defences.stages}}
    audit = _audit_plan(experiment, others)
    return RunPlan(experiment, client, audit, _group(experiment, ExecutionSettings), experiment.federation)


def _audit_plan(experiment: Experiment, others: Mapping[str, Any]) -> AuditPlan:
    return AuditPlan(
        probes=_group(experiment, ProbeSettings),
        settings=_group(experiment, AttackSettings),
        assignments=experiment.set,
        others=others,
        recordings=_group(experiment, RecordingSettings),
        record=experiment.record,
        rounds=experiment.rounds,
        sum_sizes=experiment.groups,
        colluding=experiment.colluding_attackers,
        process=resolve_attack_process(experiment.attack_process, experiment.engine),
        run_config=_known_to_all(experiment),
    )


def _group(experiment: Experiment, kind: Callable[..., Group]) -> Group:
    """Return one group of an experiment's settings, without the others."""
    return kind(**{field.name: getattr(experiment, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def resolve_attack_process(chosen: str, engine: str) -> str:
    """Return where attacks run; ``auto`` is concurrent with training, or inline where clients run in this process."""
    if chosen != "auto":
        return chosen
    return "inline" if engine == "inproc" else "concurrent"


def _known_to_all(experiment: Experiment) -> dict[str, Scalar]:
    """Return the experiment as every participant knows it, without settings of this machine or without effect."""
    silent = {name: at for name, at in vars(Experiment()).items() if name in FREE_ON_RESUME and name not in _NEEDED}
    return {**replace(experiment, **silent).to_run_config(), **_WITHHELD}


def _client_half(method: type[FederatedStrategy], name: str) -> type[FederatedClient]:
    """Return the class that a method names, else the one in the file of its name, or of what it derives from, or `sgd`.

    Raises:
        InputError: a method from outside names none, though its module defines one, which would never be used; or its
            settings have no optimiser.
    """
    if not method.client and ":" in name:
        modules = {one: sys.modules[one] for one in (method.__module__, name.partition(":")[0]) if one in sys.modules}
        halves = [half for module in modules.values() for half in plugins.defined_in(module, FederatedClient)]
        named = {cls.client for module in modules.values() for cls in plugins.defined_in(module, FederatedStrategy)}
        beside = {f"{half.__module__}:{half.__name__}" for half in halves} - named
        lines = " or ".join(f'client = "{half}"' for half in (*sorted(beside), "sgd"))
        require(not beside, f"{name} to name its client half, as one stands beside it: {lines}", client=None)
        ours = [cls.__module__ for cls in method.__mro__ if cls.__module__.startswith(f"{plugins.METHOD.package}.")]
        name = next((one.rpartition(".")[2] for one in ours), name)
    half = method.client or (name if name in plugins.names(plugins.CLIENT) else "sgd")
    client = plugins.load_class(plugins.CLIENT, half, FederatedClient)
    if issubclass(client, GradientClient) and client.optimiser is GradientClient.optimiser:
        expected = (
            f"Settings of {method.__name__} from LocalTraining, for its client half {half} to make its optimiser of"
        )
        require(issubclass(method.Settings, LocalTraining), expected, Settings=method.Settings.__name__)
    return client


def _of_variant(cls: type[FederatedStrategy], name: str, variant: str) -> tuple[str, ...]:
    """Return the settings of a method's variant as assignments; a later ``--set`` of the same field counts more."""
    if variant != "ours" and variant not in cls.variants:
        known = ", ".join(("ours", *cls.variants))
        raise InputError(f"Expected a variant of {name} among {known}; got variant={variant}.")
    return tuple(f"{field}={value}" for field, value in cls.variants.get(variant, {}).items())


def _malicious(name: str, assignments: Sequence[str]) -> ModelModification | None:
    """Build the change of the network by a malicious server; None: the server follows the protocol.

    Raises:
        InputError: the attack is unknown, changes no network, or one of its settings is unknown.
    """
    if not name:
        return None
    try:
        cls: Any = plugins.load_class(plugins.ATTACK, name, ModelModification)
    except InputError:
        known = name in plugins.names(plugins.ATTACK)
        require(not known, "an attack whose server changes the network", malicious_server=name)
        raise
    return cls(build_settings(cls.Settings, short_name(name), assignments, of_another=fields_of(assignments)))


def _tuning(network: NetworkSettings, assignments: Sequence[str]) -> nets.Tuning | None:
    """Return the part of a pretrained network that is trained; None: the network is not pretrained.

    Raises:
        InputError: a setting of the adapters is unknown, or a network that is not pretrained is to be trained in part.
    """
    if nets.card(network.net).architecture is None:
        whole = network.trainable in ("auto", "full")
        require(whole, f"trainable=full for net={network.net}, which is not pretrained", trainable=network.trainable)
        return None
    adapters = build_settings(nets.AdapterSettings, short_name(network.net), assignments)
    return nets.Tuning("full" if network.trainable == "auto" else network.trainable, adapters, network.weights_sha256)


def attack_fields(name: str) -> frozenset[str]:
    """Return the names of an attack's hyper-parameters.

    Raises:
        InputError: the attack is unknown.
    """
    attack: Any = plugins.load_class(plugins.ATTACK, name, AttackPlugin)
    return frozenset(field.name for field in fields(attack.Settings))


def needs_pairs(attacks: Sequence[str]) -> bool:
    """Return whether one of the attacks is on membership, for which pairs must have been drawn.

    Raises:
        InputError: an attack is unknown.
    """
    named = (name for name in attacks if name != "auto")
    return any(issubclass(plugins.load_class(plugins.ATTACK, name, AttackPlugin), MembershipAttack) for name in named)


def without_auto(experiment: Experiment, methods: Sequence[str] = ()) -> Experiment:
    """Replace every ``auto``: by the entry of the data set's card, or by the attacks that are made for the case.

    ``attack=auto`` is the closed form where nothing hides a dense first layer's gradient of one example, and the attack
    with the method's name.

    ``membership_pairs=auto`` is 300 with an attack on membership. Without one it stays, and means none.
    ``metrics=auto`` is none for a method with a claim, on real clients and with ``noise_source=secure``, since the
    server sees what clients report; else all.
    ``defence_randomness=auto`` is secure on real clients, whose server knows the seed; else seed.

    Args:
        experiment: the experiment as requested.
        methods: methods with the same attacks, for which ``metrics=auto`` stays; empty: the experiment's method.

    Raises:
        InputError: no attack is left, or an option for images is set for data without images.
    """
    automatic = "auto" in experiment.attack
    if automatic:
        written = [name for name in methods or (experiment.method,) if name in plugins.names(plugins.ATTACK)]
        named = [name for word in experiment.attack for name in (written if word == "auto" else [word])]
        experiment = replace(experiment, attack=tuple(dict.fromkeys(named)))
    if experiment.membership_pairs == "auto" and needs_pairs(experiment.attacks):
        experiment = replace(experiment, membership_pairs=_PAIRS)
    if experiment.metrics == "auto" and not methods:
        claims = _declared(experiment.method).mechanism.__func__ is not Method.mechanism.__func__
        secure = {"noise_source=secure", f"{experiment.method}.noise_source=secure"} & set(experiment.set)
        silent = claims and (experiment.federation is not None or bool(secure))
        experiment = replace(experiment, metrics="none" if silent else "all")
    if experiment.defence_randomness == "auto":
        experiment = replace(experiment, defence_randomness="seed" if experiment.federation is None else "secure")
    experiment = _for_the_data(experiment)
    if automatic:
        more = (_CLOSED_FORM,) if not methods and _is_read_off(experiment) else ()
        experiment = replace(experiment, attack=tuple(dict.fromkeys((*experiment.attack, *more))))
        require(bool(experiment.attack), "an attack beside auto, since none bears the method's name", attack="auto")
    return experiment if methods else _with_weights(experiment)


def _is_read_off(experiment: Experiment) -> bool:
    """Return whether a closed form reads probes of one example: nothing hides the gradient of a dense first layer."""
    method, first = _declared(experiment.method), nets.card(experiment.net).dense
    if experiment.defences or method.mechanism.__func__ is not Method.mechanism.__func__:
        return False
    sent = bool(first) and all(matches(f"{first}.{part}", method.uploads) for part in ("weight", "bias"))
    return sent and experiment.victim_batch == 1


def _for_the_data(experiment: Experiment) -> Experiment:
    """Replace ``auto`` of the network, the split and augmentation by the entries of the data set's card."""
    named = data.configured(experiment.dataset, experiment.set)
    experiment = experiment if named == experiment.dataset else replace(experiment, dataset=named)
    if "auto" not in (experiment.net, experiment.split, experiment.augment):
        # client processes get no auto: reading a large folder again takes long
        return experiment
    dataset = data.absolute(experiment.dataset)
    pictures = data.is_of_pictures(dataset)
    resized = "folder:PATH with a size in --expert own_images; other sets have --image-size"
    require(pictures or experiment.image_words.size is None, resized, dataset=dataset)
    card = data.describe(dataset, image_format(experiment, experiment.image_size or None))
    net = (_declared(experiment.method).net or card.net) if experiment.net == "auto" else experiment.net
    split = card.split if experiment.split == "auto" else experiment.split
    augment = card.augment if experiment.augment == "auto" else experiment.augment
    images = len(card.shape) == 3
    require(images or augment == "none", f"images for {dataset} to be varied", augment=augment)
    require(images or not experiment.image_size, f"images in {dataset} to be resized", image_size=experiment.image_size)
    return replace(experiment, dataset=dataset, net=net, split=split, augment=augment)


def _declared(method: str) -> type[Method]:
    return plugins.load_class(plugins.METHOD, method, Method)


def _with_weights(experiment: Experiment) -> Experiment:
    """Return the experiment with the trained part of its network and the SHA-256 of its weights, if it has any.

    A client process is given the SHA-256, so that it reads no file here.

    Raises:
        InputError: this machine has no such weights, or the network takes none.
    """
    tuning, architecture = _tuning(experiment, experiment.set), nets.card(experiment.net).architecture
    if tuning is None or architecture is None:
        unused = not (experiment.weights or experiment.weights_sha256)
        require(unused, "a pretrained network for --expert weights", net=experiment.net)
        return experiment
    if experiment.trainable == "auto":
        experiment = replace(experiment, trainable=_declared(experiment.method).train)
    if experiment.weights_sha256:
        return experiment
    return replace(experiment, weights_sha256=nets.weights_digest(architecture))
