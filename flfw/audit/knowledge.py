"""What an attacker is granted about a job's observations: built from the job alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flfw import nets, parts
from flfw.audit.jobs import Job
from flfw.audit.observation import Knowledge, Observation
from flfw.audit.probe import ladder_net
from flfw.experiment import Experiment
from flfw.inversion.victim import Inputs, PlainVictim, VictimModel
from flfw.nets.net import Tensors
from flfw.rng import initialising


@dataclass(frozen=True)
class Granted:
    """What the attacker of a job holds.

    Attributes:
        observations: of the job, on its device.
        knowledge: about each of them; those who received the same tensors share a model.
        sentences: the same in words.
        adaptive: whether the attacker knows all that stands between the data and what was sent.
    """

    observations: list[Observation]
    knowledge: list[Knowledge]
    sentences: tuple[str, ...]
    adaptive: bool


def grant(job: Job, experiment: Experiment, seen: Sequence[Observation]) -> Granted:
    """The observations of a job with what is granted about them.

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
        knowledge.append(_knowledge(job, experiment, o, model, known))
    hidden = any(k.model.unknown for k in knowledge)
    defended = job.ticket.rung == "target" and bool(experiment.defended_partitions)
    sentences = knowledge[0].granted if knowledge else ()
    return Granted(observations, knowledge, sentences, not (hidden or defended or job.ticket.steps > 1))


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


def _knowledge(
    job: Job, experiment: Experiment, seen: Observation, model: VictimModel, labels: Tensor | None
) -> Knowledge:
    batch, steps = job.ticket.batch, job.ticket.steps
    what = f"{batch} example{'s' if batch > 1 else ''}"
    granted = [
        f"the method's code and the network ({experiment.net})",
        f"the tensors broadcast in the round ({nets.numel(model.known):,} numbers)",
        f"that the gradient is one local step on {what}"
        if steps == 1
        else f"that {steps} local steps on the same {what} were taken, and their learning rate",
        "the true labels" if labels is not None else "not granted: the labels",
        "the inputs' range and normalisation",
    ]
    if model.unknown:
        hidden = ", ".join(model.unknown)
        granted.append(f"not granted: the client's private tensors ({hidden}), which are searched for as well")
    if steps > 1:
        granted.append("not made use of: how the weights moved between the steps; their mean gradient is attacked")
    if job.ticket.rung == "target" and seen.client in experiment.defended_partitions:
        granted.append(f"not granted: that the client uses {experiment.defence}")
    lr = experiment.lr if steps > 1 else None
    return Knowledge(model, batch, labels, steps=steps, weights=steps > 1, lr=lr, granted=tuple(granted))


def _moved(tensors: Mapping[str, Any], device: torch.device) -> Tensors:
    return {name: value.to(device) for name, value in tensors.items()}
