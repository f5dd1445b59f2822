"""Grants of an attacker, in words for the report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.adversary.attack import Attack, Private
from flfw.adversary.sums import SEEN, Protocol
from flfw.adversary.sums import SEEN_BY_PEER as PEER_SEES
from flfw.audit.adaptation import Protection, draws_from_seed, protection_of, sent_names
from flfw.audit.jobs import AttackJob, ProbeSet
from flfw.audit.knowledge import hidden, unrolled
from flfw.audit.probe import control_net
from flfw.experiment import OUTSIDER, PEER
from flfw.experiment.audit import AttackSettings
from flfw.nets.backbones.freezing import is_frozen
from flfw.nets.conditional_gan import Discriminator, Generator
from flfw.server.central import sends_mean
from flfw.task.client_plan import ClientPlan
from flfw.task.pipeline import NetworkPlan


@dataclass(frozen=True)
class ThreatModel:
    """Knowledge of an attacker about a group of clients.

    Attributes:
        granted: in words, the granted and the withheld knowledge.
        adaptive: whether the attacker knows and uses every operation between the data and the sent tensors.
        adaptation: how it adapts to the clients' defence, or to the method: ``written`` for it, ``automatic``; None: it
            does not.
        private: whether clients keep tensors of the model private.
        protected_by: the defence or the method that hides a part of the observation; None: neither does.
    """

    granted: tuple[str, ...]
    adaptive: bool
    adaptation: str | None = None
    protected_by: str | None = None
    private: bool = False


_LABELS = {
    "given": "the true labels",
    "not used": "not granted: the labels, of which it makes no use",
    "searched for": "not granted: the labels, which are searched for with the data",
}


_NAMED = 6  # at most so many private tensors are named one by one


_ROUGH = {"bf16": "bfloat16", "tf32": "TensorFloat-32"}


_RECOVERED = "not granted: the labels, which it reads off the last layer's gradient"


def threat_model_of(
    plan: ClientPlan,
    settings: AttackSettings,
    job: AttackJob,
    attack: Attack,
    defended: bool,
    vantage: str | None = None,
) -> ThreatModel:
    """Return the grants of a job's attacker in words, as `grant` makes them.

    Args:
        plan: of the run's clients.
        settings: of the attacks.
        job: the job; it names the probes, and says whether the defence or the method's operation is granted.
        attack: the job's attack.
        defended: whether the clients in question use the defence.
        vantage: the attacker's position, if it differs from the job's.
    """
    probe_set, vantage = job.probe_set, vantage or job.vantage
    network, model, private = plan.task.network, plan.model, hidden(plan)
    if probe_set.fresh:
        with torch.device("meta"):
            model, private = control_net(probe_set.control, network, plan.seed, *plan.task.input_space), ()
    sizes = {name: value.numel() for name, value in model.state_dict().items()}
    known = sum(size for name, size in sizes.items() if name not in private)
    granted = [
        *_of_network(network),
        f"the tensors broadcast in the round ({known:,} numbers)",
        _what_is_seen(probe_set),
        *(_of_sums(probe_set) if probe_set.group else [SEEN] if attack.of_sums and not probe_set.vantage else []),
        _LABELS.get(attack.labels, _RECOVERED),
        "the inputs' range and normalisation",
    ]
    if rough := settings.attack_precision != "float32" and attack.cost.iterations > 0:
        granted.append(f"not made use of: single precision; searches compute in {_ROUGH[settings.attack_precision]}")
    if vantage == "client_update":
        granted.append("the same update, read on the client before it is sent")
    normalising = _normalising(model)
    by_batch = bool(normalising) and "batch_statistics" in attack.models and not probe_set.pooled
    # Of private running statistics none can be taken.
    running = not by_batch and any(f"{name}.running_mean" not in private for name in normalising)
    begun = job.start and probe_set.round == 0  # before training the initial tensors are the present ones
    fate = "not needed" if begun else attack.private(model, probe_set.batch)
    granted += _beside(job, private)
    granted += _hidden_from(() if begun else private, fate)
    granted += _of_training(by_batch, running, plan.draws)
    protection = protection_of(plan, settings.adaptation, probe_set, vantage, defended)
    operator = protection.operator if job.adaptive and protection.method and protection.adapts else None
    orders = {exchange.order for exchange in job.exchanges} or {None}
    steps = all(unrolled(plan, probe_set, attack, operator, order) for order in orders)
    if probe_set.source == "update":
        granted.append("which examples each local step used, by their places: this follows from the run's seed")
    if steps:
        granted.append(f"how these steps are made ({plan.name}'s optimiser), through all of which it searches")
    elif probe_set.steps > 1 or probe_set.source == "update":
        granted.append("not made use of: how the weights moved between the steps; their mean gradient is attacked")
    granted += [*_of_the_seed(plan, protection, vantage), *protection.words(job.adaptive, attack.against)]
    if unused := attack.unused(sent_names(plan, model, probe_set.fresh), job.adaptive):
        granted.append(f"not made use of: {unused}")
    # Labels that are read off the sent tensors are read as if no defence had changed these.
    knows = protection.how == "nothing to adapt to" or (job.adaptive and protection.adapts and attack.labels in _LABELS)
    knows = knows and not (job.adaptive and protection.unmodelled_part)
    knows = knows and not protection.beside and not (operator and operator.unmodelled_clause)
    seen_through = steps or (probe_set.steps == 1 and probe_set.source == "probe")
    copes = (not private or fate == "not needed") and not running and not unused and not rough and not plan.draws
    of_several = probe_set.pooled and (private or normalising) and not attack.of_sums
    copes = copes and probe_set.vantage != OUTSIDER and not of_several
    way = protection.how if job.adaptive else None
    protected_by = None if protection.how == "nothing to adapt to" else protection.by
    return ThreatModel(tuple(granted), copes and knows and seen_through, way, protected_by, bool(private))


def _of_network(network: NetworkPlan) -> Iterator[str]:
    yield f"the method's code and the network ({network.name})"
    if by := network.malicious_name:
        yield f"a malicious server's change of it ({by}), with numbers of its choice"
    if network.tuning and network.tuning.train != "full":
        yield "the weights of its frozen body, which are public"


def _normalising(model: nn.Module) -> list[str]:
    """Return the batch normalisations of a model that clients train by their own data."""
    skipped = {part for part, child in model.named_children() if isinstance(child, Generator | Discriminator)}
    found = [name for name, layer in model.named_modules() if isinstance(layer, _BatchNorm) and not is_frozen(layer)]
    return [name for name in found if name.partition(".")[0] not in skipped]


def unseen(plan: ClientPlan, vantage: str, attack: Attack | None = None) -> str:
    """Return in a sentence why nothing can be attacked at a vantage; empty: something can.

    Args:
        plan: of the run's clients.
        vantage: the attacker's position.
        attack: an attack that reconstructs; None: any.
    """
    if vantage == OUTSIDER:
        return "examples are rebuilt from a client's message or a sum of several, and an outsider sees the model alone"
    if vantage != PEER:
        return ""
    if not sends_mean(plan.method, plan.rounds.robust_rule, plan.task.network.malicious):
        mean = "the mean of what all clients send, to take its own part off"
        return f"a client of {plan.name} in this run is not sent {mean}"
    if attack is not None and attack.of_sums:
        return "it tells apart the clients of a sum in a network that a server made for it, and a peer is no server"
    return ""


def _of_sums(probe_set: ProbeSet) -> Iterator[str]:
    sums = f"the sum over groups of {probe_set.group} clients" if probe_set.group > 1 else "sums over one client each"
    if probe_set.colluding:
        size = probe_set.group + probe_set.colluding
        known = "1 client" if probe_set.colluding == 1 else f"{probe_set.colluding} clients"
        yield f"in rounds of {size} clients, what {known} sent; of the others' messages only {sums}, not one by itself"
        yield PEER_SEES
        return
    yield f"of the clients' messages only {sums}, as behind secure aggregation; which clients are in it"
    if probe_set.isolated is not None:
        yield f"that the update of client {probe_set.isolated} alone is in them, by what all others were sent"
    yield Protocol(0).words


_MADE_OF_THEM: dict[Private, str] = {
    "searched for": "which are searched for as well",
    "searched for in part": "of which it reads off what it can, and searches for what they make of the data",
    "guessed": "for which it takes random values",
    "stood in for": "in whose place it puts what it learns from public data",
    "not needed": "which it reads off what was sent, or does without",
}


def _beside(job: AttackJob, private: Sequence[str]) -> Iterator[str]:
    """Yield in words the grants that are made because the attack uses them."""
    if job.public:
        yield f"{job.public[1]:,} public examples with their labels, none of a client"
    if job.start:
        names = ", ".join(sorted({name.partition(".")[0] for name in private}))
        when = "which is what they are now" if job.probe_set.round == 0 else "which they are no longer"
        yield f"how the private tensors of all clients ({names}) began, {when}"
    if job.uploads:
        count = len(job.uploads)
        yield f"what {count} client{'s' * (count > 1)} uploaded in the round, beside the probes"
    if job.earlier:
        yield "the answers to the same probes after earlier rounds, and that the same examples are behind them"


def _hidden_from(private: Sequence[str], fate: Private) -> Iterator[str]:
    if private:
        yield f"not granted: the client's private tensors ({', '.join(_in_short(private))}), {_MADE_OF_THEM[fate]}"


def _of_training(by_batch: bool, running: bool, draws: bool) -> Iterator[str]:
    if by_batch:
        yield "that BatchNorm takes the batch's statistics in training, as it does for a guess"
    if running:
        yield "not made use of: that BatchNorm takes the batch's statistics in training; the running ones are taken"
    if draws:
        yield "not granted: the network's random draws in training, such as dropout; they are left out"


def _of_the_seed(plan: ClientPlan, protection: Protection, vantage: str) -> Iterator[str]:
    """Yield in words that the seed is not granted, where random draws from it stand in the way."""
    if protection.how == "nothing to adapt to":
        return
    seeded = getattr(plan.settings, "noise_source", "") == "seed"
    draws = {protection.by: seeded if protection.method else draws_from_seed(plan, vantage)}
    draws |= {protection.before: seeded, protection.beside: seeded}
    if by := [name for name, drawn in draws.items() if name and drawn]:
        yield f"not granted: the run's seed, from which {' and '.join(by)} may draw: who has it can take the draws off"


def _in_short(names: Sequence[str]) -> list[str]:
    """Return the names of tensors; if there are many, only the parts of the model that they belong to."""
    if len(names) <= _NAMED:
        return list(names)
    return list(dict.fromkeys(f"{part}.*" if dot else part for part, dot, _ in (n.partition(".") for n in names)))


def _what_is_seen(probe_set: ProbeSet) -> str:
    if probe_set.vantage == OUTSIDER:
        return "not granted: any message of a client, or a sum of several"
    if probe_set.on_client:
        return "the gradient of one example, read on the client during local training"
    if probe_set.source == "update":
        steps, batch = probe_set.steps, probe_set.batch
        return f"that an upload is up to {steps} local steps on up to {batch} examples, and their learning rate"
    what = f"{probe_set.batch} example{'s' if probe_set.batch > 1 else ''}"
    if probe_set.steps == 1:
        return f"that the gradient is one local step on {what}"
    return f"that {probe_set.steps} local steps on the same {what} were taken, and their learning rate"
