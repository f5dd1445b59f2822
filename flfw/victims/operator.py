"""What stands between a client's gradient and what it sends, as far as an attacker knows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from flfw.nets.net import Tensors
from flfw.victims.local_steps import LocalSteps, SteppedVictim
from flfw.victims.victim import PlainVictim, VictimModel


class Operator(ABC):
    """A known defence or compressor, as an operator on the gradient of a guess; fit for vmap.

    An attacker who knows it compares what was sent with what a guess would have sent through it. What the operator
    reads off an observation (which entries were sent, how finely they were rounded) it reads once, in `read`.

    Args:
        settings: the defence's hyper-parameters by name, as its own dataclass holds them.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def read(self, sent: Tensors) -> Tensors:
        """What `apply` needs of one observation; by default nothing."""
        return {}

    @abstractmethod
    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """What the client would have sent, had its gradient been ``trial``; differentiable in ``trial``.

        Args:
            trial: the gradient of a guess, by name.
            sent: the observation, by name.
            constants: what `read` found in it.
        """

    @property
    def noise(self) -> float | None:
        """Standard deviation of the noise in each entry of what was sent; None: there is none to speak of."""
        return None


@dataclass(frozen=True)
class Circumstances:
    """What everybody knows of an observation beside the method's settings.

    Attributes:
        lr: the experiment's learning rate, > 0.
        batch: examples behind it, all of them in every step, >= 1.
        steps: local steps behind it, >= 1.
        round: after which it was seen; 0 is before training.
        rounds: of the whole run.
        on_client: whether it is one example's gradient, read on the client in local training.
        shared: patterns of the tensors that are uploaded, which are those that local steps move.
    """

    lr: float = 1.0
    batch: int = 1
    steps: int = 1
    round: int = 0
    rounds: int = 1
    on_client: bool = False
    shared: tuple[str, ...] = ("*",)


class MethodOperator(Operator, ABC):
    """What a federated method itself does to gradients, without any defence.

    It is in the units that are compared: of a gradient or, of several steps, of their mean gradient.

    Args:
        settings: the method's hyper-parameters by name.
        at: what is known of the observation.
    """

    def __init__(self, settings: Mapping[str, Any], at: Circumstances) -> None:
        super().__init__(settings)
        self.at = at

    @property
    @abstractmethod
    def deed(self) -> str:
        """What the method does, in words that go on from its name: ``clips and adds noise``."""

    @property
    @abstractmethod
    def known(self) -> str:
        """The same with all that is known of it."""

    @property
    def acts(self) -> bool:
        """Whether any of it is done to what was observed."""
        return True

    @property
    def obstacle(self) -> str:
        """Why there is no way to model it, in words; empty: there is one."""
        return ""

    @property
    def missed(self) -> str:
        """Of what is modelled, what is left out all the same, as ``that ...``; empty: nothing."""
        return ""

    @property
    def local_steps(self) -> LocalSteps | None:
        """How several steps were made, but for what the method does to their gradients; None of one step."""
        return None

    def victim(self, plain: PlainVictim, received: Tensors, local: LocalSteps | None) -> VictimModel:
        """A client that does to its gradients what comes before `apply`; by default nothing.

        Args:
            plain: the client, if the method did nothing.
            received: what it had received, by name.
            local: the steps to follow; None: one, whose gradient is compared.
        """
        return plain if local is None else SteppedVictim(plain, received, local)


@final
class Scaled(Operator):
    """A mechanism that acts on a multiple of what is compared: of the weights' change, where gradients are compared.

    Args:
        mechanism: as it is known.
        factor: what it acts on, over what is compared; not 0.
    """

    def __init__(self, mechanism: Operator, factor: float) -> None:
        super().__init__(mechanism.settings)
        self._mechanism, self._factor = mechanism, factor

    def read(self, sent: Tensors) -> Tensors:
        """What the mechanism reads off what it acted on."""
        return self._mechanism.read(_times(sent, self._factor))

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """The mechanism, in its own units."""
        own = _times(trial, self._factor), _times(sent, self._factor), constants
        return _times(self._mechanism.apply(*own), 1 / self._factor)

    @property
    def noise(self) -> float | None:
        """In the units of what is compared."""
        own = self._mechanism.noise
        return None if own is None else own / abs(self._factor)


def _times(tensors: Tensors, factor: float) -> Tensors:
    return {name: value * factor for name, value in tensors.items()}
