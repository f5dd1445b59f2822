"""What an attacker is granted: in words, for the report, and as what it computes with, from a job alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from flfw import nets
from flfw import resolve as parts
from flfw.adversary.attack import Attack
from flfw.adversary.observation import Examples, Knowledge, Observation, Vantage
from flfw.audit.adaptation import hiding
from flfw.audit.jobs import Job, Ticket
from flfw.audit.probe import ladder_net
from flfw.data.feed import raw
from flfw.experiment import Experiment
from flfw.inversion.automatic import Automatic
from flfw.messages.sharing import matches
from flfw.nets.inputs import Inputs
from flfw.nets.net import Tensors
from flfw.rng import initialising
from flfw.victims.local_steps import LocalSteps, SteppedVictim
from flfw.victims.operator import MethodOperator, Operator
from flfw.victims.victim import PlainVictim, VictimModel


def hidden(experiment: Experiment) -> tuple[str, ...]:
    """The tensors that clients keep to themselves."""
    (method, settings), model = parts.method(experiment), parts.blank_model(experiment)
    downloads = method.shared(model, settings).downloads
    return tuple(name for name in model.state_dict() if not matches(name, downloads))


def _unrolled(
    experiment: Experiment, ticket: Ticket, attack: Attack, told: Operator | Automatic | None
) -> LocalSteps | None:
    """The local steps of a probe, if there are several and the attack searches through them all.

    Who is told what a method does to them knows them by that.
    """
    if ticket.steps == 1 or "steps" not in attack.models:
        return None
    if isinstance(told, MethodOperator):
        return told.local_steps
    method, settings = parts.method(experiment)
    return method.local_steps(settings, experiment.lr, ticket.steps)


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
        model = method.build_model(_builder(job)(experiment.net), settings)
    downloads = method.shared(model, settings).downloads
    return {name: value.to(device) for name, value in model.state_dict().items() if not matches(name, downloads)}


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
    told: Operator | Automatic | None,
    local: LocalSteps | None,
) -> VictimModel:
    """Of one who received what an observation says, on the job's device."""
    received = _moved(seen.received, inputs.mean.device)
    build = _everything if job.ticket.rung != "target" else _what_the_method_shares
    model = build(job, experiment, seen, received, inputs)
    if isinstance(told, MethodOperator) and isinstance(model, PlainVictim):
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
        return PlainVictim(model, received, method.descended(model, settings), inputs)
    return method.victim_model(model, received, inputs, settings)


def _builder(job: Job) -> Callable[[str], nets.Net]:
    return lambda net: nets.build(net, job.shape, job.classes)


def _moved(tensors: Mapping[str, Any], device: torch.device) -> Tensors:
    return {name: value.to(device) for name, value in tensors.items()}
