"""Clipping and Gaussian noise as an attacker has them who knows all settings: of each example, or of a whole update.

With C the bound, sigma the noise multiplier, B the batch, clip_C(v) = v min(1, C / |v|) for each group of tensors:

    clipped steps     sent = 1/B (sum_j clip_C(g_j) + N(0, sigma^2 C^2))       draws=example: B sigma^2 C^2
    clipped updates   sent = clip_C(lr N g) / (lr N) + N(0, s^2) / (lr N)      g the mean gradient of N steps, s the
                                                                               deviation of the client's own noise
The clipping stands in the victim's model, where examples can be told apart: of several, each trial example's gradient
is bounded by itself. The noise cannot be undone, but its deviation makes the distance a likelihood.

Of several clipped steps the noise adds up, carried along by momentum and weight decay (`carried`). The noise of a step
also moves the weights at which the next ones are taken; that is left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import sqrt
from typing import final

from torch import Tensor

from flfw.inversion.matching import inner
from flfw.nets.net import Tensors
from flfw.training.per_example import Grouping, grouped
from flfw.victims.local_steps import LocalSteps
from flfw.victims.operator import MethodOperator
from flfw.victims.victim import PlainVictim, VictimModel

_TINY = 1e-30  # keeps the derivative of a norm finite where it is 0
_PER: dict[Grouping, str] = {"layer": "a layer", "tensor": "a tensor", "flat": "over all tensors"}


def clipped(gradient: Tensors, bound: float | Mapping[str, Tensor], grouping: Grouping) -> Tensors:
    """A gradient with each group scaled down to an L2 norm of at most ``bound``; differentiable, and fit for vmap.

    Args:
        gradient: by name.
        bound: > 0; one for all groups, or one for each by name.
        grouping: what is clipped together.

    >>> import torch
    >>> clipped({"a.w": torch.tensor([3.0]), "a.b": torch.tensor([4.0])}, 2.5, "layer")
    {'a.w': tensor([1.5000]), 'a.b': tensor([2.])}
    """
    found: Tensors = {}
    for group, members in grouped(gradient, grouping).items():
        own = {name: gradient[name] for name in members}
        most = bound[group] if isinstance(bound, Mapping) else bound
        factor = (most / (inner(own, own) + _TINY).sqrt()).clamp(max=1.0)
        found |= {name: value * factor for name, value in own.items()}
    return {name: found[name] for name in gradient}


def carried(local: LocalSteps) -> float:
    """Deviation of the weights' change over lr times steps, for noise of deviation 1 in the gradient of each step.

    SGD is linear in the noise, so each step's noise is followed on its own, through momentum and weight decay.

    Args:
        local: steps of SGD.

    >>> carried(LocalSteps(lr=0.1, steps=4))
    0.5
    """
    total = 0.0
    for disturbed in range(local.steps):
        weight = velocity = 0.0
        for step in range(local.steps):
            velocity = local.momentum * velocity + (step == disturbed) + local.weight_decay * weight
            weight -= local.lr * velocity
        total += (weight / (local.lr * local.steps)) ** 2
    return sqrt(total)


class Clipped(MethodOperator, ABC):
    """A method that clips and adds noise. A subclass says what, in settings as `flfw.dp.settings` has them."""

    @property
    @abstractmethod
    def on_steps(self) -> bool:
        """Whether each example's gradient is clipped, in every step, rather than the update."""

    @property
    def update_deviation(self) -> float:
        """Of the noise that a client adds to its clipped update; by default 0, for the noise is the server's."""
        return 0.0

    @property
    def bound(self) -> float:
        """C."""
        return self.settings["clip"]

    @property
    def lr(self) -> float:
        """The learning rate of the round."""
        return self.at.lr

    @property
    def grouping(self) -> Grouping:
        """What is clipped together."""
        return self.settings["grouping"]

    @property
    def acts(self) -> bool:
        """One example's gradient is read before any update is clipped, and before its own clipping if settings say."""
        return not self.at.on_client or (self.on_steps and self.settings["observed"] == "sanitised")

    @property
    def is_noisy(self) -> bool:
        """Whether there is noise in what was sent."""
        return bool(self.settings["noise_multiplier"] if self.on_steps else self.update_deviation)

    @property
    def relative_deviation(self) -> float:
        """Of the noise in a step's mean gradient, over C."""
        draws = self.at.batch if self.settings["draws"] == "example" else 1
        return self.settings["noise_multiplier"] * sqrt(draws) / self.at.batch

    @property
    def noise(self) -> float | None:
        """In the units of what is compared."""
        if not self.is_noisy:
            return None
        if not self.on_steps:
            return self.update_deviation / (self.lr * self.at.steps)
        local = self.local_steps
        return self.relative_deviation * self.bound * (1.0 if local is None else carried(local))

    @property
    def local_steps(self) -> LocalSteps | None:
        """The method's optimiser, on what is uploaded."""
        if self.at.steps == 1:
            return None
        kind, decay = self.settings["optimiser"], self.settings["weight_decay"]
        momentum = 0.0 if kind == "adam" else self.settings["momentum"]
        return LocalSteps(self.lr, self.at.steps, kind, momentum, decay, moves=self.at.shared)

    @property
    def obstacle(self) -> str:
        """What noise does to Adam's quotients has no deviation of its own."""
        adam = self.settings["optimiser"] == "adam"
        several = self.at.steps > 1 and self.on_steps and self.is_noisy
        return "of several steps of Adam the noise that is left is not known" if several and adam else ""

    @property
    def missed(self) -> str:
        """What noise does to the gradients of later steps."""
        several = self.at.steps > 1 and self.on_steps and self.is_noisy
        return "that the noise of a step moves the weights at which the next ones are taken" if several else ""

    @property
    def deed(self) -> str:
        """Clipping, and noise where there is any."""
        return "clips and adds noise" if self.is_noisy else "clips"

    @property
    def known(self) -> str:
        """With the bound and the noise."""
        what = "each example's gradient" if self.on_steps else "each update"
        sigma = self.settings["noise_multiplier"]
        noise = f" and adds noise (sigma={sigma:g})" if self.is_noisy else ""
        return f"clips {what} ({self.bound_words}){noise}"

    @property
    def bound_words(self) -> str:
        """The bound, for `known`."""
        return f"C={self.bound:g} {_PER[self.grouping]}"

    def bounds(self, observed: Tensors) -> Tensors:
        """C of each group by its name, where it has to be read off what was observed; by default it is `bound`."""
        return {}

    def victim(self, plain: PlainVictim, received: Tensors, local: LocalSteps | None) -> VictimModel:
        """With each example's gradient clipped, in each step; or the whole, of one example and step or an update."""
        if self.on_steps and (self.at.batch > 1 or local is not None):
            plain = plain.after(lambda gradient: clipped(gradient, self.bound, self.grouping))
            return super().victim(plain, received, local)
        bound = self.bound if self.on_steps else self.bound / (self.lr * self.at.steps)
        return ClippedVictim(super().victim(plain, received, local), bound, self.grouping, self.bounds)

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """The trial as it is, for it was clipped where it was made; without noise, whose mean is 0."""
        return {name: trial[name] for name in sent}


class ClippedByUnit(Clipped, ABC):
    """One that clips examples or whole updates, as ``unit`` says; the noise on updates is the server's."""

    @property
    def on_steps(self) -> bool:
        """Whether it is examples that are protected."""
        return self.settings["unit"] == "example"


@final
class ClippedVictim(VictimModel):
    """A `VictimModel` whose gradient is clipped as a whole.

    Args:
        victim: before the clipping.
        bound: of each group.
        grouping: what is clipped together.
        bounds: of what was observed, a bound for each group by its name; nothing: ``bound`` is that of all.
    """

    def __init__(
        self, victim: VictimModel, bound: float, grouping: Grouping, bounds: Callable[[Tensors], Tensors]
    ) -> None:
        super().__init__(victim.model, victim.known, victim.shared, victim.inputs)
        self._victim, self._bound, self._bounds = victim, bound, bounds
        self._grouping: Grouping = grouping

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """The victim's, and ``bound.GROUP`` where it is read off what was sent."""
        seen, constants = self._victim.observed(sent)
        return seen, {**constants, **{f"bound.{group}": value for group, value in self._bounds(seen).items()}}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """The victim's, clipped."""
        read = {name.removeprefix("bound."): v for name, v in constants.items() if name.startswith("bound.")}
        return clipped(self._victim.gradient(x, y, unknown, constants), read or self._bound, self._grouping)
