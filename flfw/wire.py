"""What crosses between server and client: named tensors, checked against the declared sharing, and counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from flfw.nets.net import Tensors, matches


class SharingViolation(RuntimeError):
    """A client was about to send a tensor that its method keeps private."""


def shared(tensors: Mapping[str, Tensor], patterns: Sequence[str]) -> Tensors:
    """The tensors whose names match one of the patterns, in their order."""
    return {name: value for name, value in tensors.items() if matches(name, patterns)}


def check_upload(names: Iterable[str], patterns: Sequence[str], method: str, partition: int) -> None:
    """Refuse to send what the method does not share; called on the client, with the client's own declaration.

    Raises:
        SharingViolation: naming the client, the tensor and what may be sent.
    """
    for name in names:
        if not matches(name, patterns):
            allowed = ", ".join(patterns) or "nothing"
            raise SharingViolation(f"client {partition} would send {name}, but {method} uploads only {allowed}")


def pack(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as the one ArrayRecord of a message, in NumPy's own format, as Flower writes it."""
    return ArrayRecord({name: _array(value.detach().numpy()) for name, value in tensors.items()})


def unpack(record: ArrayRecord) -> Tensors:
    """The named tensors of a message, copied out of it."""
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def views(record: ArrayRecord) -> dict[str, np.ndarray]:
    """The named arrays of a message as they lie in it: read-only, for in process all clients share one message."""
    return {name: _view(array) for name, array in record.items()}


def nbytes(record: ArrayRecord) -> int:
    """Bytes of the arrays on the wire."""
    return sum(len(array.data) for array in record.values())


# Flower's own conversions copy each array twice more, which for a hypernetwork of 60 MB is most of a message's cost.


def _array(value: np.ndarray) -> Array:
    value = np.asarray(value, order="C")
    head = BytesIO()
    npy.write_array_header_1_0(head, npy.header_data_from_array_1_0(value))
    data = b"".join([head.getvalue(), value.reshape(-1).view(np.uint8).data])
    return Array(dtype=str(value.dtype), shape=tuple(value.shape), stype="numpy.ndarray", data=data)


def _view(array: Array) -> np.ndarray:
    head = BytesIO(array.data)  # shares the bytes until somebody writes
    version = npy.read_magic(head)
    if array.stype != "numpy.ndarray" or version != (1, 0):
        return array.numpy()
    shape, fortran, dtype = npy.read_array_header_1_0(head)
    if fortran or dtype.hasobject:
        return array.numpy()
    return np.frombuffer(array.data, dtype, offset=head.tell()).reshape(shape)
