"""What an attacker is granted: in words, for the report, and as what it computes with, from a job alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flfw import nets, parts
from flfw.audit.jobs import Job, Ticket
from flfw.audit.observation import Knowledge, Observation
from flfw.audit.probe import ladder_net
from flfw.experiment import Experiment
from flfw.inversion.victim import Inputs, PlainVictim, VictimModel
from flfw.nets.net import Tensors
from flfw.rng import initialising
from flfw.task import input_space
from flfw.wire import matches


@dataclass(frozen=True)
class Standing:
    """Where an attacker stands towards some of the clients.

    Attributes:
        granted: in words, what it is given and what it is not.
        adaptive: whether it knows all that stands between the data and what was sent.
    """

    granted: tuple[str, ...]
    adaptive: bool


def standing(experiment: Experiment, ticket: Ticket, defended: bool) -> Standing:
    """What the attackers of a ticket's probes are granted, as `grant` does it.

    Args:
        experiment: what was run.
        ticket: what was probed.
        defended: whether the clients in question use the experiment's defence.
    """
    model, shared = parts.blank_model(experiment), parts.method(experiment)[0].downloads
    if ticket.rung != "target":
        with torch.device("meta"):
            model, shared = nets.build(experiment.net, *input_space(experiment)), ("*",)
    sizes = {name: value.numel() for name, value in model.state_dict().items()}
    hidden = [name for name in sizes if not matches(name, shared)]
    known = sum(size for name, size in sizes.items() if name not in hidden)
    what = f"{ticket.batch} example{'s' if ticket.batch > 1 else ''}"
    granted = [
        f"the method's code and the network ({experiment.net})",
        f"the tensors broadcast in the round ({known:,} numbers)",
        f"that the gradient is one local step on {what}"
        if ticket.steps == 1
        else f"that {ticket.steps} local steps on the same {what} were taken, and their learning rate",
        "the true labels",
        "the inputs' range and normalisation",
    ]
    if hidden:
        names = ", ".join(hidden)
        granted.append(f"not granted: the client's private tensors ({names}), which are searched for as well")
    if ticket.steps > 1:
        granted.append("not made use of: how the weights moved between the steps; their mean gradient is attacked")
    if defended:
        granted.append(f"not granted: that the client uses {experiment.defence}")
    return Standing(tuple(granted), not (hidden or defended or ticket.steps > 1))


def grant(job: Job, experiment: Experiment, seen: Sequence[Observation]) -> tuple[list[Observation], list[Knowledge]]:
    """The observations of a job on its device, and what is granted about each.

    Those who received the same tensors share a model.

    Args:
        job: names the observations, and holds labels and normalisation.
        experiment: the job's.
        seen: the observations that could be read; ids of ``received`` tell who received the same.
    """
    device = torch.device(job.device)
    inputs = Inputs.of(job.shape, job.mean, job.std).to(device)
    build = _everything if job.ticket.rung != "target" else _what_the_method_shares
    labels = {exchange.slot: exchange.labels for exchange in job.exchanges}
    models: dict[int, VictimModel] = {}
    observations, knowledge = [], []
    for o in seen:
        if id(o.received) not in models:
            models[id(o.received)] = build(job, experiment, o, _moved(o.received, device), inputs)
        model, given = models[id(o.received)], labels[o.slot]
        moved = Observation(**{**vars(o), "sent": _moved(o.sent, device), "received": model.known})
        observations.append(moved)
        known = None if given is None else torch.tensor(given, device=device)
        steps = job.ticket.steps
        lr = experiment.lr if steps > 1 else None
        knowledge.append(Knowledge(model, job.ticket.batch, known, steps=steps, weights=steps > 1, lr=lr))
    return observations, knowledge


def _everything(job: Job, experiment: Experiment, seen: Observation, received: Tensors, inputs: Inputs) -> VictimModel:
    net = ladder_net(seen.rung, experiment, _builder(job)).to(inputs.mean.device)
    return PlainVictim(net, received, ("*",), inputs)


def _what_the_method_shares(
    job: Job, experiment: Experiment, seen: Observation, received: Tensors, inputs: Inputs
) -> VictimModel:
    method, settings = parts.method(experiment)
    with initialising(experiment.seed, "attacker"):
        model = method.build_model(_builder(job)(experiment.net), settings)
    return method.victim_model(model.to(inputs.mean.device), received, inputs)


def _builder(job: Job) -> Callable[[str], nets.Net]:
    return lambda net: nets.build(net, job.shape, job.classes)


def _moved(tensors: Mapping[str, Any], device: torch.device) -> Tensors:
    return {name: value.to(device) for name, value in tensors.items()}
