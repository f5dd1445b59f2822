"""Known mechanisms between a client's gradient and its upload, as operators on a guess's gradient.

Mechanisms of a pipeline of defences are composed into one operator. Others are taken off what was seen, so that only
what hides the data is left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor

from flfw.files.earlier_names import EarlierHooks
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.inversion.sketch import Sketch
from flfw.nets.net import Tensors
from flfw.nets.training.local_steps import LocalSteps

Trait: TypeAlias = Literal["zeros", "largest", "noise", "scale", "rank"]
"""Property of a message: its entries of exactly 0, the largest magnitude of each tensor, noise as it was added, tensors
that no bound on their joint norm has scaled, and the rank of matrices, which is one for one example."""

TRAITS: frozenset[Trait] = frozenset(("zeros", "largest", "noise", "scale", "rank"))
Clip: TypeAlias = Callable[[Tensors], Tensors]
"""Function that a client applies to the gradient of each example, by name; fit for vmap."""


@final
@dataclass(frozen=True)
class ResidualMechanism:
    """Rest that a known mechanism leaves of one example among those behind a message.

    Attributes:
        weights: factor >= 0 of each entry, by name; 0: it was not sent. None: all are 1.
        deviation: deviation of the noise in each sent entry, after the factor; 0: there is none.
        clip: what is done to the gradient of each example; None: nothing.
        scaled: whether the message is scaled by a factor that depends on all examples, as by a bound on its norm.
    """

    weights: Tensors | None = None
    deviation: float = 0.0
    clip: Clip | None = None
    scaled: bool = False

    def of_example(self, gradient: Tensors) -> Tensors:
        """Return the rest of one example's gradient; fit for vmap."""
        return self.of_message(self.clip(gradient) if self.clip else gradient)

    def of_message(self, update: Tensors) -> Tensors:
        """Return a message in the same coordinates."""
        if self.weights is None:
            return update
        return {name: value * self.weights[name] for name, value in update.items()}

    def noise(self, sketch: Sketch, message: Tensors) -> Tensor:
        """Compute the variance (width,) of the noise in each number of a message's sketch."""
        sent = {name: torch.ones_like(value) for name, value in message.items()}
        if self.weights is not None:
            sent = {name: (self.weights[name] != 0).to(value) for name, value in message.items()}
        return self.deviation**2 * sketch.variances(sent)


class Operator(EarlierHooks, ABC):
    """Known defence or compressor, as an operator on the gradient of a guess; fit for vmap.

    An attacker who knows it applies it to the gradient of a guess, and compares the result with the observation. Facts
    of an observation (the support, the rounding step) are read once, in `read`. A part of the mechanism that can be
    undone in the observation itself is undone there, in `undo`.

    Args:
        settings: the defence's hyper-parameters by name, as in its dataclass.
    """

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {
        "left_out": "unmodelled_part",
        "needs": "requires",
        "passage": "residual",
        "spares": "preserves",
        "undone": "undo",
    }

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def read(self, sent: Tensors) -> Tensors:
        """Read the constants of `apply` off one observation; by default none."""
        return {}

    def undo(self, sent: Tensors) -> Tensors:
        """Undo a part of the mechanism in an observation, without a guess; by default nothing.

        Attacks compare the result with a trial, and recover labels from it.
        """
        return sent

    @abstractmethod
    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Apply the operator to a gradient ``simulated``; differentiable in it.

        Args:
            simulated: the gradient of a guess, by name.
            sent: the observation after `undo`, by name.
            constants: the result of `read`.
        """

    @property
    def noise(self) -> float | None:
        """Standard deviation of the noise in each entry of the observation; None: no noise."""
        return None

    @property
    def holds_noise(self) -> bool:
        """True where `noise` is that of the earlier stages of a pipeline as well; see `after_noise`."""
        return False

    def after_noise(self, deviation: float) -> Operator | None:
        """Return the same mechanism behind noise of a known deviation, which it changes, so that it holds this noise.

        By default None: what it leaves of the noise is not known.
        """
        return None

    @property
    def requires(self) -> frozenset[Trait]:
        """Traits of this mechanism's output that later stages of a pipeline must leave as they are; by default all."""
        return TRAITS

    @property
    def preserves(self) -> frozenset[Trait]:
        """Traits that this mechanism leaves as earlier stages of a pipeline made them; by default none."""
        return frozenset()

    def unmodelled_part(
        self, batch: int, steps: int, spared: frozenset[Trait] = TRAITS, sent: Sequence[str] | None = None
    ) -> str:
        """Name the part of the mechanism that the model leaves out for such messages; empty: none, as by default.

        An attack that knows the rest only is no evidence of protection.

        Args:
            batch: examples behind the message.
            steps: its local steps.
            spared: traits that later stages of a pipeline leave as they are.
            sent: names of the message's tensors; None: all of the network.
        """
        return ""

    def residual(self, sent: Tensors) -> ResidualMechanism | None:
        """Return the rest that the mechanism leaves of one example among many; by default None: it is not modelled.

        Args:
            sent: the message in the units of the compared tensors, by name.
        """
        return None

    @property
    def passes(self) -> bool:
        """True where `residual` gives something."""
        return type(self).residual is not Operator.residual

    @property
    def has_victim(self) -> bool:
        """True where `victim` includes more than the local steps."""
        return type(self).victim is not Operator.victim

    def victim(self, plain: PlainVictim, received: Tensors, local: LocalSteps | None) -> VictimModel:
        """Build a victim that includes the operations before `apply`; by default none.

        Args:
            plain: the client without the mechanism.
            received: the tensors it received, by name.
            local: the steps to simulate; None: one step, whose gradient is compared.
        """
        return plain if local is None else SteppedVictim(plain, received, local)


class DataOperator(Operator, ABC):
    """Known change of the data themselves, as by a defence's `batch`; the gradient is that of the changed data.

    Nothing stands between that gradient and the observation, so a search is the undefended one, for the changed data.
    Its result is passed through `restored` once, at the end.
    """

    @abstractmethod
    def restored(self, samples: Tensor, public: Tensor | None) -> Tensor:
        """Undo the change in a reconstruction, as far as can be; without the truth.

        Args:
            samples: (B, ...) raw inputs as a search found them; finite.
            public: (N, ...) raw inputs of no client; None: not granted.
        """

    @abstractmethod
    def versions(self, samples: Tensor) -> list[Tensor]:
        """List all that the client may have made of raw inputs (B, ...); empty: too many to be tried.

        An audit compares the version that fits an observation best.
        """

    @abstractmethod
    def augmentation_distance(self, samples: Tensor, result: Tensor) -> Tensor:
        """Compute how far each image of a search's result is from the nearest that the client may have made of samples.

        An audit compares so where there are too many versions of a batch.

        Args:
            samples: (B, ...) raw inputs.
            result: (N, ...) images as a search found them.

        Returns:
            (B, N) root mean squares.
        """

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Return the trial unchanged."""
        return {name: simulated[name] for name in sent}


@dataclass(frozen=True)
class Circumstances:
    """Public facts of an observation beside the method's settings.

    Attributes:
        lr: the experiment's learning rate, > 0.
        batch: number of examples, all used in every step, >= 1.
        steps: number of local steps, >= 1.
        round: the observation is after this round; 0 is before training.
        rounds: rounds of the whole run.
        on_client: whether it is one example's gradient, read on the client in local training.
        shared: patterns of the uploaded tensors; local steps move these.
    """

    lr: float = 1.0
    batch: int = 1
    steps: int = 1
    round: int = 0
    rounds: int = 1
    on_client: bool = False
    shared: tuple[str, ...] = ("*",)


class MethodOperator(Operator, ABC):
    """Operator of a federated method itself, without any defence.

    It uses the units of the compared tensors: those of a gradient or, for several steps, of their mean gradient.

    Args:
        settings: the method's hyper-parameters by name.
        at: known facts of the observation.
    """

    def __init__(self, settings: Mapping[str, Any], at: Circumstances) -> None:
        super().__init__(settings)
        self.at = at

    @property
    @abstractmethod
    def action(self) -> str:
        """The method's actions, in words that continue its name: ``clips and adds noise``."""

    @property
    @abstractmethod
    def known(self) -> str:
        """The same with all known settings."""

    @property
    def acts(self) -> bool:
        """True where the method changes the observed tensors."""
        return True

    @property
    def unsupported_reason(self) -> str:
        """Reason why the method cannot be modelled, in words; empty: it can."""
        return ""

    @property
    def unmodelled_clause(self) -> str:
        """Part of the mechanism that the model leaves out, as ``that ...``; empty: none."""
        return ""

    @property
    def local_steps(self) -> LocalSteps | None:
        """Settings of several local steps, without the method's changes to gradients; None for one step."""
        return None


@final
class Scaled(Operator):
    """Mechanism that acts on a multiple of the compared tensors: on the weights' change, where gradients are compared.

    Args:
        operator: the known mechanism.
        factor: scale of its input over the scale of the compared tensors; not 0.
    """

    def __init__(self, operator: Operator, factor: float) -> None:
        super().__init__(operator.settings)
        self._mechanism, self._factor = operator, factor

    def read(self, sent: Tensors) -> Tensors:
        """Read the mechanism's constants off the scaled observation."""
        return self._mechanism.read(_times(sent, self._factor))

    def undo(self, sent: Tensors) -> Tensors:
        """Undo in the mechanism's own units."""
        return _times(self._mechanism.undo(_times(sent, self._factor)), 1 / self._factor)

    @property
    def requires(self) -> frozenset[Trait]:
        """Traits that the mechanism needs; none depends on the units."""
        return self._mechanism.requires

    @property
    def preserves(self) -> frozenset[Trait]:
        """Traits that the mechanism leaves as they were."""
        return self._mechanism.preserves

    @property
    def holds_noise(self) -> bool:
        """True where the mechanism holds earlier noise."""
        return self._mechanism.holds_noise

    def after_noise(self, deviation: float) -> Operator | None:
        """Return the mechanism behind noise, of a deviation in the units of the compared tensors."""
        behind = self._mechanism.after_noise(deviation * abs(self._factor))
        return behind and Scaled(behind, self._factor)

    @property
    def has_victim(self) -> bool:
        """True where the mechanism's victim includes more than the local steps."""
        return self._mechanism.has_victim

    def unmodelled_part(
        self, batch: int, steps: int, spared: frozenset[Trait] = TRAITS, sent: Sequence[str] | None = None
    ) -> str:
        """Name the mechanism's own omission."""
        return self._mechanism.unmodelled_part(batch, steps, spared, sent)

    def victim(self, plain: PlainVictim, received: Tensors, local: LocalSteps | None) -> VictimModel:
        """Build the mechanism's victim."""
        return self._mechanism.victim(plain, received, local)

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Apply the mechanism in its own units."""
        scaled = _times(simulated, self._factor), _times(sent, self._factor), constants
        return _times(self._mechanism.apply(*scaled), 1 / self._factor)

    def residual(self, sent: Tensors) -> ResidualMechanism | None:
        """Return the mechanism's own passage, with its noise in the units of the compared tensors."""
        passage = self._mechanism.residual(_times(sent, self._factor))
        return passage and replace(passage, deviation=passage.deviation / abs(self._factor))

    @property
    def passes(self) -> bool:
        """True where the mechanism's passage is modelled."""
        return self._mechanism.passes

    @property
    def noise(self) -> float | None:
        """Deviation of the noise in the units of the compared tensors."""
        std = self._mechanism.noise
        return None if std is None else std / abs(self._factor)


@final
class AsOffset(Operator):
    """Mechanism that adds the same to every gradient: it is subtracted from the observation, in float64.

    A direction such as the cosine's hardly changes with the gradient beside a large constant, least of all in float32.

    Args:
        offset: what is added, by name.
    """

    def __init__(self, offset: Tensors) -> None:
        super().__init__({})
        self.offset = offset

    def undo(self, sent: Tensors) -> Tensors:
        """Subtract the offset."""
        return {n: (value.double() - self.offset[n].double()).to(value.dtype) for n, value in sent.items()}

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Return the trial unchanged: the offset was subtracted from the observation."""
        return {n: simulated[n] for n in sent}


def _times(tensors: Tensors, factor: float) -> Tensors:
    return {name: value * factor for name, value in tensors.items()}


def fitted(stages: Sequence[Operator]) -> list[Operator] | None:
    """Return operators that may be applied one after the other, each told of the noise before it; None: they may not.

    The constants of each stage are read off the observation, which is the last stage's output. So all later stages must
    leave alone what a stage needs. At most one stage may have a victim.

    Args:
        stages: the operators in the order in which the mechanisms act.
    """
    told: list[Operator] = []
    for stage in stages:
        before = None if "noise" in stage.preserves else Composed(told).noise
        told.append(stage if before is None else stage.after_noise(before) or stage)
    left = all(earlier.requires <= later.preserves for earlier, later in combinations(told, 2))
    return told if left and sum(stage.has_victim for stage in told) <= 1 else None


@final
class Composed(Operator):
    """Mechanisms one after the other, each with constants of its own.

    Args:
        stages: the operators in the order in which the mechanisms act; they fit together by `fitted`.
    """

    def __init__(self, stages: Sequence[Operator]) -> None:
        super().__init__({})
        self._stages = tuple(stages)

    def read(self, sent: Tensors) -> Tensors:
        """Read ``PLACE.NAME`` for each stage, off the observation in which all later stages are undone."""
        constants: Tensors = {}
        for place, stage in reversed(tuple(enumerate(self._stages))):
            constants |= {f"{place}.{name}": value for name, value in stage.read(sent).items()}
            sent = stage.undo(sent)
        return constants

    def undo(self, sent: Tensors) -> Tensors:
        """Undo the stages as far as they can be, from the last to the first."""
        for stage in reversed(self._stages):
            sent = stage.undo(sent)
        return sent

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Apply the stages in order, each with its own constants."""
        for index, stage in enumerate(self._stages):
            prefix = f"{index}."
            mine = {name.removeprefix(prefix): v for name, v in constants.items() if name.startswith(prefix)}
            simulated = stage.apply(simulated, sent, mine)
        return simulated

    def unmodelled_part(
        self, batch: int, steps: int, spared: frozenset[Trait] = TRAITS, sent: Sequence[str] | None = None
    ) -> str:
        """Name the omissions of all stages."""
        omissions: list[str] = []
        for stage in reversed(self._stages):
            omissions.append(stage.unmodelled_part(batch, steps, spared, sent))
            spared &= stage.preserves
        return " and ".join(filter(None, reversed(omissions)))

    def residual(self, sent: Tensors) -> ResidualMechanism | None:
        """Return the rest that all stages leave; None: one is not modelled, or clips or masks in the wrong place."""
        parts = [part for stage in self._stages if (part := stage.residual(sent)) is not None]
        if len(parts) < len(self._stages) or any(part.clip for part in parts[1:]):
            return None
        if any(part.weights is not None for part in parts[:-1]):
            return None
        noise = self._joint([part.deviation for part in parts])
        return ResidualMechanism(parts[-1].weights, noise, parts[0].clip, any(part.scaled for part in parts))

    @property
    def passes(self) -> bool:
        """True where the rest of every stage is modelled."""
        return all(stage.passes for stage in self._stages)

    @property
    def noise(self) -> float | None:
        """Deviation of the sum of all stages' noise, in the units of the last stage that holds it; None: no noise."""
        return self._joint([stage.noise or 0.0 for stage in self._stages]) or None

    def _joint(self, deviations: Sequence[float]) -> float:
        """Compute the deviation of all stages' noise: variances add, but for those that a later one holds."""
        variance = 0.0
        for stage, std in zip(self._stages, deviations, strict=True):
            variance = std**2 + (0.0 if stage.holds_noise else variance)
        return variance**0.5

    def victim(self, plain: PlainVictim, received: Tensors, local: LocalSteps | None) -> VictimModel:
        """Build the victim of the only stage that has one; else that of the local steps."""
        for stage in self._stages:
            if stage.has_victim:
                return stage.victim(plain, received, local)
        return super().victim(plain, received, local)
