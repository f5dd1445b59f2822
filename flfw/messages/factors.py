"""The change of some linear layers as factors: few, because local training changes them in few directions.

Of layers that are fed by the same h, let W (n, d) be all weights and biases: a row for each output, the biases in the
last column. A step's gradient is a sum of outer products g [h 1]^T with few different h, and weight decay shrinks W as
a whole. So what a round of SGD makes of the received W_0 is, nearly,

    W = a W_0 + U V^T        V (d, r): the principal axes of the change, orthonormal; r far below d

U needs few digits: it is rounded to whole multiples of one step, the longest with which the error stays below a stated
share of the change. The rank r follows, for an axis along which everything rounds to 0 is left out. With the whole
numbers deflated (`flfw.messages.wire.deflate`) this is transform coding: Goyal, "Theoretical Foundations of Transform
Coding", IEEE Signal Processing Magazine, 2001.

Whoever has W and W_0 can compute the factors: they say nothing that W does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import final

import numpy as np
import torch
from torch import Tensor

from flfw.messages.sharing import matches
from flfw.nets.net import Tensors

NamedArrays = Mapping[str, np.ndarray]

_BLOCK = 2**16  # numbers that are summed in their own type
_ROWS = 8192  # so many are looked at to find the decay and the step; the error is measured on all
_SPARED = 0.01  # share of the allowed squared error for axes that are never looked at; as much is left for surprises
_TRIES = 3


@final
@dataclass(frozen=True)
class Layers:
    """Linear layers with biases that are fed by the same input.

    Attributes:
        weights: the rows of W that belong to each tensor of weights (outputs, inputs), by its name.
        biases: the same for the biases (outputs,), in the same order.
        shape: of W: (all outputs, inputs and one).
    """

    weights: Mapping[str, slice]
    biases: Mapping[str, slice]
    shape: tuple[int, int]

    @classmethod
    def matching(cls, pattern: str, tensors: NamedArrays) -> Layers | None:
        """Group the layers whose tensors match a pattern; None: the tensors that match are something else.

        Args:
            pattern: of names that end in ``.weight`` or ``.bias``, as ``hypernet.heads.*``.
            tensors: of a model, by name.
        """
        # Sorted, for files of tensors keep them in another order than models do.
        matched = {name: tensors[name] for name in sorted(tensors) if matches(name, [pattern])}
        weights, start = {}, 0
        for name, value in matched.items():
            if value.ndim == 2:
                weights[name] = slice(start, start := start + len(value))
        biases = {f"{name.removesuffix('.weight')}.bias": rows for name, rows in weights.items()}
        lengths = {name: rows.stop - rows.start for name, rows in biases.items()}
        inputs = {matched[name].shape[1] for name in weights}
        whole = len(matched) == 2 * len(weights) and all(value.dtype == np.float32 for value in matched.values())
        if not whole or len(inputs) != 1 or lengths != {n: len(v) for n, v in matched.items() if v.ndim == 1}:
            return None
        return cls(weights, biases, (start, inputs.pop() + 1))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all their tensors."""
        return (*self.weights, *self.biases)

    def matrix(self, tensors: NamedArrays) -> Tensor:
        """Assemble W, a copy."""
        made = torch.empty(self.shape)
        for name, rows in self.weights.items():
            made.numpy()[rows, :-1] = tensors[name]
        for name, rows in self.biases.items():
            made.numpy()[rows, -1] = tensors[name]
        return made

    def digest(self, tensors: NamedArrays) -> bytes:
        """Hash their names and numbers by SHA-256."""
        hashed = hashlib.sha256()
        for name in self.names:
            hashed.update(name.encode())
            hashed.update(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
        return hashed.digest()


@final
@dataclass(frozen=True, eq=False)
class Factors:
    """W = kept W_0 + step U V^T.

    Attributes:
        kept: a, what weight decay left of W_0.
        step: what U is counted in.
        axes: V (d, r) float32.
        counts: U^T (r, n) int32.
    """

    kept: float
    step: float
    axes: Tensor
    counts: np.ndarray

    @classmethod
    def rounded(cls, kept: float, step: float, axes: Tensor, along: Tensor) -> Factors:
        """Round coordinates (n, r) along the axes, and leave out those axes along which all is rounded to 0."""
        counts = (along / step).round_().T.to(torch.int32)
        used = counts.any(dim=1)
        return cls(kept, step, axes[:, used].contiguous(), counts[used].numpy())

    def expanded(self, layers: Layers, received: NamedArrays) -> Iterator[tuple[str, Tensor]]:
        """Yield the layers' tensors by name, one after the other.

        Args:
            layers: those that the factors are of.
            received: W_0's tensors.
        """
        along = torch.from_numpy(self.counts.T.astype(np.float32))
        for name, rows in layers.weights.items():
            base = torch.tensor(received[name])
            yield name, torch.addmm(base, along[rows], self.axes[:-1].T, beta=self.kept, alpha=self.step, out=base)
        for name, rows in layers.biases.items():
            base = torch.tensor(received[name])
            yield name, torch.addmv(base, along[rows], self.axes[-1], beta=self.kept, alpha=self.step, out=base)


def factored(layers: Layers, sent: Tensors, received: NamedArrays, error: float, beside: float = 0.0) -> Factors | None:
    """Compute the coarsest factors that are good enough; None: float32 is not, or a sent number is not finite.

    Args:
        layers: what to factor.
        sent: their tensors after local training.
        received: and before.
        error: bound of the error's L2 norm over that of the change, in (0, 1).
        beside: squared L2 norm of what else changed, and is sent without error.
    """
    change, before = layers.matrix({name: sent[name].numpy() for name in layers.names}), layers.matrix(received)
    change -= before
    allowed = error**2 * (square(change) + beside)
    if not isfinite(allowed):
        return None
    decay = _decay(before, change)
    change.sub_(before, alpha=decay)
    del before
    axes = _principal_axes(change, _SPARED * allowed)
    along = change @ axes
    del change
    step = _longest_step(along, (1 - 2 * _SPARED) * allowed)
    for _ in range(_TRIES):
        factors = Factors.rounded(1 + decay, step, axes, along)
        made = sum(square(value.sub_(sent[name])) for name, value in factors.expanded(layers, received))
        if made <= allowed:
            return factors
        step *= 0.98 * sqrt(allowed / made)
    return None


def square(values: Tensor) -> float:
    """Compute the squared L2 norm; the sums of blocks are added in float64."""
    return sum(float(torch.dot(block, block)) for block in values.reshape(-1).split(_BLOCK))


def _decay(before: Tensor, change: Tensor) -> float:
    """Estimate a - 1, the decay of W_0 (n, d), by the directions in which the change W - W_0 holds least else."""
    rows = slice(None, None, max(1, len(change) // _ROWS))
    old, new, decay = before[rows].double(), change[rows].double(), 0.0
    for _ in range(3):  # the less decay is left in the change, the better its quiet directions are seen
        _, directions = torch.linalg.eigh(_gram(new - decay * old))  # the quietest first
        quiet = directions[:, : new.shape[1] // 2]
        seen = old @ quiet
        decay = float(((new @ quiet) * seen).sum() / seen.square().sum().clamp(min=torch.finfo(seen.dtype).tiny))
    return decay


def _principal_axes(change: Tensor, spared: float) -> Tensor:
    """Compute V (d, r), the strongest axis first, without the weakest of no more than this squared norm in all."""
    energies, axes = torch.linalg.eigh(_gram(change))
    return axes[:, energies.clamp(min=0).cumsum(0) > spared].flip(1).float()


def _gram(matrix: Tensor) -> Tensor:
    """Compute M^T M (d, d) of a matrix (n, d), in float64."""
    sums = torch.zeros(matrix.shape[1], matrix.shape[1], dtype=torch.float64)
    for rows in map(Tensor.double, matrix.split(_ROWS)):
        sums.addmm_(rows.T, rows)
    return sums


def _longest_step(along: Tensor, allowed: float) -> float:
    """Find the step with which rounding coordinates (n, r) makes this squared error, by a sample of the rows."""
    rows = along[:: max(1, len(along) // _ROWS)]
    budget = allowed * len(rows) / len(along)
    largest = 2 * float(rows.abs().max()) if rows.numel() else 1.0
    short = 2 * sqrt(budget / max(rows.numel(), 1))  # no number is off by more than half a step
    long = max(short, largest)
    for _ in range(20):
        middle = sqrt(short * long)
        fits = square((rows / middle).round_().mul_(middle).sub_(rows)) <= budget
        short, long = (middle, long) if fits else (short, middle)
    return short
