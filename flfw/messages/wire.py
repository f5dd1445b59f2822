"""Messages between server and client: named tensors, their packing and their size in bytes."""

import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor, nn

from flfw.messages.npy import length, packed, read
from flfw.messages.sharing import Form, select_shared
from flfw.nets.net import Tensors

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)


def pack(tensors: Mapping[str, Tensor], *, late: bool | None = None) -> ArrayRecord:
    """Pack named tensors into the ArrayRecord of a message; for ``late`` see `flfw.messages.npy.packed`."""
    record = ArrayRecord()  # filled one by one: of a dictionary it would make every Array once more
    for name, value in tensors.items():
        record[name] = packed(value.detach().numpy(), late=late)
    return record


def unpack(record: ArrayRecord) -> Tensors:
    """Copy the named tensors out of a message.

    Raises:
        ValueError: see `flfw.messages.npy.read`.
    """
    return {name: torch.from_numpy(np.array(read(array), order="C")) for name, array in record.items()}


def lent(record: ArrayRecord) -> Tensors:
    """Return the named tensors of a message without a copy: they are to be read only, and at once.

    Raises:
        ValueError: see `flfw.messages.npy.read`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return {name: torch.from_numpy(read(array)) for name, array in record.items()}


def views(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return a message's named arrays without a copy; read-only: clients in one process share one message.

    Raises:
        ValueError: see `flfw.messages.npy.read`.
    """
    return {name: read(array) for name, array in record.items()}


def forms(tensors: Mapping[str, Tensor]) -> dict[str, Form]:
    """List types and shapes of named tensors, in the notation of Flower's arrays."""
    return {name: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for name, value in tensors.items()}


def of_kind(content: RecordDict, kind: type[R]) -> dict[str, R]:
    """List the records of one kind by name; Flower's views of a message check and enter each of them again."""
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def nbytes(record: ArrayRecord) -> int:
    """Count the bytes of the arrays in a message."""
    return sum(length(array) for array in record.values())


def deflate(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encode integers in few bytes: their byte planes, column by column, as run lengths and Huffman codes.

    Args:
        columns: (r, n) int32, one column per row; a column of smaller numbers has fewer planes.

    Returns:
        The stream (m,), and the number of planes of each column (r,), 0 to 4; both uint8.
    """
    folded = ((columns << 1) ^ (columns >> 31)).view(np.uint32)  # 0, -1, 1, -2: the sign becomes the lowest bit
    planes = folded.astype("<u4", order="C").view(np.uint8).reshape(*columns.shape, 4)
    largest = folded.max(axis=1, initial=0)
    counts = sum(((largest >> shift) > 0).astype(np.uint8) for shift in (0, 8, 16, 24))
    counts = np.asarray(counts, np.uint8)
    packer = zlib.compressobj(strategy=zlib.Z_RLE)  # in noise only zeros repeat
    ordered = (planes[column, :, plane] for column, count in enumerate(counts) for plane in range(count))
    data = b"".join([*(packer.compress(np.ascontiguousarray(plane).data) for plane in ordered), packer.flush()])
    return np.frombuffer(data, np.uint8).copy(), counts


def inflate(stream: np.ndarray, planes: np.ndarray, rows: int) -> np.ndarray:
    """Decode the columns (r, rows) int32 of a stream that `deflate` wrote; never reads more than their size.

    Raises:
        ValueError: the stream does not hold such columns.
    """
    if bool((planes > 4).any()):
        raise ValueError(f"up to {planes.max()} bytes a number, of which 4 is the most")
    size, unpacker = rows * int(planes.sum()), zlib.decompressobj()
    try:
        data = unpacker.decompress(stream.tobytes(), size + 1)  # zlib takes a limit of 0 as no limit
    except zlib.error as error:
        raise ValueError(f"a stream that cannot be inflated ({error})") from error
    if len(data) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"a stream of other than {size} bytes")
    folded, start = np.zeros((len(planes), rows), np.uint32), 0
    for column, count in enumerate(planes):
        for plane in range(count):
            folded[column] |= np.frombuffer(data, np.uint8, rows, start).astype(np.uint32) << (8 * plane)
            start += rows
    return ((folded >> 1) ^ -(folded & 1)).view(np.int32)


def broadcast(model: nn.Module, patterns: Sequence[str]) -> ArrayRecord:
    """Pack the tensors of a fresh model that the server sends first."""
    return pack(select_shared({k: v.detach() for k, v in model.state_dict().items()}, patterns))
