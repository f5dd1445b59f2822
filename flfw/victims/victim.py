"""What an attacker can compute of a client: the victim's model with some tensors known and some unknown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from flfw.errors import BadInput
from flfw.messages.sharing import matches
from flfw.nets.inputs import Inputs
from flfw.nets.net import Tensors

Each: TypeAlias = Callable[[Tensors], Tensors]
"""What a client makes of one example's gradient before it takes the mean over a batch."""


class VictimModel(ABC):
    """The gradient a client would send for given data, as far as the attacker knows the client's model.

    Attacks search for the data, and for the unknown tensors, whose gradient looks like the one observed. `observed`
    and `gradient` speak in the same coordinates; what those are is the victim's business, but sums over all
    coordinates (inner products, squared norms, squared distances) are those of the tensors sent.

    Args:
        model: the client's model; its current values serve as the attacker's first guess of unknown tensors, so it
            must be initialised with the attacker's own seed.
        known: the tensors the attacker holds, by name.
        shared: patterns of the tensors whose gradient is sent.
        inputs: the input space.

    Attributes:
        each: what becomes of each example's gradient; None: nothing, so that one of the mean loss does for all.
    """

    each: Each | None = None

    def __init__(self, model: nn.Module, known: Tensors, shared: Sequence[str], inputs: Inputs) -> None:
        self.model, self.inputs = model.eval(), inputs
        everything = {name: value.detach() for name, value in model.state_dict().items()}
        self.known = {name: known[name] for name in everything if name in known}
        hidden = {name: value for name, value in everything.items() if name not in known}
        self.unknown = {name: value for name, value in hidden.items() if value.is_floating_point()}  # no counters
        self.shared = tuple(name for name, _ in model.named_parameters() if matches(name, shared))

    @cached_property
    def classes(self) -> int:
        """How many there are: the network's scores for an input."""
        with torch.no_grad():
            x = self.inputs.normalise(torch.zeros(1, *self.inputs.shape, device=self.inputs.mean.device))
            return functional_call(self.model, {**self.known, **self.unknown}, (x,)).shape[1]

    def check(self, sent: Tensors) -> None:
        """Refuse what cannot be of this client.

        Raises:
            BadInput: a shared tensor is missing, of another shape, or not finite.
        """
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        for name in self.shared:
            if name not in sent:
                kind = type(self.model).__name__
                raise BadInput(f"Expected {name}, which {kind} shares, got {', '.join(sent) or 'nothing'}.")
            if sent[name].shape != shapes[name]:
                expected, got = tuple(shapes[name]), tuple(sent[name].shape)
                raise BadInput(f"Expected {name} of shape {expected}, got {got}: this is another network.")
            if not torch.isfinite(sent[name]).all():
                raise BadInput(f"Expected finite numbers in {name}, got NaN or infinity: nothing can be searched for.")

    @abstractmethod
    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """What was sent, in the coordinates of `gradient`, and constants that `gradient` needs for them."""

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """The gradient for a guess; differentiable in ``x``, ``y`` (if soft) and ``unknown``, and fit for vmap.

        Args:
            x: raw inputs (B, ...) in [0, 1].
            y: labels (B,), or class probabilities (B, classes).
            unknown: a value for every tensor in ``self.unknown``.
            constants: what `observed` returned beside the observation.
        """


@final
class PlainVictim(VictimModel):
    """A model whose shared tensors are its own parameters: the coordinates are the tensors sent.

    Args:
        model: see `VictimModel`.
        known: see `VictimModel`.
        shared: see `VictimModel`.
        inputs: see `VictimModel`.
        precision: in which the network is computed; its gradient is float32 in any case.
    """

    def __init__(
        self,
        model: nn.Module,
        known: Tensors,
        shared: Sequence[str],
        inputs: Inputs,
        precision: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(model, known, shared, inputs)
        self.precision = precision

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """The shared tensors as they were sent; no constants."""
        return {name: sent[name] for name in self.shared}, {}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """By automatic differentiation."""
        weights = {name: self._cast(value) for name, value in {**self.known, **unknown}.items()}
        moving = {name: weights[name] for name in self.shared}

        def gradient(x: Tensor, y: Tensor) -> Tensors:
            return grad(lambda parameters: self._loss(x, y, {**weights, **parameters}))(moving)

        found = mean_gradient(gradient, x, y, self.each)
        return found if self.precision == torch.float32 else {n: value.float() for n, value in found.items()}

    def after(self, each: Each) -> PlainVictim:
        """The same client, if this becomes of each example's gradient."""
        found = copy(self)
        found.each = each
        return found

    def _loss(self, x: Tensor, y: Tensor, weights: Tensors) -> Tensor:
        scores = functional_call(self.model, weights, (self._cast(self.inputs.normalise(x)),))
        return cross_entropy(scores if self.precision == torch.float32 else scores.float(), y)

    def _cast(self, value: Tensor) -> Tensor:
        reduced = self.precision != torch.float32 and value.dtype == torch.float32
        return value.to(self.precision) if reduced else value


def mean_gradient(gradient: Callable[[Tensor, Tensor], Tensors], x: Tensor, y: Tensor, each: Each | None) -> Tensors:
    """The gradient of a batch's mean loss, or the mean of what becomes of each example's.

    Args:
        gradient: of the mean loss of some inputs (b, ...) and labels (b, ...).
        x: (B, ...).
        y: (B, ...).
        each: None: nothing becomes of them.
    """
    if each is None:
        return gradient(x, y)
    several = vmap(lambda one, label: each(gradient(one.unsqueeze(0), label.unsqueeze(0))))(x, y)
    return {name: value.mean(0) for name, value in several.items()}
