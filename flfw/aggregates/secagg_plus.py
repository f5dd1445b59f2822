"""Quantisation of SecAgg+ as Flower does it, without the masks, which cancel: the sum that its server recovers.

A client multiplies its parameters by its share of the largest weight, clips them, and rounds them at random to whole
numbers. The server sees nothing but the sum of these numbers over the clients that stayed (Bell et al., "Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020; ``flwr.server.workflow.SecAggPlusWorkflow``). It
is taken that the protocol is right and that nobody breaks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np

from flfw.errors import require

Arrays: TypeAlias = list[np.ndarray]
"""Parameters of a model, in its order."""


@final
@dataclass(frozen=True)
class Quantised:
    """Summand of a client: its quantised parameters.

    Attributes:
        ratio: its share of the largest weight, a whole number of steps.
        arrays: whole numbers in [0, quantization_range].
    """

    ratio: int
    arrays: Arrays


@final
@dataclass(frozen=True)
class Quantiser:
    """Quantisation of SecAgg+; the defaults are Flower's.

    Attributes:
        clipping_range: > 0, largest size of a weighted parameter.
        quantization_range: > 1, number of steps.
        modulus_range: a power of two above ``quantization_range``; sums are taken modulo it.
        max_weight: > 0, largest weight of a client, in examples.
    """

    clipping_range: float = 8.0
    quantization_range: int = 4194304
    modulus_range: int = 4294967296
    max_weight: float = 1000.0

    def __post_init__(self) -> None:
        require(self.clipping_range > 0, "clipping_range > 0", clipping_range=self.clipping_range)
        require(self.quantization_range > 1, "quantization_range > 1", quantization_range=self.quantization_range)
        power = self.modulus_range > self.quantization_range and self.modulus_range.bit_count() == 1
        wanted = f"modulus_range to be a power of two above {self.quantization_range}"
        require(power, wanted, modulus_range=self.modulus_range)
        require(self.max_weight > 0, "max_weight > 0", max_weight=self.max_weight)

    @property
    def step(self) -> float:
        """Distance of two neighbouring values of a weighted parameter."""
        return 2 * self.clipping_range / self.quantization_range

    def quantise(self, parameters: Arrays, examples: int, rng: np.random.RandomState) -> Quantised:  # noqa: TID251
        """Quantise a client's parameters as Flower's ``secaggplus_mod`` does, to the bit for one state of ``rng``.

        Args:
            parameters: floating-point arrays.
            examples: the client's weight, >= 1.
            rng: generator of the random rounding; NumPy's older kind, as Flower uses it.

        Raises:
            InputError: no examples, or more than ``max_weight``, for which the sum may overflow.
        """
        require(1 <= examples <= self.max_weight, f"1 <= examples <= {self.max_weight:g}", examples=examples)
        ratio = round(examples / self.max_weight * self.quantization_range)
        share, scale = ratio / self.quantization_range, self.quantization_range / (2 * self.clipping_range)
        arrays = []
        for array in parameters:
            weighted = np.clip(array * share, -self.clipping_range, self.clipping_range)
            steps = (weighted + self.clipping_range) * scale
            upper = np.ceil(steps).astype(np.int32)
            arrays.append(upper - (rng.rand(*upper.shape) < upper - steps).astype(np.int32))
        return Quantised(ratio, arrays)

    def recover(self, clients: Sequence[Quantised]) -> Arrays:
        """Compute the weighted mean that the server recovers from the sum, in float64.

        Args:
            clients: those that stayed to the end, at least one.

        Raises:
            InputError: no clients, or arrays that do not belong together.
        """
        require(len(clients) >= 1, "at least one client", clients=len(clients))
        shapes = {tuple(array.shape for array in client.arrays) for client in clients}
        require(len(shapes) == 1, "arrays of the same shapes from all clients", shapes=len(shapes))
        total = sum(client.ratio for client in clients) % self.modulus_range
        result = []
        for place in range(len(clients[0].arrays)):
            summed = np.sum([client.arrays[place] for client in clients], axis=0, dtype=np.int64)
            whole = np.asarray(summed & (self.modulus_range - 1))
            shifted = whole.astype(float) * self.step - self.clipping_range
            result.append((shifted - (len(clients) - 1) * self.clipping_range) * (self.quantization_range / total))
        return result

    def largest_error(self, clients: Sequence[Quantised]) -> float:
        """Return the largest difference of a recovered mean from the exact one, where nothing was clipped.

        Each client's rounding is off by less than a step of a weighted parameter.
        """
        total = sum(client.ratio for client in clients)
        return len(clients) * self.step * self.quantization_range / total
