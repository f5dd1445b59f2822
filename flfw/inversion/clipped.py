"""Clipping and Gaussian noise, per example or per update, for an attacker with all settings.

With C the bound, sigma the noise multiplier, B the batch, clip_C(v) = v min(1, C / |v|) for each group of tensors, or
v C / (|v| + 0.01) with clipping=automatic:

    clipped steps     sent = 1/B (sum_j clip_C(g_j) + N(0, sigma^2 C^2))       draws=example: B sigma^2 C^2
    clipped updates   sent = clip_C(lr N g) / (lr N) + N(0, s^2) / (lr N)      g the mean gradient of N steps, s the
                                                                               deviation of the client's own noise
The clipping is part of the victim's model, where the examples are separate: each trial example's gradient is clipped
by itself. The noise cannot be undone, but its deviation makes the distance a likelihood.

The noise of several clipped steps adds up, through momentum and weight decay (`carried`). The noise of a step also
moves the weights of the later steps; this effect is left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import sqrt
from typing import final

import torch
from torch import Tensor

from flfw.inversion.client_models.operator import MethodOperator, ResidualMechanism, Trait
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.inversion.matching import inner
from flfw.nets.net import Tensors
from flfw.nets.training.clipping import CLIP_FACTOR, STABILITY, Clipping, Grouping, grouped
from flfw.nets.training.local_steps import LocalSteps

_TINY = 1e-30  # keeps the derivative of a norm finite where it is 0
_PER: dict[Grouping, str] = {"layer": "a layer", "tensor": "a tensor", "flat": "over all tensors"}


def clipped(
    gradient: Tensors, bound: float | Mapping[str, Tensor], grouping: Grouping, stability: float | None = None
) -> Tensors:
    """Clip the gradient so that each group has an L2 norm of at most ``bound``; differentiable, and fit for vmap.

    Args:
        gradient: gradients by name.
        bound: > 0; one for all groups, or one for each by name.
        grouping: the tensors that share a norm.
        stability: of automatic clipping, added to each norm; None: vectors within the bound stay as they are.

    >>> import torch
    >>> clipped({"a.w": torch.tensor([3.0]), "a.b": torch.tensor([4.0])}, 2.5, "layer")
    {'a.w': tensor([1.5000]), 'a.b': tensor([2.])}
    """
    result: Tensors = {}
    for group, members in grouped(gradient, grouping).items():
        tensors = {name: gradient[name] for name in members}
        maximum = bound[group] if isinstance(bound, Mapping) else bound
        norm = (inner(tensors, tensors) + _TINY).sqrt()
        factor = (maximum / norm).clamp(max=1.0) if stability is None else maximum / (norm + stability)
        result |= {name: value * factor for name, value in tensors.items()}
    return {name: result[name] for name in gradient}


def carried(local: LocalSteps) -> float:
    """Compute the deviation of the weights' change over lr times steps, for unit noise in each step's gradient.

    SGD is linear in the noise, so each step's noise is followed separately, through momentum and weight decay.

    Args:
        local: local steps of SGD.

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
    """Method that clips and adds noise. A subclass defines the rest, with settings as in `flfw.dp.settings`."""

    @property
    @abstractmethod
    def clips_examples(self) -> bool:
        """True where each example's gradient is clipped in every step, False where the update is clipped."""

    @property
    def update_deviation(self) -> float:
        """Deviation of the noise that a client adds to its clipped update; 0 by default: the server adds it."""
        return 0.0

    @property
    def bound(self) -> float:
        """The clipping bound C."""
        return self.settings["clip"]

    @property
    def stability(self) -> float | None:
        """The constant of automatic clipping; None: clipping is not automatic."""
        clipping: Clipping = self.settings["clipping"]
        return STABILITY if clipping == "automatic" else None

    @property
    def lr(self) -> float:
        """The learning rate of the round."""
        return self.at.lr

    @property
    def grouping(self) -> Grouping:
        """The tensors that are clipped together."""
        return self.settings["grouping"]

    @property
    def acts(self) -> bool:
        """False for one example's gradient that is read before its clipping, or before the update's."""
        return not self.at.on_client or (self.clips_examples and self.settings["observed"] == "sanitised")

    @property
    def is_noisy(self) -> bool:
        """True where the observation contains noise."""
        return bool(self.settings["noise_multiplier"] if self.clips_examples else self.update_deviation)

    @property
    def requires(self) -> frozenset[Trait]:
        """The noise, where there is any: a later stage must leave it as it was added."""
        return frozenset(("noise",)) if self.is_noisy else frozenset()

    @property
    def relative_deviation(self) -> float:
        """Deviation of the noise in a step's mean gradient, over C."""
        draws = self.at.batch if self.settings["draws"] == "example" else 1
        return self.settings["noise_multiplier"] * sqrt(draws) / self.at.batch

    @property
    def noise(self) -> float | None:
        """Deviation of the noise in the units of the compared tensors; None: no noise."""
        if not self.is_noisy:
            return None
        if not self.clips_examples:
            return self.update_deviation / (self.lr * self.at.steps)
        local = self.local_steps
        return self.relative_deviation * self.bound * (1.0 if local is None else carried(local))

    @property
    def local_steps(self) -> LocalSteps | None:
        """The method's optimiser, on the uploaded tensors."""
        if self.at.steps == 1:
            return None
        kind, decay = self.settings["optimiser"], self.settings["weight_decay"]
        momentum = 0.0 if kind == "adam" else self.settings["momentum"]
        return LocalSteps(self.lr, self.at.steps, kind, momentum, decay, moves=self.at.shared)

    @property
    def unsupported_reason(self) -> str:
        """The effect of noise on Adam's quotients: its deviation is unknown."""
        adam = self.settings["optimiser"] == "adam"
        many = self.at.steps > 1 and self.clips_examples and self.is_noisy
        return "of several steps of Adam the noise that is left is not known" if many and adam else ""

    @property
    def unmodelled_clause(self) -> str:
        """The effect of noise on the gradients of later steps."""
        many = self.at.steps > 1 and self.clips_examples and self.is_noisy
        return "that the noise of a step moves the weights at which the next ones are taken" if many else ""

    @property
    def action(self) -> str:
        """Clipping, and noise where there is any."""
        return "clips and adds noise" if self.is_noisy else "clips"

    @property
    def known(self) -> str:
        """The clipping with its bound, and the noise."""
        what = "each example's gradient" if self.clips_examples else "each update"
        sigma = self.settings["noise_multiplier"] if self.clips_examples else self.update_deviation / self.bound
        noise = f" and adds noise (sigma={sigma:g})" if self.is_noisy else ""
        return f"clips {what} ({self.bound_words}){noise}"

    @property
    def bound_words(self) -> str:
        """The bound, for `known`."""
        automatic = ", automatic" if self.stability else ""
        moving = ", times the factor that is sent" if self.settings.get("quantile") else ""
        return f"C={self.bound:g} {_PER[self.grouping]}{automatic}{moving}"

    def bounds(self, observed: Tensors) -> Tensors:
        """Return C of each group by its name, where it has to be read off the observation; by default none."""
        return {}

    def victim(self, plain: PlainVictim, received: Tensors, local: LocalSteps | None) -> VictimModel:
        """Build the victim with clipping of each example in each step, or of the whole gradient or update."""
        if self.clips_examples and (self.at.batch > 1 or local is not None):
            plain = plain.after(lambda gradient: clipped(gradient, self.bound, self.grouping, self.stability))
            return super().victim(plain, received, local)
        unit = 1.0 if self.clips_examples else self.lr * self.at.steps  # of an update, in steps along a gradient
        factor = 1.0 if self.clips_examples else float(received.get(CLIP_FACTOR, torch.ones(1)))
        bound, stability = factor * self.bound / unit, self.stability and self.stability / unit
        return ClippedVictim(super().victim(plain, received, local), bound, self.grouping, self.bounds, stability)

    def residual(self, sent: Tensors) -> ResidualMechanism:
        """Return the rest of an example: its clipped gradient, or one scaled as the whole update is."""
        std = self.noise or 0.0
        if not self.clips_examples:
            return ResidualMechanism(deviation=std, scaled=True)
        return ResidualMechanism(deviation=std, clip=lambda g: clipped(g, self.bound, self.grouping, self.stability))

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Return the trial unchanged: it is already clipped, and the mean of the noise is 0."""
        return {name: simulated[name] for name in sent}


class ClippedByUnit(Clipped, ABC):
    """Method that clips examples or whole updates, as ``unit`` says; the server adds the noise on updates."""

    @property
    def clips_examples(self) -> bool:
        """True where examples are protected."""
        return self.settings["unit"] == "example"


@final
class ClippedVictim(VictimModel):
    """Victim whose gradient is clipped as a whole.

    Args:
        victim: the victim without clipping.
        bound: the bound of each group.
        grouping: the tensors that share a norm.
        bounds: from an observation, a bound for each group by its name; empty: ``bound`` holds for all.
        stability: see `clipped`.
    """

    def __init__(
        self,
        victim: VictimModel,
        bound: float,
        grouping: Grouping,
        bounds: Callable[[Tensors], Tensors],
        stability: float | None = None,
    ) -> None:
        super().__init__(victim.model, victim.known, victim.shared, victim.inputs)
        self._victim, self._bound, self._bounds, self._stability = victim, bound, bounds, stability
        self._grouping: Grouping = grouping

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the victim's observation, and ``bound.GROUP`` where it is read off."""
        seen, constants = self._victim.observed(sent)
        return seen, {**constants, **{f"bound.{group}": value for group, value in self._bounds(seen).items()}}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the victim's gradient and clip it."""
        read = {name.removeprefix("bound."): v for name, v in constants.items() if name.startswith("bound.")}
        gradient = self._victim.gradient(x, y, unknown, constants)
        return clipped(gradient, read or self._bound, self._grouping, self._stability)
