"""What an attacker is granted about a network that this project has never seen: its names, modes and randomness."""

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
    """An observation with its tensors under the network's own names and in its own types.

    Tensors that bear names of ``net.state_dict()`` keep them. Those that are numbered, as lists of arrays are on the
    wire, are taken for the whole ``state_dict`` in its order, or for the parameters alone where there are as many.

    Raises:
        BadInput: a tensor fits neither way; the message names the first.
    """
    return replace(seen, sent=_named(net, seen.sent), received=_named(net, seen.received))


def _named(net: nn.Module, tensors: Tensors) -> Tensors:
    own, kind = net.state_dict(), type(net).__name__
    if not set(tensors) <= set(own) and all(name.isdecimal() for name in tensors):
        parameters = [name for name, _ in net.named_parameters()]
        names = next((names for names in ([*own], parameters) if len(names) == len(tensors)), None)
        if names is None:
            raise BadInput(
                f"Expected {len(own)} numbered tensors (all of {kind}) or {len(parameters)} (its parameters), "
                f"got {len(tensors)}; build the network that the clients trained."
            )
        tensors = dict(zip(names, (tensors[number] for number in sorted(tensors, key=int)), strict=True))
    for name in sorted(tensors.keys() - own.keys()):
        raise BadInput(f"Expected tensors of {kind} ({', '.join(own)}), got {name}; build the clients' network.")
    in_order = {name: tensors[name] for name in own if name in tensors}  # files have an order of their own
    for name, value in in_order.items():
        if value.shape != own[name].shape:
            shapes = tuple(own[name].shape), tuple(value.shape)
            raise BadInput(f"Expected {name} of {kind} in shape {shapes[0]}, got {shapes[1]}; build their network.")
    return {name: value.to(own[name].dtype) for name, value in in_order.items()}


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
    """What an attacker knows of an observation of any network that is trained by cross entropy.

    An attack takes the observation as `named` gives it. What the server did not send is unknown to the attacker, whose
    first guess is the network's present value. The network itself is copied.

    Args:
        net: gives class scores (B, classes) for normalised inputs (B, ...).
        seen: the observation.
        inputs: the input space.
        labels: (batch,) the examples' classes; None: not granted.
        batch: how many examples stand behind the observation.
        steps: how many local steps do.
        lr: of those steps, taken for plain SGD; None: neither it nor the optimiser is granted.
        mode: ``train``: batch normalisation used the statistics of the batch; ``eval``: those that it was sent.

    Raises:
        BadInput: the network does not fit the tensors or the inputs, or a number is out of its range.
    """
    space, about = input_space(inputs), UpdateDescription(batch, steps, lr, mode)
    count = classes(net, space)
    known = None if labels is None else torch.as_tensor(labels, dtype=torch.int64)
    if known is not None:
        require(known.shape == (batch,), f"{batch} labels, one for each example", labels=tuple(known.shape))
        require(bool(((known >= 0) & (known < count)).all()), f"0 <= labels < {count}", labels=known.tolist())
    model = victim(net, named(net, seen), space, mode)
    return granted(model, about, known, is_random(net, space, mode))


@final
@dataclass(frozen=True)
class UpdateDescription:
    """What stands behind an update: the arguments of `knowledge` of the same names, checked.

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
    """The input space from either way of writing it."""
    return inputs if isinstance(inputs, Inputs) else Inputs.of(*inputs)


def classes(net: nn.Module, inputs: Inputs) -> int:
    """How many classes a network tells apart, found by trying it.

    Raises:
        BadInput: it does not take such inputs, or gives no class scores.
    """
    kind, tried = type(net).__name__, copy.deepcopy(net).eval()
    try:
        with torch.no_grad():
            scores = tried(inputs.normalise(torch.zeros(1, *inputs.shape)))
    except (RuntimeError, ValueError, TypeError) as error:
        said = (str(error).splitlines() or [""])[0]
        raise BadInput(f"Expected a network for inputs of shape {inputs.shape}, got {kind}: {said}") from error
    fits = isinstance(scores, Tensor) and scores.dim() == 2
    require(fits, "a network that gives scores (batch, classes)", net=kind)
    return scores.shape[1]


def is_random(net: nn.Module, inputs: Inputs, mode: str) -> bool:
    """Whether a network in training draws random numbers, as dropout does, however it is written."""
    if mode == "eval":
        return False
    tried = copy.deepcopy(net).train()
    with torch.no_grad(), initialising(0, "dropout"):
        x = inputs.normalise(torch.rand(8, *inputs.shape))
        return not torch.equal(tried(x), tried(x))


def victim(net: nn.Module, seen: Observation, inputs: Inputs, mode: str) -> PlainVictim:
    """The victim behind an observation that bears the network's own names.

    Raises:
        BadInput: nothing was sent that the network trains.
    """
    model = copy.deepcopy(net)
    if mode == "train":
        replace_all_batch_norm_modules_(model)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    shared = tuple(name for name in trained if name in seen.sent and name in seen.received)
    require(bool(shared), f"an update of parameters that {type(net).__name__} trains", sent=list(seen.sent))
    # A counter is of no use to anybody, and cannot be searched for.
    counters = {name: value for name, value in model.state_dict().items() if not value.is_floating_point()}
    return PlainVictim(model, {**counters, **seen.received}, shared, inputs)


def granted(model: PlainVictim, about: UpdateDescription, labels: Tensor | None, random: bool) -> Knowledge:
    """Knowledge with its sentences."""
    what = f"{about.batch} example{'s' if about.batch > 1 else ''}"
    steps = "one local step" if about.steps == 1 else f"{about.steps} local steps"
    sentences = [
        f"the network's code ({type(model.model).__name__})",
        f"the tensors that the server sent in the round ({numel(model.known):,} numbers)",
        f"that {steps} on {'' if about.steps == 1 else 'the same '}{what} stand{'s' * (about.steps == 1)} behind it",
        "not granted: the optimiser and its learning rate; the change of the weights is attacked in their place"
        if about.lr is None
        else f"that the steps are plain SGD with learning rate {about.lr:g}",
        "the true labels" if labels is not None else "not granted: the labels",
        "the inputs' range and normalisation",
    ]
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.model.modules()):
        used = "the batch's own statistics" if about.mode == "train" else "the statistics that the server sent"
        sentences.append(f"that batch normalisation used {used}")
    if random:
        sentences.append("not granted: the network's random draws in training, such as dropout; they are left out")
    if model.unknown:
        sentences.append(
            f"not granted: what the server did not send ({', '.join(model.unknown)}), searched for as well"
        )
    if about.steps > 1:
        sentences.append("not made use of: how the weights moved between the steps; their mean gradient is attacked")
    return Knowledge(
        model,
        about.batch,
        labels,
        steps=about.steps,
        weights=about.weights,
        lr=about.lr,
        granted=tuple(sentences),
    )
