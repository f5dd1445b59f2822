"""Uploads as factors of the change of some linear layers, computed by the client and checked by the server.

Few factors are needed: local training changes the layers in few directions. Let W (n, d) hold all weights and biases of
layers with the same input h: one row per output, the biases in the last column. The gradient of a step is a sum of
outer products g [h 1]^T with few different h, and weight decay multiplies the whole W by a factor. So a round of SGD
changes the received W_0 to approximately

    W = a W_0 + U V^T        V (d, r): the principal axes of the change, orthonormal; r far below d

U needs few digits: it is rounded to integer multiples of one step. The step is the longest one with which the error
stays below a given share of the change. The step determines the rank r: an axis along which all values round to 0 is
left out. Together with the compression of the integers (`flfw.messages.wire.deflate`) this is transform coding: Goyal,
"Theoretical Foundations of Transform Coding", IEEE Signal Processing Magazine, 2001.

The factors can be computed from W and W_0, so they reveal nothing beyond W. They hold the SHA-256 of the tensors that
the server sent. Factors from another round, or of another server's tensors, are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any, TypeVar, final

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from flfw.files.tensor_names import matches
from flfw.messages.npy import length
from flfw.messages.replies import UnusableReplyError, is_finite, read_update
from flfw.messages.wire import deflate, inflate, nbytes, unpack, views
from flfw.nets.net import Tensors

T = TypeVar("T")
_WIDEST = float(torch.finfo(torch.float32).max)  # PyTorch takes no larger factor of a float32 product

# Tensors sent in place of the matched layers: each is named by the pattern, a slash and one of these keys.
_TYPES = {
    "base": torch.uint8,  # (32,) SHA-256 of the layers' received tensors
    "scales": torch.float64,  # (2,) the factors' kept and step
    "axes": torch.float32,  # (d, r)
    "planes": torch.uint8,  # (r,) bytes per count along each axis
    "stream": torch.uint8,  # (m,) the counts, deflated
}
NamedArrays = Mapping[str, np.ndarray]
_BLOCK = 2**16  # numbers that are summed in their own type before float64 is used
_ROWS = 8192  # rows used to estimate the decay and the step; the error is measured on all rows
_SPARED = 0.01  # share of the allowed squared error for omitted axes; an equal share is a safety margin
_TRIES = 3


@final
@dataclass(frozen=True)
class Layers:
    """Linear layers with biases and a common input.

    Attributes:
        weights: the rows of W of each weight tensor (outputs, inputs), by its name.
        biases: the same for the biases (outputs,), in the same order.
        shape: shape of W: (outputs of all layers, inputs + 1).
    """

    weights: Mapping[str, slice]
    biases: Mapping[str, slice]
    shape: tuple[int, int]

    @classmethod
    def matching(cls, pattern: str, tensors: NamedArrays) -> Layers | None:
        """Find the layers whose tensors match a pattern; None: the matching tensors are not such layers.

        Args:
            pattern: pattern of names that end in ``.weight`` or ``.bias``, such as ``hypernet.heads.*``.
            tensors: tensors of a model, by name.
        """
        # Sorted, because files store tensors in another order than models.
        matched = {name: tensors[name] for name in sorted(tensors) if matches(name, [pattern])}
        weights, start = {}, 0
        for name, value in matched.items():
            if value.ndim == 2:
                weights[name] = slice(start, start := start + len(value))
        biases = {f"{name.removesuffix('.weight')}.bias": rows for name, rows in weights.items()}
        lengths = {name: rows.stop - rows.start for name, rows in biases.items()}
        inputs = {matched[name].shape[1] for name in weights}
        full = len(matched) == 2 * len(weights) and all(value.dtype == np.float32 for value in matched.values())
        if not full or len(inputs) != 1 or lengths != {n: len(v) for n, v in matched.items() if v.ndim == 1}:
            return None
        return cls(weights, biases, (start, inputs.pop() + 1))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors of the layers."""
        return (*self.weights, *self.biases)

    def matrix(self, tensors: NamedArrays) -> Tensor:
        """Build W from the layers' tensors, as a copy."""
        made = torch.empty(self.shape)
        for name, rows in self.weights.items():
            made.numpy()[rows, :-1] = tensors[name]
        for name, rows in self.biases.items():
            made.numpy()[rows, -1] = tensors[name]
        return made

    def digest(self, tensors: NamedArrays) -> bytes:
        """Compute the SHA-256 of the layers' names and numbers."""
        hashed = hashlib.sha256()
        for name in self.names:
            hashed.update(name.encode())
            hashed.update(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
        return hashed.digest()


@final
@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of W = kept W_0 + step U V^T.

    Attributes:
        kept: a, the factor by which weight decay multiplied W_0.
        step: the unit of the integers in U.
        axes: V (d, r) float32.
        counts: U^T (r, n) int32.
    """

    kept: float
    step: float
    axes: Tensor
    counts: np.ndarray

    @classmethod
    def rounded(cls, kept: float, step: float, axes: Tensor, along: Tensor) -> Factors:
        """Build factors from coordinates (n, r) along the axes; leave out axes on which all values round to 0."""
        counts = (along / step).round_().T.to(torch.int32)
        used = counts.any(dim=1)
        return cls(kept, step, axes[:, used].contiguous(), counts[used].numpy())

    def expanded(self, layers: Layers, received: NamedArrays) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and the value of each of the layers' tensors.

        Args:
            layers: the layers that the factors describe.
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
    """Compute the coarsest factors within the error bound; None: not finite, or float32 is not precise enough.

    Args:
        layers: the layers to factor.
        sent: the tensors after local training.
        received: the tensors before local training.
        error: bound of the L2 norm of the error, relative to the L2 norm of the change; in (0, 1).
        beside: squared L2 norm of the change of all other tensors, which are sent without error.
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
    """Estimate a - 1, the relative change of W_0 (n, d) by weight decay, in the weakest directions of W - W_0."""
    rows = slice(None, None, max(1, len(change) // _ROWS))
    old, new, decay = before[rows].double(), change[rows].double(), 0.0
    for _ in range(3):  # the directions are estimated better the less decay is left in the change
        _, directions = torch.linalg.eigh(_gram(new - decay * old))  # ascending eigenvalues
        quiet = directions[:, : new.shape[1] // 2]
        seen = old @ quiet
        decay = float(((new @ quiet) * seen).sum() / seen.square().sum().clamp(min=torch.finfo(seen.dtype).tiny))
    return decay


def _principal_axes(change: Tensor, spared: float) -> Tensor:
    """Compute V (d, r), strongest axis first; leave out the weakest axes up to the squared norm ``spared`` in sum."""
    energies, axes = torch.linalg.eigh(_gram(change))
    return axes[:, energies.clamp(min=0).cumsum(0) > spared].flip(1).float()


def _gram(matrix: Tensor) -> Tensor:
    """Compute M^T M (d, d) of a matrix (n, d), in float64."""
    gram = torch.zeros(matrix.shape[1], matrix.shape[1], dtype=torch.float64)
    for rows in map(Tensor.double, matrix.split(_ROWS)):
        gram.addmm_(rows.T, rows)
    return gram


def _longest_step(along: Tensor, allowed: float) -> float:
    """Find the longest step whose rounding error of coordinates (n, r) is allowed; uses a sample of the rows."""
    rows = along[:: max(1, len(along) // _ROWS)]
    budget = allowed * len(rows) / len(along)
    largest = 2 * float(rows.abs().max()) if rows.numel() else 1.0
    short = 2 * sqrt(budget / max(rows.numel(), 1))  # the rounding error is at most half a step
    long = max(short, largest)
    for _ in range(20):
        middle = sqrt(short * long)
        fits = square((rows / middle).round_().mul_(middle).sub_(rows)) <= budget
        short, long = (middle, long) if fits else (short, middle)
    return short


class Unfit(ValueError):
    """Error of factors that cannot be used; the message describes the sent factors, without a full stop."""


@final
@dataclass(frozen=True)
class FactoredUpload:
    """Settings of an upload that holds the change of some layers as factors.

    Attributes:
        pattern: pattern of the weights and biases of linear layers with a common input, such as ``hypernet.heads.*``.
        error: bound of the L2 norm of the upload's error, relative to the L2 norm of its change; in (0, 1).
    """

    pattern: str
    error: float

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the factors, which replace all tensors that the pattern matches."""
        return tuple(f"{self.pattern}/{part}" for part in _TYPES)

    def compress(self, sent: Tensors, received: NamedArrays) -> Tensors:
        """Replace the layers' tensors in an upload by factors.

        The upload stays unchanged where factors are no smaller, or where float32 is too coarse for the error bound.

        Args:
            sent: the tensors after local training, on the CPU.
            received: the tensors before local training.
        """
        layers = _layers(self.pattern, received)
        rest = {name: value for name, value in sent.items() if name not in layers.names}
        moved = [name for name, value in rest.items() if name in received and value.is_floating_point()]
        beside = sum(square(rest[name] - torch.tensor(received[name])) for name in moved)
        factors = factored(layers, sent, received, self.error, beside)
        if factors is None:
            return sent
        parts = _packed(factors, layers.digest(received))
        made = {**rest, **{f"{self.pattern}/{part}": value for part, value in parts.items()}}
        return made if _bytes(made) < _bytes(sent) else sent


def expand(sent: Tensors, received: NamedArrays) -> Tensors:
    """Replace the factors in an upload by the layers' tensors; an upload without factors stays unchanged.

    Args:
        sent: the upload of a client.
        received: the tensors that the client had received.

    Raises:
        Unfit: the factors are malformed, or do not belong to the received tensors.
    """
    patterns = [name.removesuffix("/base") for name in sent if name.endswith("/base")]
    pattern = next((p for p in patterns if all(f"{p}/{part}" in sent for part in _TYPES)), None)
    if pattern is None:
        return sent
    layers = _layers(pattern, received)
    rest, parts = _apart(sent, pattern)
    factors = _unpacked(parts, pattern, layers, layers.digest(received))
    full = {**rest, **dict(factors.expanded(layers, received))}
    return {name: full[name] for name in dict.fromkeys([*received, *rest]) if name in full}


@final
class FactorReader:
    """Reader of one round's replies that may hold factors; it makes all checks of `read_update`.

    Args:
        form: settings of the method's factored upload.
        uploads: patterns of the names that a client may send.
        broadcast: the tensors sent to all clients.
        counted: see `read_update`.
    """

    def __init__(
        self, form: FactoredUpload, uploads: Sequence[str], broadcast: ArrayRecord, *, counted: bool = True
    ) -> None:
        self._counted = counted
        self._pattern, self._uploads, self._broadcast = form.pattern, uploads, broadcast
        self._received = views(broadcast)
        self._layers = _layers(form.pattern, self._received)
        self._digest = self._layers.digest(self._received)

    def __call__(self, reply: Message) -> tuple[Tensors, dict[str, Any], int]:
        """Return a reply's tensors, metrics and bytes.

        Raises:
            UnusableReplyError: see `read_update`; or the factors cannot be used.
        """
        records = reply.content.array_records if reply.has_content() else {}
        rest, parts = _apart(records.get("arrays", {}), self._pattern)
        if not parts:
            return read_update(reply, self._uploads, self._broadcast, counted=self._counted)
        content = RecordDict({**reply.content, "arrays": ArrayRecord(rest)})
        beside = Message(content, reply.metadata.src_node_id, reply.metadata.message_type)
        others = ArrayRecord({name: array for name, array in self._broadcast.items() if name not in self._layers.names})
        tensors, metrics, _ = read_update(beside, self._uploads, others, counted=self._counted)
        tensors |= self._expanded(ArrayRecord(parts))
        return {n: tensors[n] for n in self._broadcast if n in tensors}, metrics, nbytes(records["arrays"])

    def _expanded(self, parts: ArrayRecord) -> Tensors:
        size, whole = nbytes(parts), sum(length(self._broadcast[name]) for name in self._layers.names)
        if size > whole:
            raise UnusableReplyError(f"sent {size} bytes of factors of {self._pattern}, of which there are {whole}")
        try:
            factors = _unpacked(unpack(parts), self._pattern, self._layers, self._digest)
        except Unfit as error:
            raise UnusableReplyError(str(error)) from error
        except ValueError as error:
            raise UnusableReplyError(f"sent factors that cannot be read: {error}") from error
        tensors = dict(factors.expanded(self._layers, self._received))
        for name, value in tensors.items():
            if not is_finite(value):
                raise UnusableReplyError(f"sent factors that make {name} infinite")
        return tensors


def _layers(pattern: str, received: NamedArrays) -> Layers:
    layers = Layers.matching(pattern, received)
    if layers is None:
        raise Unfit(f"sent factors of {pattern}, where no float32 layers with one input are")
    return layers


def _packed(factors: Factors, digest: bytes) -> Tensors:
    stream, planes = deflate(factors.counts)
    return {
        "base": torch.tensor(list(digest), dtype=torch.uint8),
        "scales": torch.tensor([factors.kept, factors.step], dtype=torch.float64),
        "axes": factors.axes,
        "planes": torch.from_numpy(planes),
        "stream": torch.from_numpy(stream),
    }


def _unpacked(parts: Tensors, pattern: str, layers: Layers, digest: bytes) -> Factors:
    """Return the factors that were sent, after every check."""
    if parts.keys() != _TYPES.keys():
        raise Unfit(f"sent factors of {pattern} as {', '.join(parts)}; they are {', '.join(_TYPES)}")
    rows, columns = layers.shape
    rank = min(parts["planes"].numel(), columns)
    shapes = {"base": (32,), "scales": (2,), "axes": (columns, rank), "planes": (rank,)}
    for part, value in parts.items():
        form, got = _form(_TYPES[part], shapes.get(part, (value.numel(),))), _form(value.dtype, value.shape)
        if form != got:
            raise Unfit(f"sent factors of {pattern} with {part} as {got}, not {form}")
    if parts["base"].numpy().tobytes() != digest:
        raise Unfit(f"sent factors of {pattern} that stand on other tensors than it received")
    kept, step = parts["scales"].tolist()
    if not (abs(kept) <= _WIDEST and abs(step) <= _WIDEST and is_finite(parts["axes"])):
        raise Unfit(f"sent factors of {pattern} with NaN or infinite values")
    try:
        counts = inflate(parts["stream"].numpy(), parts["planes"].numpy(), rows)
    except ValueError as error:
        raise Unfit(f"sent factors of {pattern} with {error}") from error
    return Factors(kept, step, parts["axes"], counts)


def _form(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{tuple(shape)}"


def _bytes(tensors: Tensors) -> int:
    return sum(value.nbytes for value in tensors.values())


def _apart(tensors: Mapping[str, T], pattern: str) -> tuple[dict[str, T], dict[str, T]]:
    """Separate a pattern's factors from all other tensors; return the others, then the factors without the prefix."""
    start = f"{pattern}/"
    parts = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
    return {name: value for name, value in tensors.items() if not name.startswith(start)}, parts
