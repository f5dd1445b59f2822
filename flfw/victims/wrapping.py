"""Client of another kind whose data are searched for in other coordinates: base of such victims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.victims.victim import VictimModel


class WrappingVictim(VictimModel, ABC):
    """Base of victims that are another one, whose raw inputs are a function of coordinates.

    All but the coordinates is the other victim's: the model, the known and the unknown tensors, the observations.

    Args:
        client: the other victim; it computes the gradient for raw inputs.
        inputs: space of the coordinates.
    """

    def __init__(self, client: VictimModel, inputs: InputSpec) -> None:
        super().__init__(client.model, client.known, client.shared, inputs)
        self.known, self.unknown, self.shared = client.known, client.unknown, client.shared
        self._client = client

    @abstractmethod
    def around(self, client: VictimModel) -> Self:
        """Build the same coordinates around another client."""

    @abstractmethod
    def raw(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the client's raw inputs (B, ...) for coordinates ``x`` (B, ...) and labels ``y``; fit for vmap."""

    @cached_property
    def classes(self) -> int:
        """Number of classes: of the network's scores for the client's inputs."""
        return self._client.classes

    def check(self, sent: Tensors) -> None:
        """Refuse an observation that cannot be of the client; see `VictimModel.check`."""
        self._client.check(sent)

    def reduced(self, precision: torch.dtype) -> Self:
        """Return the same client whose network computes in a lower precision, but not the function of coordinates."""
        return self.around(self._client.reduced(precision))

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the client's."""
        return self._client.observed(sent)

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the client's gradient for the inputs that coordinates ``x`` (B, ...) stand for."""
        return self._client.gradient(self.raw(x, y), y, unknown, constants)
