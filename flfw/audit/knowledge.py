"""What an attacker is granted: in words, for the report, and as what it computes with, from a job alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfw import nets, parts
from flfw.audit.adaptation import hiding
from flfw.audit.attack import Attack, Private
from flfw.audit.jobs import EXAMPLE, Job, Ticket
from flfw.audit.observation import Examples, Knowledge, Observation, Vantage
from flfw.audit.probe import ladder_net
from flfw.data.feed import raw
from flfw.experiment import Experiment
from flfw.inversion.automatic import Automatic
from flfw.inversion.local_steps import LocalSteps, SteppedVictim
from flfw.inversion.mechanism import Mechanism, MethodMechanism
from flfw.inversion.victim import Inputs, PlainVictim, VictimModel
from flfw.nets.conditional_gan import Discriminator, Generator
from flfw.nets.net import Tensors
from flfw.patterns import matches
from flfw.rng import initialising
from flfw.task import input_space


@dataclass(frozen=True)
class Standing:
    """Where an attacker stands towards some of the clients.

    Attributes:
        granted: in words, what it is given and what it is not.
        adaptive: whether it knows, and makes use of, all that stands between the data and what was sent.
        adaptation: how it adapts to the clients' defence, or to the method: ``written`` for it, ``automatic``; None: it
            does not.
        hidden_by: the defence or the method that hides something of what is read; None: neither does.
    """

    granted: tuple[str, ...]
    adaptive: bool
    adaptation: str | None = None
    hidden_by: str | None = None


_LABELS = {
    "given": "the true labels",
    "not used": "not granted: the labels, of which it makes no use",
    "searched for": "not granted: the labels, which are searched for with the data",
}
_NAMED = 6  # private tensors that are named one by one
_RECOVERED = "not granted: the labels, which it reads off the last layer's gradient"


def standing(experiment: Experiment, job: Job, attack: Attack, defended: bool, vantage: str | None = None) -> Standing:
    """What the attacker of a job is granted, as `grant` does it.

    Args:
        experiment: what was run.
        job: names the probes, and says whether what hides the data is granted.
        attack: which makes use of some of it.
        defended: whether the clients in question use the experiment's defence.
        vantage: where it stands, if that is not what the job says.
    """
    ticket, vantage = job.ticket, vantage or job.vantage
    model, private = parts.blank_model(experiment), hidden(experiment)
    if ticket.rung != "target":
        with torch.device("meta"):
            model, private = nets.build(experiment.net, *input_space(experiment)), ()
    sizes = {name: value.numel() for name, value in model.state_dict().items()}
    known = sum(size for name, size in sizes.items() if name not in private)
    granted = [
        f"the method's code and the network ({experiment.net})",
        f"the tensors broadcast in the round ({known:,} numbers)",
        _what_is_seen(ticket),
        _LABELS.get(attack.labels, _RECOVERED),
        "the inputs' range and normalisation",
    ]
    if vantage == "client_update":
        granted.append("the same update, read on the client before it is sent")
    classifying = [part for part in model.children() if not isinstance(part, Generator | Discriminator)]
    by_batch = any(isinstance(module, _BatchNorm) for part in classifying for module in part.modules())
    begun = job.start and ticket.round == 0  # nothing has been trained: as they begin is as they are
    fate = "not needed" if begun else attack.private(model, ticket.batch)
    granted += _beside(job, private)
    granted += _hidden_from(() if begun else private, fate, by_batch)
    hides = hiding(experiment, ticket, vantage, defended)
    told = hides.told if job.adaptive and hides.method and hides.adapts else None
    steps = _unrolled(experiment, ticket, attack, told)
    if steps:
        granted.append(f"how these steps are made ({experiment.method}'s optimiser), through all of which it searches")
    elif ticket.steps > 1:
        granted.append("not made use of: how the weights moved between the steps; their mean gradient is attacked")
    granted += hides.words(job.adaptive)
    descended = ("*",) if ticket.rung != "target" else parts.method(experiment)[0].descended()
    sent = [name for name, _ in model.named_parameters() if matches(name, descended)]
    if unused := attack.unused(sent, job.adaptive):
        granted.append(f"not made use of: {unused}")
    # Labels that are read off what was sent are read as if nothing had been done to it.
    knows = hides.how == "nothing to adapt to" or (job.adaptive and hides.adapts and attack.labels in _LABELS)
    knows = knows and not hides.beside and not (told and told.missed)
    seen_through = ticket.steps == 1 or steps is not None
    copes = (not private or fate == "not needed") and not by_batch and not unused
    way = hides.how if job.adaptive else None
    hidden_by = None if hides.how == "nothing to adapt to" else hides.by
    return Standing(tuple(granted), copes and knows and seen_through, way, hidden_by)


_MADE_OF_THEM: dict[Private, str] = {
    "searched for": "which are searched for as well",
    "searched for in part": "of which it reads off what it can, and searches for what they make of the data",
    "stood in for": "in whose place it puts what it learns from public data",
    "not needed": "which it reads off what was sent, or does without",
}


def hidden(experiment: Experiment) -> tuple[str, ...]:
    """The tensors that clients keep to themselves."""
    shared = parts.method(experiment)[0].downloads
    return tuple(name for name in parts.blank_model(experiment).state_dict() if not matches(name, shared))


def _beside(job: Job, private: Sequence[str]) -> Iterator[str]:
    """In words, what is granted because the attack uses it."""
    if job.public:
        yield f"{job.public[1]:,} public examples with their labels, none of a client"
    if job.start:
        names = ", ".join(sorted({name.partition(".")[0] for name in private}))
        when = "which is what they are now" if job.ticket.round == 0 else "which they are no longer"
        yield f"how the private tensors of all clients ({names}) began, {when}"
    if job.uploads:
        count = len(job.uploads)
        yield f"what {count} client{'s' * (count > 1)} uploaded in the round, beside the probes"


def _hidden_from(private: Sequence[str], fate: Private, by_batch: bool) -> Iterator[str]:
    if private:
        yield f"not granted: the client's private tensors ({', '.join(_in_short(private))}), {_MADE_OF_THEM[fate]}"
    if by_batch:
        yield "not made use of: that BatchNorm takes the batch's statistics in training; the running ones are taken"


def _in_short(names: Sequence[str]) -> list[str]:
    """Names of tensors; of many only the parts of the model that they belong to."""
    if len(names) <= _NAMED:
        return list(names)
    return list(dict.fromkeys(f"{part}.*" if dot else part for part, dot, _ in (n.partition(".") for n in names)))


def _unrolled(
    experiment: Experiment, ticket: Ticket, attack: Attack, told: Mechanism | Automatic | None
) -> LocalSteps | None:
    """The local steps of a probe, if there are several and the attack searches through them all.

    Who is told what a method does to them knows them by that.
    """
    if ticket.steps == 1 or "steps" not in attack.models:
        return None
    if isinstance(told, MethodMechanism):
        return told.local_steps
    method, settings = parts.method(experiment)
    return method.local_steps(settings, experiment.lr, ticket.steps)


def _what_is_seen(ticket: Ticket) -> str:
    if ticket.point == EXAMPLE:
        return "the gradient of one example, read on the client during local training"
    what = f"{ticket.batch} example{'s' if ticket.batch > 1 else ''}"
    if ticket.steps == 1:
        return f"that the gradient is one local step on {what}"
    return f"that {ticket.steps} local steps on the same {what} were taken, and their learning rate"


def grant(
    job: Job,
    experiment: Experiment,
    attack: Attack,
    seen: Sequence[Observation],
    uploads: Sequence[Observation] = (),
) -> tuple[list[Observation], list[Knowledge]]:
    """The observations of a job on its device, and what is granted about each.

    Those who received the same tensors share a model.

    Args:
        job: names the observations, and holds labels and normalisation.
        experiment: the job's.
        attack: the job's.
        seen: the observations that could be read; ids of ``received`` tell who received the same.
        uploads: of those that the job grants, what could be read.
    """
    device, steps = torch.device(job.device), job.ticket.steps
    inputs = Inputs.of(job.shape, job.mean, job.std).to(device)
    labels = {exchange.slot: exchange.labels for exchange in job.exchanges}
    lr = experiment.lr if steps > 1 else None
    acted_on = 1.0 if lr is None else -lr * steps  # a defence acts on the change of the weights
    through = {
        defended: hiding(experiment, job.ticket, job.vantage, defended).through(acted_on) if job.adaptive else None
        for defended in {o.client in experiment.defended_partitions for o in seen}
    }
    of_all = {"public": _public(job, device), "start": _start(job, experiment, device)}
    uploaded = {upload.client: _moved(upload.sent, device) for upload in uploads}
    models: dict[tuple[int, bool], VictimModel] = {}
    observations, knowledge = [], []
    for o in seen:
        defended = o.client in experiment.defended_partitions
        told, like = through[defended], (id(o.received), defended if job.adaptive else False)
        local = _unrolled(experiment, job.ticket, attack, told)
        if like not in models:
            models[like] = _victim(job, experiment, o, inputs, told, local)
        model, given = models[like], labels[o.slot]
        there = {"vantage": Vantage(job.vantage), "sent": _moved(o.sent, device), "received": model.known}
        observations.append(Observation(**{**vars(o), **there}))
        known = None if given is None else torch.tensor(given, device=device)
        of = {"steps": steps, "weights": steps > 1, "lr": lr, "mechanism": told, "unrolled": local is not None}
        of |= {**of_all, "uploaded": uploaded.get(o.client)}
        knowledge.append(Knowledge(model, job.ticket.batch, known, **of))
    return observations, knowledge


def _public(job: Job, device: torch.device) -> Examples | None:
    if job.public is None:
        return None
    held = load_file(job.public[0])
    return Examples(raw(held["samples"]).to(device), held["labels"].to(device))


def _start(job: Job, experiment: Experiment, device: torch.device) -> Tensors | None:
    """The private tensors of every client before training: built as a client builds them, from the run's seed."""
    if not job.start:
        return None
    method, settings = parts.method(experiment)
    with initialising(experiment.seed, "model"):
        state = method.build_model(_builder(job)(experiment.net), settings).state_dict()
    return {name: value.to(device) for name, value in state.items() if not matches(name, method.downloads)}


def blank(job: Job, experiment: Experiment) -> nn.Module:
    """The method's model without any numbers in it; a job does not say which data it is for, but their shape."""
    method, settings = parts.method(experiment)
    with torch.device("meta"):
        return method.build_model(_builder(job)(experiment.net), settings)


def _victim(
    job: Job,
    experiment: Experiment,
    seen: Observation,
    inputs: Inputs,
    told: Mechanism | Automatic | None,
    local: LocalSteps | None,
) -> VictimModel:
    """Of one who received what an observation says, on the job's device."""
    received = _moved(seen.received, inputs.mean.device)
    build = _everything if job.ticket.rung != "target" else _what_the_method_shares
    model = build(job, experiment, seen, received, inputs)
    if isinstance(told, MethodMechanism) and isinstance(model, PlainVictim):
        return told.victim(model, received, local)
    return model if local is None else SteppedVictim(model, received, local)


def _everything(job: Job, experiment: Experiment, seen: Observation, received: Tensors, inputs: Inputs) -> VictimModel:
    net = ladder_net(seen.rung, experiment, _builder(job)).to(inputs.mean.device)
    return PlainVictim(net, received, ("*",), inputs)


def _what_the_method_shares(
    job: Job, experiment: Experiment, seen: Observation, received: Tensors, inputs: Inputs
) -> VictimModel:
    method, settings = parts.method(experiment)
    with initialising(experiment.seed, "attacker"):
        model = method.build_model(_builder(job)(experiment.net), settings).to(inputs.mean.device)
    if job.adaptive:  # a defence acts on the tensors that are sent, so they are the coordinates to search in
        return PlainVictim(model, received, method.descended(), inputs)
    return method.victim_model(model, received, inputs)


def _builder(job: Job) -> Callable[[str], nets.Net]:
    return lambda net: nets.build(net, job.shape, job.classes)


def _moved(tensors: Mapping[str, Any], device: torch.device) -> Tensors:
    return {name: value.to(device) for name, value in tensors.items()}
