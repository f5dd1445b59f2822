"""What stands between a client's gradient and what it sends, as far as an attacker knows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from flfw.nets.net import Tensors


class Mechanism(ABC):
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


@final
class Scaled(Mechanism):
    """A mechanism that acts on a multiple of what is compared: of the weights' change, where gradients are compared.

    Args:
        mechanism: as it is known.
        factor: what it acts on, over what is compared; not 0.
    """

    def __init__(self, mechanism: Mechanism, factor: float) -> None:
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
