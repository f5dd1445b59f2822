"""Uploads as factors (`flfw.messages.factors`), computed by the client and checked by the server.

Factors describe a change of the tensors that the server sent, and hold the SHA-256 of these tensors. Factors from
another round, or of another server's tensors, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from flwr.app import ArrayRecord, Message, RecordDict

from flfw.messages.factors import Factors, Layers, NamedArrays, factored, square
from flfw.messages.finite import is_finite
from flfw.messages.npy import length
from flfw.messages.replies import UnusableReplyError, read_update
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
    whole = {**rest, **dict(factors.expanded(layers, received))}
    return {name: whole[name] for name in dict.fromkeys([*received, *rest]) if name in whole}


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
