"""Grants of an attacker about a network that this project does not know: its names, modes and randomness."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import final

import torch
from torch import Tensor, nn
from torch.func import replace_all_batch_norm_modules_

from flfw.adversary.observation import Knowledge, Observation
from flfw.errors import BadInput, require
from flfw.nets.inputs import Inputs
from flfw.nets.net import Tensors, numel
from flfw.rng import initialising
from flfw.victims.victim import PlainVictim

MODES = ("train", "eval")

InputSpace = Inputs | tuple[tuple[int, ...], Sequence[float], Sequence[float]]
"""The input space, or the shape of an input with the mean and the deviation of each channel or feature."""


def named(net: nn.Module, seen: Observation) -> Observation:
    """Return an observation with its tensors under the network's own names and in its own types.

    Tensors with names of ``net.state_dict()`` keep these. Numbered tensors, as lists of arrays are on the wire, are
    taken as the whole ``state_dict`` in its order, or as the parameters alone where there are as many.

    Raises:
        BadInput: a tensor fits neither way; the message names the first.
    """
    return replace(seen, sent=_named(net, seen.sent), received=_named(net, seen.received))


def _named(net: nn.Module, tensors: Tensors) -> Tensors:
    state, kind = net.state_dict(), type(net).__name__
    if not set(tensors) <= set(state) and all(name.isdecimal() for name in tensors):
        parameters = [name for name, _ in net.named_parameters()]
        names = next((names for names in ([*state], parameters) if len(names) == len(tensors)), None)
        if names is None:
            raise BadInput(
                f"Expected {len(state)} numbered tensors (all of {kind}) or {len(parameters)} (its parameters), "
                f"got {len(tensors)}; build the network that the clients trained."
            )
        tensors = dict(zip(names, (tensors[number] for number in sorted(tensors, key=int)), strict=True))
    for name in sorted(tensors.keys() - state.keys()):
        raise BadInput(f"Expected tensors of {kind} ({', '.join(state)}), got {name}; build the clients' network.")
    in_order = {name: tensors[name] for name in state if name in tensors}  # files may have another order
    for name, value in in_order.items():
        if value.shape != state[name].shape:
            shapes = tuple(state[name].shape), tuple(value.shape)
            raise BadInput(f"Expected {name} of {kind} in shape {shapes[0]}, got {shapes[1]}; build their network.")
    return {name: value.to(state[name].dtype) for name, value in in_order.items()}


def knowledge(
    net: nn.Module,
    seen: Observation,
    *,
    inputs: InputSpace,
    labels: Tensor | Sequence[int] | None,
    batch: int,
    steps: int = 1,
    lr: float | None = None,
    mode: str = "train",
) -> Knowledge:
    """Return the knowledge of an attacker about an observation of any network that is trained by cross entropy.

    An attack takes the observation as `named` gives it. The attacker does not know tensors that the server did not
    send; its first guess of them is the network's present value. The network itself is copied.

    Args:
        net: gives class scores (B, classes) for normalised inputs (B, ...).
        seen: the observation.
        inputs: the input space.
        labels: (batch,) the examples' classes; None: not granted.
        batch: number of examples behind the observation.
        steps: number of local steps behind the observation.
        lr: learning rate of these steps, taken as plain SGD; None: neither it nor the optimiser is granted.
        mode: ``train``: batch normalisation used the statistics of the batch; ``eval``: the received statistics.

    Raises:
        BadInput: the network does not fit the tensors or the inputs, or a number is out of its range.
    """
    space, description = input_space(inputs), UpdateDescription(batch, steps, lr, mode)
    count = classes(net, space)
    known = None if labels is None else torch.as_tensor(labels, dtype=torch.int64)
    if known is not None:
        require(known.shape == (batch,), f"{batch} labels, one for each example", labels=tuple(known.shape))
        require(bool(((known >= 0) & (known < count)).all()), f"0 <= labels < {count}", labels=known.tolist())
    model = victim(net, named(net, seen), space, mode)
    return granted(model, description, known, is_random(net, space, mode))


@final
@dataclass(frozen=True)
class UpdateDescription:
    """Description of an update: the arguments of `knowledge` of the same names, checked.

    Attributes:
        weights: whether tensors after training were sent; otherwise it was the gradient.
    """

    batch: int
    steps: int
    lr: float | None
    mode: str
    weights: bool = True

    def __post_init__(self) -> None:
        require(self.batch >= 1, "batch >= 1", batch=self.batch)
        require(self.steps >= 1, "steps >= 1", steps=self.steps)
        require(self.lr is None or 0 < self.lr < inf, "0 < lr < inf or None", lr=self.lr)
        require(self.mode in MODES, "mode train or eval", mode=self.mode)


def input_space(inputs: InputSpace) -> Inputs:
    """Return the input space from either of its two forms."""
    return inputs if isinstance(inputs, Inputs) else Inputs.of(*inputs)


def classes(net: nn.Module, inputs: Inputs) -> int:
    """Return the number of classes of a network, by a trial.

    Raises:
        BadInput: it does not take such inputs, or gives no class scores.
    """
    kind, tried = type(net).__name__, copy.deepcopy(net).eval()
    try:
        with torch.no_grad():
            scores = tried(inputs.normalise(torch.zeros(1, *inputs.shape)))
    except (RuntimeError, ValueError, TypeError) as error:
        message = (str(error).splitlines() or [""])[0]
        raise BadInput(f"Expected a network for inputs of shape {inputs.shape}, got {kind}: {message}") from error
    fits = isinstance(scores, Tensor) and scores.dim() == 2
    require(fits, "a network that gives scores (batch, classes)", net=kind)
    return scores.shape[1]


def is_random(net: nn.Module, inputs: Inputs, mode: str) -> bool:
    """Return whether a network in training draws random numbers, as dropout does, by a trial."""
    if mode == "eval":
        return False
    tried = copy.deepcopy(net).train()
    with torch.no_grad(), initialising(0, "dropout"):
        x = inputs.normalise(torch.rand(8, *inputs.shape))
        return not torch.equal(tried(x), tried(x))


def victim(net: nn.Module, seen: Observation, inputs: Inputs, mode: str) -> PlainVictim:
    """Return the victim model behind an observation that has the network's own names.

    Raises:
        BadInput: the observation has no parameter that the network trains.
    """
    model = copy.deepcopy(net)
    if mode == "train":
        replace_all_batch_norm_modules_(model)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    shared = tuple(name for name in trained if name in seen.sent and name in seen.received)
    require(bool(shared), f"an update of parameters that {type(net).__name__} trains", sent=list(seen.sent))
    # A counter reveals nothing, and cannot be searched for.
    counters = {name: value for name, value in model.state_dict().items() if not value.is_floating_point()}
    return PlainVictim(model, {**counters, **seen.received}, shared, inputs)


def granted(model: PlainVictim, update: UpdateDescription, labels: Tensor | None, random: bool) -> Knowledge:
    """Return the knowledge with its sentences."""
    what = f"{update.batch} example{'s' if update.batch > 1 else ''}"
    steps = "one local step" if update.steps == 1 else f"{update.steps} local steps"
    sentences = [
        f"the network's code ({type(model.model).__name__})",
        f"the tensors that the server sent in the round ({numel(model.known):,} numbers)",
        f"that {steps} on {'' if update.steps == 1 else 'the same '}{what} stand{'s' * (update.steps == 1)} behind it",
        "not granted: the optimiser and its learning rate; the change of the weights is attacked in their place"
        if update.lr is None
        else f"that the steps are plain SGD with learning rate {update.lr:g}",
        "the true labels" if labels is not None else "not granted: the labels",
        "the inputs' range and normalisation",
    ]
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.model.modules()):
        used = "the batch's own statistics" if update.mode == "train" else "the statistics that the server sent"
        sentences.append(f"that batch normalisation used {used}")
    if random:
        sentences.append("not granted: the network's random draws in training, such as dropout; they are left out")
    if model.unknown:
        sentences.append(
            f"not granted: what the server did not send ({', '.join(model.unknown)}), searched for as well"
        )
    if update.steps > 1:
        sentences.append("not made use of: how the weights moved between the steps; their mean gradient is attacked")
    return Knowledge(
        model,
        update.batch,
        labels,
        steps=update.steps,
        weights=update.weights,
        lr=update.lr,
        granted=tuple(sentences),
    )
