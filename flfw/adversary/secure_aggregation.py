"""Secure aggregation as an attacker sees it: the sum that SecAgg+ reveals, and what such sums tell of single clients.

A client multiplies its parameters by its share of the largest weight, clips them, and rounds them at random to whole
numbers. The server sees only the sum of these numbers over the clients that stayed, as the masks cancel (Bell et al.,
"Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020;
``flwr.server.workflow.SecAggPlusWorkflow``). It is taken that the protocol is right and that nobody breaks it.

Three things get through. Changing groups: if updates change slowly, the sums of T rounds are A = P U, with the weights
P (T, K) of the clients in each round and the mean updates U (K, d). Who knows P solves for U once P has rank K (Lam et
al., "Gradient Disaggregation from Secure Aggregation", ICML 2021); fixed groups tell only their means. Embeddings: a
head that maps an embedding v to parameters has the gradient d v^T for each client, so the rows of a sum over n clients
span the embeddings, but for a mixing of n by n numbers. Rare coordinates: rare words, dead units and uploads of the
largest entries leave zeros; where all clients but one have a zero, the sum is that client's value (arXiv 2508.04285).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from flfw.bounds import BoundedSettings, PositiveFloat, ValueRange
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
class Quantiser(BoundedSettings):
    """Quantisation of SecAgg+; the defaults are Flower's.

    Attributes:
        clipping_range: > 0, largest size of a weighted parameter.
        quantization_range: > 1, number of steps.
        modulus_range: a power of two above ``quantization_range``; sums are taken modulo it.
        max_weight: > 0, largest weight of a client, in examples.
    """

    clipping_range: PositiveFloat = 8.0
    quantization_range: Annotated[int, ValueRange(gt=1)] = 4194304
    modulus_range: int = 4294967296
    max_weight: PositiveFloat = 1000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        power = self.modulus_range > self.quantization_range and self.modulus_range.bit_count() == 1
        required = f"modulus_range to be a power of two above {self.quantization_range}"
        require(power, required, modulus_range=self.modulus_range)

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
        for index in range(len(clients[0].arrays)):
            summed = np.sum([client.arrays[index] for client in clients], axis=0, dtype=np.int64)
            whole = np.asarray(summed & (self.modulus_range - 1))
            shifted = whole.astype(float) * self.step - self.clipping_range
            result.append((shifted - (len(clients) - 1) * self.clipping_range) * (self.quantization_range / total))
        return result


_SMALLEST = 1e-10  # singular values below so much of the largest count as 0


@final
@dataclass(frozen=True)
class Separability:
    """Separability of the clients of a participation matrix.

    Attributes:
        rank: number of independent groups.
        smallest: smallest singular value, in units of one client's weight in one round; 0 below full rank.
        noise: for each client (K,) the deviation of its estimated update per unit of deviation in each sum; infinite
            where its update cannot be told from others'.
    """

    rank: int
    smallest: float
    noise: np.ndarray


def separation(participation: np.ndarray) -> Separability:
    """Compute how well clients' updates can be separated, from the participation alone.

    Args:
        participation: (T, K) weight of each client in each round's sum, 0: it took no part.

    Raises:
        InputError: no rounds, no clients, or weights that are not finite.
    """
    fitting = participation.ndim == 2 and min(participation.shape) >= 1 and bool(np.isfinite(participation).all())
    require(fitting, "finite weights (T, K) of T >= 1 rounds and K >= 1 clients", shape=participation.shape)
    u, values, rows = np.linalg.svd(participation, full_matrices=False)
    kept = values > _SMALLEST * max(values.max(), np.finfo(float).tiny)
    rank = int(kept.sum())
    inverse = (rows[kept].T / values[kept]) @ u[:, kept].T
    # A client is determined if its unit vector lies in the space of the rows.
    inside = (rows[kept] ** 2).sum(0)
    noise = np.where(inside > 1 - 1e-8, np.linalg.norm(inverse, axis=1), np.inf)
    full = rank == participation.shape[1]
    return Separability(rank, float(values[rank - 1]) if full else 0.0, noise)


_SMALLEST_VALUE = 1e-5  # of the largest singular value, for gradients in float32


@final
@dataclass(frozen=True)
class EmbeddingSpan:
    """Space of the rows of a summed gradient.

    Attributes:
        basis: (rank, width) orthonormal rows.
        values: (min(P, width),) all singular values, descending.
    """

    basis: Tensor
    values: Tensor

    @property
    def rank(self) -> int:
        """Dimension of the space; the number of clients, if it is below both sizes of the gradient."""
        return len(self.basis)


def span_of(gradient: Tensor) -> EmbeddingSpan:
    """Compute the span of the rows of a summed gradient of a head's weight.

    Args:
        gradient: (P, width) of P generated parameters and embeddings of ``width`` numbers.

    Raises:
        InputError: no matrix.
    """
    require(gradient.dim() == 2 and gradient.numel() > 0, "a matrix (P, width)", shape=tuple(gradient.shape))
    # The rows' space is that of the small matrix R of a QR decomposition; P may be millions.
    tall = len(gradient) >= gradient.shape[1]
    small = torch.linalg.qr(gradient.double(), mode="r").R if tall else gradient.double()
    _, values, rows = torch.linalg.svd(small, full_matrices=False)
    kept = (values > _SMALLEST_VALUE * values.max()) & (values > 0)
    return EmbeddingSpan(rows[kept], values)


def largest_angles(span: EmbeddingSpan, embeddings: Tensor) -> Tensor:
    """Compute the angle (n,) in radians, in [0, pi/2], between each embedding and the span; 0: it lies inside.

    Args:
        span: of a summed gradient.
        embeddings: (n, width), none of them 0.

    Raises:
        InputError: embeddings of another width, or one that is 0.
    """
    width = span.basis.shape[1]
    fitting = embeddings.dim() == 2 and embeddings.shape[1] == width
    require(fitting, f"embeddings (n, {width})", shape=tuple(embeddings.shape))
    lengths = torch.linalg.vector_norm(embeddings.double(), dim=1)
    require(bool((lengths > 0).all()), "embeddings other than 0", shortest=float(lengths.min()))
    units = embeddings.double() / lengths[:, None]
    inside = units @ span.basis.T
    outside = torch.linalg.vector_norm(units - inside @ span.basis, dim=1)
    return torch.atan2(outside, torch.linalg.vector_norm(inside, dim=1))


def expected_exposed(kept: Sequence[float]) -> float:
    """Return the share of coordinates, in [0, 1], to which exactly one client contributes, of independent supports.

    Args:
        kept: for each client the share of the coordinates that it keeps, in [0, 1].

    >>> expected_exposed([0.5, 0.5, 0.0])
    0.5
    """
    others = [prod(1 - other for k, other in enumerate(kept) if k != client) for client in range(len(kept))]
    return sum(share * rest for share, rest in zip(kept, others, strict=True))
