"""Grants of an attacker as the objects that it computes with, built from a job alone."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file
from torch import nn

from flfw.adversary.attack import Attack, Upload
from flfw.adversary.sums import Protocol, isolated, others_mean, pooled
from flfw.audit.adaptation import protection_of
from flfw.audit.controls import undefended
from flfw.audit.jobs import AttackJob, ProbeSet
from flfw.audit.probe import control_net
from flfw.data.feed import raw
from flfw.files.tensor_names import matches
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.batch_statistics import normalise_by_batch, normalise_by_instance
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.operator import DataOperator, MethodOperator, Operator
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.nets.inputs import InputSpec
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import Tensors
from flfw.nets.training.devices import device_of
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction, Vantage
from flfw.recording.reader import Recordings
from flfw.rng import initialising, numpy_generator
from flfw.task.client_plan import ClientPlan

Order: TypeAlias = tuple[tuple[int, ...], ...]
"""Places of each local step's examples."""


def hidden(plan: ClientPlan) -> tuple[str, ...]:
    """Return the names of the tensors that clients keep private."""
    return tuple(name for name in plan.model.state_dict() if not matches(name, plan.sharing.downloads))


MOST_STEPPED = 512
"""Largest number of examples in all local steps of an upload, through which a search can go in bearable time."""
MOST_SEARCHED = 512
"""Largest number of examples that are searched for at once."""


def unrolled(
    plan: ClientPlan,
    probe_set: ProbeSet,
    attack: Attack,
    operator: Operator | DifferentiableDefence | None,
    order: Order | None = None,
) -> LocalSteps | None:
    """Return the local steps of a target, if there are several and the attack searches through them all.

    An attacker who knows the method's operator takes the steps from it.

    Args:
        plan: of the run's clients.
        probe_set: the target.
        attack: the attack.
        operator: the known mechanism, if any.
        order: of an upload, the places of each step's examples.
    """
    steps = probe_set.steps if order is None else len(order)
    if (probe_set.source == "probe" and steps == 1) or "steps" not in attack.models or probe_set.pooled:
        return None  # each client of a sum took steps of its own
    if isinstance(operator, MethodOperator):
        return operator.local_steps if order is None else None
    local = plan.method.local_steps(plan.settings, plan.local.lr, steps)
    if local is None or order is None:
        return local
    bearable = all(order) and sum(map(len, order)) <= MOST_STEPPED
    return replace(local, order=order) if bearable else None


def observed(
    job: AttackJob, recordings: Recordings, seed: int, malicious: ModelModification | None = None
) -> list[Observation | None]:
    """Return the attacker's observation of each exchange: a client's message, or the mean that a sum of several gives.

    Args:
        job: the job.
        recordings: its recordings.
        seed: of the run, from which the rounding by secure aggregation is drawn.
        malicious: change of the network by a malicious server.

    Raises:
        InputError: the clients of a sum received different weights, and its server isolates none of them.
    """
    if not job.probe_set.group:
        return recordings.observations([exchange.id for exchange in job.exchanges])
    client, weights = job.probe_set.isolated, job.probe_set.steps > 1
    result: list[Observation | None] = []
    for exchange in job.exchanges:
        both = recordings.observations([*exchange.summed, *exchange.colluders])
        members = [observation for observation in both if observation is not None]
        drawn = protocol(seed, job.probe_set.round, exchange.slot)
        if len(members) < len(both):
            result.append(None)
        elif exchange.colluders:
            others, known = members[: len(exchange.summed)], members[len(exchange.summed) :]
            result.append(others_mean(others, known, weights, job.run_config["lr"]))
        elif malicious is not None and client is not None:
            result.append(isolated(members, client, malicious.alone([*members[0].sent]), weights, drawn))
        else:
            result.append(pooled(members, weights, drawn))
    return result


def protocol(seed: int, server_round: int, slot: int) -> Protocol:
    """Return the secure aggregation of one sum, with a rounding of its own."""
    return Protocol(int(numpy_generator(seed, "secure aggregation", server_round, slot).integers(2**32)))


def grant(
    job: AttackJob,
    plan: ClientPlan,
    adaptation: str,
    attack: Attack,
    seen: Sequence[Observation],
    uploads: Sequence[Observation] = (),
    earlier: Sequence[Observation] = (),
) -> tuple[list[Observation], list[Knowledge]]:
    """Return the observations of a job on its device, and the knowledge granted about each.

    Observations with the same received tensors share a model.

    Args:
        job: the job; it holds labels and normalisation.
        plan: of the run's clients, with the job's input space.
        adaptation: what an attacker may adapt with.
        attack: the job's attack.
        seen: the readable observations; equal ids of ``received`` mean the same tensors.
        uploads: the readable ones of the granted uploads.
        earlier: the readable ones of the granted answers after earlier rounds, in the order of the rounds.
    """
    before: dict[int, list[tuple[Observation, Knowledge]]] = defaultdict(list)
    if earlier:
        for answer in zip(*grant(job, plan, adaptation, attack, earlier), strict=True):
            before[answer[0].slot].append(answer)
    device = device_of(job.device == "cuda")
    inputs = InputSpec.from_constants(job.shape, job.mean, job.std).to(device)
    exchanges = {exchange.slot: exchange for exchange in job.exchanges}
    common = {"public": granted_public(job, device), "start": _start(job, plan, device)}
    uploaded = {upload.client: on_device(upload.sent, device) for upload in uploads}
    models: dict[
        tuple[int, bool, bool, Order | None], tuple[VictimModel, Operator | DifferentiableDefence | None, bool]
    ] = {}
    observations, knowledge = [], []
    for o in seen:
        requested = exchanges[o.slot]
        steps = job.probe_set.steps if requested.order is None else len(requested.order)
        lr = plan.local.lr if steps > 1 or requested.order else None
        uses_it = o.client in plan.defences.partitions
        defended = job.adaptive and uses_it
        like = id(o.received), defended, uses_it, requested.order
        if like not in models:
            acted_on = 1.0 if lr is None else -lr * steps  # a defence acts on the change of the weights
            protection = protection_of(plan, adaptation, job.probe_set, job.vantage, uses_it)
            operator = protection.through(acted_on) if job.adaptive else None
            local = unrolled(plan, job.probe_set, attack, operator, requested.order)
            as_built = plan if uses_it else undefended(plan)
            by_batch = "batch_statistics" in attack.models and not job.probe_set.pooled
            models[like] = _victim(job, as_built, o, inputs, operator, local, by_batch), operator, local is not None
        model, operator, steps_known = models[like]
        there = {"vantage": Vantage(job.vantage), "sent": on_device(o.sent, device), "received": model.known}
        observations.append(Observation(**{**vars(o), **there}))
        known = None if requested.labels is None else torch.tensor(requested.labels, device=device)
        details = {"steps": steps, "weights": lr is not None, "lr": lr, "operator": operator, "unrolled": steps_known}
        details |= {**common, "uploaded": uploaded.get(o.client), "earlier": tuple(before[o.slot])}
        knowledge.append(Knowledge(model, requested.examples or job.probe_set.batch, known, **details))
    return observations, knowledge


def granted_uploads(job: AttackJob, plan: ClientPlan, observations: Sequence[Observation]) -> list[Upload]:
    """Return the readable uploads of a job on its device, with the knowledge granted about each.

    Args:
        job: the job; it holds the normalisation and the clients' numbers of examples.
        plan: of the run's clients, with the job's input space.
        observations: the uploads; equal ids of ``received`` mean the same tensors.
    """
    device, numbers = device_of(job.device == "cuda"), dict(job.examples)
    inputs, public = InputSpec.from_constants(job.shape, job.mean, job.std).to(device), granted_public(job, device)
    models, granted = dict[int, VictimModel](), []
    for upload in observations:
        if (like := id(upload.received)) not in models:
            models[like] = _what_the_method_shares(job, plan, upload, on_device(upload.received, device), inputs)
            normalise_by_instance(models[like])
        moved = replace(upload, sent=on_device(upload.sent, device))
        granted.append(Upload(moved, models[like], _training(plan, numbers.get(upload.client, 0)), public))
    return granted


def _training(plan: ClientPlan, examples: int) -> LocalSteps | None:
    """Return a client's local training in a round, if its number of examples is known."""
    steps = plan.local.local_epochs * -(-examples // plan.local.batch_size)
    return plan.method.local_steps(plan.settings, plan.local.lr, steps) if examples else None


def restored(result: Reconstruction, knowledge: Knowledge) -> Reconstruction:
    """Return an attack's result after the known change of the data was undone; a failed search stays as it is."""
    operator, samples = knowledge.operator, result.samples
    if not isinstance(operator, DataOperator) or not bool(samples.isfinite().all()):
        return result
    public = None if knowledge.public is None else knowledge.public.samples
    undone = operator.restored(samples, public).clamp(*knowledge.box)
    unguided = result.unguided
    if unguided is not None:  # what the attack gives without the message is undone as well, or is right as it is
        unguided = torch.cat([unguided, operator.restored(unguided, public).clamp(*knowledge.box)])
    return replace(result, samples=undone, searched=samples, unguided=unguided)


def granted_public(job: AttackJob, device: torch.device) -> Examples | None:
    """Return the public data of a job on a device; None: it grants none."""
    if job.public is None:
        return None
    tensors = load_file(job.public[0])
    return Examples(raw(tensors["samples"]).to(device), tensors["labels"].to(device))


def _start(job: AttackJob, plan: ClientPlan, device: torch.device) -> Tensors | None:
    """Return every client's private tensors before training, built from the run's seed as a client builds them."""
    if not job.start:
        return None
    with initialising(plan.seed, "model"):
        model = plan.build_model()
    downloads = plan.method.shared(model, plan.settings).downloads
    return {name: value.to(device) for name, value in model.state_dict().items() if not matches(name, downloads)}


def _victim(
    job: AttackJob,
    plan: ClientPlan,
    observation: Observation,
    inputs: InputSpec,
    operator: Operator | DifferentiableDefence | None,
    local: LocalSteps | None,
    by_batch: bool,
) -> VictimModel:
    """Return the victim model of an observation's client, on the job's device."""
    received = on_device(observation.received, inputs.mean.device)
    build = _everything if job.probe_set.fresh else _what_the_method_shares
    model = build(job, plan, observation, received, inputs)
    if job.probe_set.isolated is not None:  # of the other tensors the sum is no single client's
        model.shared = tuple(name for name in model.shared if name in observation.sent)
    normalise_by_instance(model)
    if by_batch:
        normalise_by_batch(model)
    if isinstance(operator, Operator) and isinstance(model, PlainVictim):
        return operator.victim(model, received, local)
    return model if local is None else SteppedVictim(model, received, local)


def _everything(
    job: AttackJob, plan: ClientPlan, observation: Observation, received: Tensors, inputs: InputSpec
) -> VictimModel:
    net = control_net(observation.control, plan.task.network, plan.seed, *plan.task.input_space).to(inputs.mean.device)
    return PlainVictim(net, received, ("*",), inputs)


def _what_the_method_shares(
    job: AttackJob, plan: ClientPlan, observation: Observation, received: Tensors, inputs: InputSpec
) -> VictimModel:
    if not job.adaptive:
        return received_victim(plan, received, inputs)
    model = _attackers_model(plan, inputs)  # a defence acts on the sent tensors: the search is in their coordinates
    return PlainVictim(model, received, plan.method.descended(model, plan.settings), inputs)


def received_victim(plan: ClientPlan, received: Tensors, inputs: InputSpec) -> VictimModel:
    """Return the model behind what a client received, on the device of the inputs; what it did not stays unknown."""
    return plan.method.victim_model(_attackers_model(plan, inputs), received, inputs, plan.settings)


def _attackers_model(plan: ClientPlan, inputs: InputSpec) -> nn.Module:
    with initialising(plan.seed, "attacker"):
        return plan.build_model().to(inputs.mean.device)


def on_device(tensors: Mapping[str, Any], device: torch.device) -> Tensors:
    """Return tensors on a device, by name."""
    return {name: value.to(device) for name, value in tensors.items()}
