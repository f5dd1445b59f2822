"""Grants of an attacker about a network that this project does not know: its names, modes and randomness."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import replace_all_batch_norm_modules_
from torch.nn.functional import cross_entropy

from flfw.audit.measures.public import PublicData
from flfw.data.feed import raw
from flfw.errors import InputError, require
from flfw.inversion.client_models.batch_statistics import normalise_by_instance
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors, draws_in_training, numel
from flfw.recorded_apps.description import Mode, TrainingDescription
from flfw.recording.observation import Examples, Knowledge, Observation
from flfw.rng import initialising

MOST_STEPS = 100
"""Largest number of local steps through which an attack searches, unless told otherwise."""

InputSpace = InputSpec | tuple[tuple[int, ...], Sequence[float], Sequence[float]]
"""The input space, or the shape of an input with the mean and the deviation of each channel or feature."""


def named(
    net: nn.Module, observation: Observation, training: TrainingDescription | None = None, batch: int = 1
) -> Observation:
    """Return an observation with its tensors under the network's own names and in its own types.

    Tensors with names of ``net.state_dict()`` keep these. Numbered tensors, as lists of arrays are on the wire, are
    taken as the whole ``state_dict`` in its order, or as the parameters alone where there are as many.

    Args:
        net: the network.
        observation: the observation.
        training: the description of the training. If it is given, tensors other than the weights of plain SGD become
            the mean gradient of the steps, as an attack takes them.
        batch: number of examples behind the observation.

    Raises:
        InputError: a tensor fits neither way; the message names the first.
    """
    full = replace(observation, sent=_named(net, observation.sent), received=_named(net, observation.received))
    return full if training is None or as_weights(training) else replace(full, sent=_gradient(full, training, batch))


def as_weights(training: TrainingDescription) -> bool:
    """Return whether an attack takes the sent weights as they are: nothing but steps of SGD is between."""
    return training.sends == "weights" and not (training.weight_decay or training.nesterov)


def _gradient(observation: Observation, training: TrainingDescription, batch: int) -> Tensors:
    """Compute the mean gradient of the steps; of a step that can be inverted, without its weight decay."""
    steps = len(training.batches(batch))
    lr = 1.0 if training.lr is None else training.lr
    changes = changed(observation, training)
    if training.sends == "gradient":
        return changes
    gradients = {name: -change / (lr * steps) for name, change in changes.items()}
    if needs_steps(training, batch):
        return gradients
    ahead = 1 + training.momentum if training.nesterov else 1.0
    return {
        name: gradient / ahead - training.weight_decay * observation.received.get(name, torch.zeros(()))
        for name, gradient in gradients.items()
    }


def changed(observation: Observation, training: TrainingDescription) -> Tensors:
    """Compute the sent change of the weights, or the sent gradient, from an observation with the network's names."""
    floating = {name: value for name, value in observation.sent.items() if value.is_floating_point()}
    if training.sends == "weights":
        both = [name for name in floating if name in observation.received]
        return {name: (floating[name].double() - observation.received[name].double()).float() for name in both}
    sign = -1.0 if training.sends == "negative delta" else 1.0
    return {name: sign * value for name, value in floating.items()}


def _named(net: nn.Module, tensors: Tensors) -> Tensors:
    state, kind = net.state_dict(), type(net).__name__
    _refuse_bytes(tensors, kind)
    if not set(tensors) <= set(state) and all(name.isdecimal() for name in tensors):
        values = [tensors[number] for number in sorted(tensors, key=int)]
        tensors = dict(zip(_names(net, [value.shape for value in values]), values, strict=True))
    for name in sorted(tensors.keys() - state.keys()):
        raise InputError(f"Expected tensors of {kind} ({', '.join(state)}), got {name}; build the clients' network.")
    in_order = {name: tensors[name] for name in state if name in tensors}  # files may have another order
    for name, value in in_order.items():
        if value.shape != state[name].shape:
            shapes = tuple(state[name].shape), tuple(value.shape)
            raise InputError(f"Expected {name} of {kind} in shape {shapes[0]}, got {shapes[1]}; build their network.")
    return {name: value.to(state[name].dtype) for name, value in in_order.items()}


def _names(net: nn.Module, shapes: Sequence[torch.Size]) -> Sequence[str]:
    """Return the names of numbered tensors: all, the parameters, the trained ones, or what is outside of BatchNorm."""
    state = net.state_dict()
    parameters = [name for name, _ in net.named_parameters()]
    if whole := next((names for names in ([*state], parameters) if len(names) == len(shapes)), None):
        return whole
    normed = {name for name, layer in net.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    trained = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    outside = [[name for name in names if name.rpartition(".")[0] not in normed] for names in ([*state], trained)]
    fitting = {tuple(names) for names in (trained, *outside) if [state[name].shape for name in names] == shapes}
    if len(fitting) != 1:
        expected = f"{len(state)} numbered tensors (all of {type(net).__name__}) or {len(parameters)} (its parameters)"
        way = f"fit {len(fitting) or 'no'} other parts of it; send ArrayRecord(net.state_dict()), which has names"
        raise InputError(f"Expected {expected}, got {len(shapes)}, which {way}.")
    return fitting.pop()


def _refuse_bytes(tensors: Tensors, kind: str) -> None:
    for name, value in tensors.items():
        if value.dtype == torch.uint8 and value.dim() == 1 and name.isdecimal():
            start = bytes(value[:4096].tolist())
            trees = any(word in start for word in (b"learner", b"gradient_booster", b"tree_info"))
            raise InputError(
                f"Expected tensors of {kind}, got {'a model of XGBoost' if trees else 'a file'} in {len(value)} bytes; "
                "only networks that are trained by gradients can be audited."
            )


def knowledge(
    net: nn.Module,
    observation: Observation,
    *,
    inputs: InputSpace,
    labels: Tensor | Sequence[int] | None,
    batch: int,
    steps: int = 1,
    lr: float | None = None,
    mode: Mode = "train",
    training: TrainingDescription | None = None,
    most_steps: int = MOST_STEPS,
    public: PublicData | None = None,
) -> Knowledge:
    """Return the knowledge of an attacker about an observation of any network that gives class scores.

    An attack takes the observation as `named` gives it. The attacker does not know tensors that the server did not
    send; its first guess of them is the network's present value. The network itself is copied.

    Args:
        net: gives class scores (B, classes), or one logit (B, 1) or (B,), for normalised inputs (B, ...).
        observation: the observation.
        inputs: the input space.
        labels: (batch,) the examples' classes; None: not granted.
        batch: number of examples behind the observation.
        steps: number of local steps behind the observation, all on the whole batch.
        lr: learning rate of these steps, taken as plain SGD; None: neither it nor the optimiser is granted.
        mode: ``train``: batch normalisation used the statistics of the batch; ``eval``: the received statistics.
        training: a full description, in place of ``steps``, ``lr`` and ``mode``; `named` takes it as well.
        most_steps: largest number of local steps through which an attack searches; with more, their mean gradient is
            attacked.
        public: public data, for attacks that use some; None: none are granted.

    Raises:
        InputError: the network does not fit the tensors or the inputs, or a number is out of its range.
    """
    space, description = input_space(inputs), described(training, steps, lr, mode)
    require(batch >= 1, "batch >= 1", batch=batch)
    net = with_scores(copy.deepcopy(net), space)
    count = classes(net, space)
    known = None if labels is None else torch.as_tensor(labels)
    if known is not None:
        require(bool((known == known.long()).all()), "whole numbers as labels", labels=known.tolist())
        known = known.long()
        require(known.shape == (batch,), f"{batch} labels, one for each example", labels=tuple(known.shape))
        require(bool(((known >= 0) & (known < count)).all()), f"0 <= labels < {count}", labels=known.tolist())
    model = victim(net, named(net, observation), space, description.mode)
    wanted = training is not None and training.known and needs_steps(training, batch)
    through = stepped(model, description, batch) if wanted and len(description.batches(batch)) <= most_steps else None
    result = granted(model, description, batch, known, description.mode == "train" and is_random(net, space), through)
    return result if public is None else with_public(result, public)


def with_public(knowledge: Knowledge, public: PublicData) -> Knowledge:
    """Return the knowledge with a copy of public data."""
    samples = raw(torch.tensor(public.samples)).float()
    held = Examples(samples, torch.tensor(public.labels, dtype=torch.int64))
    grant = f"{len(public.labels):,} public examples with their labels"
    return replace(knowledge, public=held, granted=(*knowledge.granted, grant))


def described(
    training: TrainingDescription | None, steps: int = 1, lr: float | None = None, mode: Mode = "train"
) -> TrainingDescription:
    """Return a description, or the one that the three short arguments give.

    Raises:
        InputError: both are given, or a number is out of its range.
    """
    if training is None:
        require(steps >= 1, "steps >= 1", steps=steps)
        return TrainingDescription(lr, epochs=steps, mode=mode)
    short = {"steps": steps, "lr": lr, "mode": mode}
    require((steps, lr, mode) == (1, None, "train"), "steps, lr and mode within training, or without it", **short)
    return training


def input_space(inputs: InputSpace) -> InputSpec:
    """Return the input space from either of its two forms."""
    return inputs if isinstance(inputs, InputSpec) else InputSpec.from_constants(*inputs)


def with_scores(net: nn.Module, inputs: InputSpec) -> nn.Module:
    """Let a network of one output, a logit, give the scores 0 and the logit, whose cross-entropy is its binary one.

    Raises:
        InputError: it does not take such inputs.
    """
    scores = _tried(net, inputs)
    if isinstance(scores, Tensor) and scores.numel() == 1:  # (1, 1), (1,), or () of squeeze()
        net.register_forward_hook(_two_scores)
    return net


def _two_scores(net: nn.Module, inputs: tuple[Tensor, ...], logit: Tensor) -> Tensor:
    return torch.stack((torch.zeros_like(logit.flatten()), logit.flatten()), 1)


def classes(net: nn.Module, inputs: InputSpec) -> int:
    """Return the number of classes of a network, by a trial.

    Raises:
        InputError: it does not take such inputs, or gives no class scores.
    """
    scores = _tried(net, inputs)
    fits = isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] > 1
    require(fits, "a network that gives scores (batch, classes), or one logit each", net=type(net).__name__)
    return scores.shape[1]


def _tried(net: nn.Module, inputs: InputSpec) -> Any:
    kind, tried = type(net).__name__, copy.deepcopy(net).eval()
    try:
        with torch.no_grad():
            return tried(inputs.normalise(torch.zeros(1, *inputs.shape)))
    except (RuntimeError, ValueError, TypeError) as error:
        message = (str(error).splitlines() or [""])[0]
        raise InputError(f"Expected a network for inputs of shape {inputs.shape}, got {kind}: {message}") from error


def is_random(net: nn.Module, inputs: InputSpec) -> bool:
    """Return whether a network in training draws random numbers, as dropout does, by a trial."""
    with initialising(0, "inputs of a network that may draw"):
        x = inputs.normalise(torch.rand(8, *inputs.shape))
    return draws_in_training(net, x)


def victim(net: nn.Module, observation: Observation, inputs: InputSpec, mode: str) -> PlainVictim:
    """Return the victim model behind an observation that has the network's own names.

    Raises:
        InputError: the observation has no parameter that the network trains.
    """
    model = copy.deepcopy(net)
    if mode == "train":
        replace_all_batch_norm_modules_(model)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    shared = tuple(name for name in trained if name in observation.sent and name in observation.received)
    require(bool(shared), f"an update of parameters that {type(net).__name__} trains", sent=list(observation.sent))
    # A counter reveals nothing, and cannot be searched for.
    counters = {name: value for name, value in model.state_dict().items() if not value.is_floating_point()}
    described = PlainVictim(model, {**counters, **observation.received}, shared, inputs)
    if mode == "train":
        normalise_by_instance(described)
    return described


def granted(
    model: PlainVictim,
    training: TrainingDescription,
    count: int,
    labels: Tensor | None,
    random: bool,
    through: SteppedVictim | None = None,
    why: str = "",
) -> Knowledge:
    """Return the knowledge with its sentences.

    Args:
        model: the victim of one step.
        training: the description of the training.
        count: number of examples behind the update.
        labels: the granted labels.
        random: whether training draws random numbers within the network.
        through: the victim of all steps, if the attack searches through them.
        why: why it does not, if it could.
    """
    steps = len(training.batches(count))
    sentences = [
        f"the network's code ({type(model.model).__name__})",
        f"the tensors that the server sent in the round ({numel(model.known):,} numbers)",
        *training.sentences(count),
        "the true labels" if labels is not None else "not granted: the labels",
        "the inputs' range and normalisation",
    ]
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.model.modules()):
        used = "the batch's own statistics" if training.mode == "train" else "the statistics that the server sent"
        sentences.append(f"that batch normalisation used {used}")
    if random:
        sentences.append("not granted: the network's random draws in training, such as dropout; they are left out")
    if model.unknown:
        sentences.append(
            f"not granted: what the server did not send ({', '.join(model.unknown)}), searched for as well"
        )
    if through is None and needs_steps(training, count):
        mean = "how the weights moved between the steps; their mean gradient is attacked"
        unused = mean if steps > 1 else "the optimiser and the loss; the change is attacked as a gradient"
        sentences.append(f"not made use of: {unused}{f' ({why})' if why else ''}")
    return Knowledge(
        through or model,
        count,
        labels,
        steps=steps,
        weights=as_weights(training),
        lr=training.lr,
        granted=tuple(sentences),
        unrolled=through is not None,
    )


def needs_steps(training: TrainingDescription, count: int) -> bool:
    """Return whether the gradient of one step does not explain the update."""
    several_steps = len(training.batches(count)) > 1
    return several_steps or not training.is_linear or training.loss is not cross_entropy


def stepped(model: PlainVictim, training: TrainingDescription, count: int) -> SteppedVictim:
    """Return the victim through whose steps an attack searches."""
    received = {name: model.known[name] for name in model.shared}
    trained = tuple(name for name, parameter in model.model.named_parameters() if parameter.requires_grad)
    return SteppedVictim(model, received, replace(training.local(count), moves=trained), not as_weights(training))
