"""Compact files of recordings: each large tensor as what differs from its prediction, to the bit.

The file is a safetensors file. Small tensors and those of other types than float32 stand in it as they are. Of each
other one it has, instead, these (k counts them):

    compact:k:plane0 ... plane3   the lowest to the highest bytes of the distances to the prediction, compressed by zlib
                                  (Z_RLE) where that saves anything
    compact:k:left, compact:k:right   the products of the prediction, see `flfw.recording.prediction`

The only entry of the file's metadata, ``compact``, is a JSON list with a description of each. Nobody need trust it:
whoever reads a file compares the SHA-256 of the plain one that comes out with that in the manifest.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from math import prod
from typing import Any, TypedDict

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from flfw.formats.typed import SchemaMismatchError, fit
from flfw.recording.prediction import MOST_PRODUCTS, Prediction, best

_KEY = "compact"
_LEAST = 4096  # numbers of a tensor; a smaller one stays as it is
_SAMPLE = 2**16  # bytes that are compressed to see whether the others are worth it
_WORTH = 0.97

Arrays = Mapping[str, np.ndarray]


class _Coded(TypedDict):
    """Description of a coded tensor.

    ``column`` is the tensor that is the prediction's only column; empty: the file has the columns, or there are none.
    """

    name: str
    shape: list[int]
    received: bool
    scale: str
    products: int
    column: str
    packed: list[bool]


def compacted(tensors: Arrays, received: Arrays) -> bytes:
    """Return the bytes of a compact file; the same tensors give the same bytes on one machine.

    Args:
        tensors: what it holds.
        received: what the client had received, from which tensors of the same name are predicted; empty: nothing.
    """
    ours = any(name.startswith(f"{_KEY}:") for name in tensors)  # nobody's network has such names, but they may
    chosen = [] if ours else [name for name, value in tensors.items() if _is_coded(value)]
    stored = {name: np.asarray(value, order="C") for name, value in tensors.items() if name not in chosen}
    described = []
    # Vectors first: a layer's bias may be the column of its weights' prediction.
    for number, name in enumerate(sorted(chosen, key=lambda name: tensors[name].ndim > 1)):
        parts, coded = _coded(name, tensors, received)
        described.append(coded)
        stored |= {f"{_KEY}:{number}:{part}": value for part, value in parts.items()}
    return save(stored, {_KEY: json.dumps(described)})  # safetensors would put several entries in random order


def restored(data: bytes, size: int, received: Arrays) -> dict[str, np.ndarray]:
    """Return the tensors of a compact file.

    Args:
        data: content of the file.
        size: the most bytes that they may take.
        received: as for `compacted`.

    Raises:
        ValueError: it is no such file, or needs other received tensors.
    """
    try:
        stored = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        described = fit(json.loads(header["__metadata__"][_KEY]), list[_Coded])
    except (SafetensorError, KeyError, ValueError, TypeError, SchemaMismatchError) as error:
        raise ValueError(f"no compact file: {error}") from error
    coded = {f"{_KEY}:{number}:": one for number, one in enumerate(described)}
    tensors = {name: value for name, value in stored.items() if not name.startswith(tuple(coded))} if coded else stored
    needed = sum(value.nbytes for value in tensors.values()) + 4 * sum(_numbers(one, size) for one in described)
    if needed > size:
        raise ValueError(f"tensors of {needed} bytes, and {size} were written")
    for prefix, one in coded.items():
        parts = {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
        tensors[one["name"]] = _decoded(one, parts, tensors, received)
    return tensors


def _is_coded(value: np.ndarray) -> bool:
    return value.dtype == np.float32 and value.size >= _LEAST


def _matrix(value: np.ndarray) -> np.ndarray:
    """Return a tensor as a matrix: its first axis by all others; a vector as one column."""
    return np.asarray(value, order="C").reshape(len(value), -1) if value.ndim else value.reshape(1, 1)


def _likely_column(name: str, tensors: Arrays) -> str:
    """Return the name of a layer's bias, if there is one for each row of its weights; else an empty string."""
    bias = f"{name.removesuffix('.weight')}.bias"
    fits = name.endswith(".weight") and bias in tensors and tensors[bias].shape == tensors[name].shape[:1]
    return bias if fits and tensors[bias].dtype == np.float32 else ""


def _known(name: str, shape: tuple[int, ...], received: Arrays) -> np.ndarray | None:
    """Return the received tensor as a matrix, if it has this shape and type."""
    held = received.get(name)
    return _matrix(held) if held is not None and held.shape == shape and held.dtype == np.float32 else None


def _coded(name: str, tensors: Arrays, received: Arrays) -> tuple[dict[str, np.ndarray], _Coded]:
    value, column = tensors[name], _likely_column(name, tensors)
    matrix, known = _matrix(value), _known(name, value.shape, received)
    prediction, given = best(matrix, known, tensors[column] if column else None)
    steps = prediction.to(matrix, known)
    planes = np.ascontiguousarray(steps.astype("<u4", copy=False)).view(np.uint8).reshape(-1, 4)
    parts, packed = {}, []
    for number in range(4):
        plane = np.ascontiguousarray(planes[:, number])
        small = _deflated(plane)
        parts[f"plane{number}"] = plane if small is None else np.frombuffer(small, np.uint8)
        packed.append(small is not None)
    if products := len(prediction.right):
        parts["right"] = prediction.right
        if not given:
            parts["left"] = prediction.left
    coded = _Coded(
        name=name,
        shape=list(value.shape),
        received=bool(prediction.scale),
        scale=prediction.scale.hex(),
        products=products,
        column=column if given else "",
        packed=packed,
    )
    return parts, coded


def _deflated(plane: np.ndarray) -> bytes | None:
    """Return compressed bytes, or None where they are hardly fewer: those of mantissas are random."""
    start = max(0, (len(plane) - _SAMPLE) // 2)
    sample = plane[start : start + _SAMPLE]
    if len(_squeezed(sample)) > _WORTH * len(sample):
        return None
    small = _squeezed(plane)
    return small if len(small) < len(plane) else None


def _squeezed(plane: np.ndarray) -> bytes:
    packer = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return packer.compress(plane.data) + packer.flush()


def _numbers(one: _Coded, size: int) -> int:
    """Return how many numbers a tensor has; refuse a shape that no tensor of these files has."""
    shape = one["shape"]
    if not all(0 <= length <= size for length in shape) or len(one["packed"]) != 4:
        raise ValueError(f"{one['name']} of shape {shape}")
    return prod(shape)


def _decoded(one: _Coded, parts: Arrays, tensors: Arrays, received: Arrays) -> np.ndarray:
    shape, name = tuple(one["shape"]), one["name"]
    rows, numbers = (shape[0] if shape else 1), prod(shape)
    columns = numbers // max(1, rows)
    known = _known(name, shape, received)
    if one["received"] and known is None:
        raise ValueError(f"{name} was predicted from a received tensor that is not there")
    steps = np.empty((numbers, 4), np.uint8)
    for number, packed in enumerate(one["packed"]):
        steps[:, number] = _inflated(parts, f"plane{number}", numbers, packed)
    prediction = Prediction.none(rows, columns, float.fromhex(one["scale"]))
    if one["products"]:
        prediction = Prediction(prediction.scale, *_factors(one, parts, tensors, (rows, columns)))
    matrix = prediction.corrected(steps.view("<u4").reshape(rows, columns).astype(np.uint32, copy=False), known)
    return matrix.reshape(shape)


def _factors(one: _Coded, parts: Arrays, tensors: Arrays, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rank = one["products"]
    column = tensors.get(one["column"])
    left = parts.get("left") if column is None else column.reshape(-1, 1)
    right = parts.get("right")
    if left is None or right is None or not 1 <= rank <= MOST_PRODUCTS or right.shape != (rank, size[1]):
        raise ValueError(f"{one['name']} has no products of its shape")
    if left.shape != (size[0], rank) or left.dtype != np.float32 or right.dtype != np.float64:
        raise ValueError(f"{one['name']} has no columns of its shape")
    return left, right


def _inflated(parts: Arrays, name: str, size: int, packed: bool) -> np.ndarray:
    plane: Any = parts.get(name)
    if plane is None or plane.dtype != np.uint8 or plane.ndim != 1:
        raise ValueError(f"no {name}")
    if packed:
        stream = zlib.decompressobj()
        try:
            whole = stream.decompress(plane.tobytes(), size + 1)  # bounds a file that decompresses to much more
        except zlib.error as error:
            raise ValueError(f"{name} cannot be decompressed ({error})") from error
        plane = np.frombuffer(whole, np.uint8)
    if len(plane) != size:
        raise ValueError(f"{name} has {len(plane)} bytes, not {size}")
    return plane
