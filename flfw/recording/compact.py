"""Compact files of recordings: each large tensor as what differs from its prediction, to the bit.

The file is a safetensors file. Small tensors and those of other types than float32 stand in it as they are. Of each
other one it has, instead, these (k counts them):

    compact:k:plane0 ... plane3       the lowest to the highest bytes of the distances to the prediction, compressed by
                                      zlib (Z_RLE) where that saves anything
    compact:k:left, compact:k:right   the products of the prediction

The only entry of the file's metadata, ``compact``, is a JSON list with a description of each. Nobody need trust it:
whoever reads a file compares the SHA-256 of the plain one that comes out with that in the manifest.

An upload is seldom random. The gradient of a linear layer is a sum of outer products, one for each example and
position; weights after local training are the received ones, times the decay, plus a few such products:

    p = f32(a W_0 + sum_k u_k v_k)        W_0: the received tensor, or none; u_k: a column; v_k: a row

What differs from the prediction p is stored as distances in float32's own steps, so that nothing is lost whatever was
predicted; a good prediction gives small distances, which need few bits. The prediction must have the same bits on every
machine. So it is computed by single products and sums in float64, each rounded by itself, and never by a matrix
product, whose order of summation depends on the machine. Values that float32 cannot represent normally are predicted as
0, since some processes flush them to 0 and others do not.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypedDict, final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from flfw.files.typed import SchemaMismatchError, fit

_KEY = "compact"
_LEAST = 4096  # numbers of a tensor; a smaller one stays as it is
_SAMPLE = 2**16  # bytes that are compressed to see whether the others are worth it
_WORTH = 0.97
Arrays = Mapping[str, np.ndarray]
_MOST_PRODUCTS = 16
"""The most outer products of a prediction: each costs time, and memory for its column."""

_ROWS = 4096  # rows from which the rows v_k and the decay are estimated, spread evenly
_TRIED = 256  # rows on which predictions are compared
_BLOCK = 2**18  # numbers that are predicted at a time, so that they stay in the processor's cache
_NARROWEST = 4  # the fewest rows and columns of a matrix with products, and the fewest for each of these
# Columns: up to the first the rows v_k are found from many rows, above the second not at all.
_SLIM, _WIDEST = 512, 8192
_HOPELESS = 0.5  # share of a change that the most products leave
_TIMES, _SETTLED = 8, 1e-8  # how often decay and products are estimated from one another, and when the decay stays
_SMALLEST, _LARGEST = (float(value) for value in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
_NUMBER = 32  # bits
_ALMOST = 1.0  # bits of a number with which no better prediction is looked for


@final
@dataclass(frozen=True)
class Prediction:
    """Prediction of a matrix (n, d) of float32.

    Attributes:
        scale: factor a of the received matrix; 0: it is not used.
        left: columns u_k, (n, r) float32.
        right: rows v_k, (r, d) float64.
    """

    scale: float
    left: np.ndarray
    right: np.ndarray

    @classmethod
    def none(cls, rows: int, columns: int, scale: float = 0.0) -> Prediction:
        """Return a prediction without products: 0 or, with a scale, the received matrix times it."""
        return cls(scale, np.zeros((rows, 0), np.float32), np.zeros((0, columns)))

    def at(self, rows: slice, received: np.ndarray | None) -> np.ndarray:
        """Return the predicted rows (rows, d) float32, the same bits on every machine.

        Args:
            rows: which of them.
            received: the received matrix (n, d), if the scale is not 0.
        """
        left = self.left[rows].astype(np.float64)
        with np.errstate(all="ignore"):  # what overflows is predicted as 0
            total = np.zeros((len(left), self.right.shape[1]))
            if self.scale and received is not None:
                np.multiply(received[rows], self.scale, out=total, dtype=np.float64)
            product = np.empty_like(total) if len(self.right) else total
            for column, row in zip(left.T, self.right, strict=True):
                np.multiply(column[:, None], row[None], out=product)
                total += product
            size = np.abs(total)
            total[~((size >= _SMALLEST) & (size <= _LARGEST))] = 0.0
            return total.astype(np.float32)

    def to(self, matrix: np.ndarray, received: np.ndarray | None) -> np.ndarray:
        """Return the distances (n, d) uint32 of the predicted numbers to those of a matrix."""
        steps = np.empty(matrix.shape, np.uint32)
        for rows in blocks(matrix.shape):
            steps[rows] = distances(matrix[rows], self.at(rows, received))
        return steps

    def corrected(self, steps: np.ndarray, received: np.ndarray | None) -> np.ndarray:
        """Return the matrix (n, d) float32 that has these distances to the predicted numbers: the inverse of `to`."""
        values = np.empty(steps.shape, np.float32)
        for rows in blocks(steps.shape):
            values[rows] = moved(self.at(rows, received), steps[rows])
        return values


def blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield the rows of a matrix in parts of about a quarter of a million numbers."""
    step = max(1, _BLOCK // max(1, shape[1]))
    return (slice(start, start + step) for start in range(0, shape[0], step))


def _ordered(values: np.ndarray) -> np.ndarray:
    """Return the places (uint32) of float32 numbers in the order of all of them; -0 comes before 0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    return bits.view(np.uint32) ^ ((bits >> 31).view(np.uint32) | np.uint32(0x80000000))


def distances(values: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return how many steps of float32 numbers are from their predictions: 0, -1, 1, -2, ... as 0, 1, 2, 3, ...

    >>> distances(np.float32([1, 1 + 2**-23, 1 - 2**-24]), np.float32([1, 1, 1])).tolist()
    [0, 2, 1]
    """
    steps = (_ordered(values) - _ordered(predicted)).view(np.int32)
    return ((steps << 1) ^ (steps >> 31)).view(np.uint32)


def moved(predicted: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the float32 numbers that have given `distances` to their predictions."""
    signed = (steps >> np.uint32(1)) ^ (np.uint32(0) - (steps & np.uint32(1)))
    places = _ordered(predicted) + signed
    below = (places.view(np.int32) >> 31).view(np.uint32)  # all ones where the number is not negative
    return (places ^ (~below | np.uint32(0x80000000))).view(np.float32)


def best(matrix: np.ndarray, received: np.ndarray | None, column: np.ndarray | None) -> tuple[Prediction, bool]:
    """Return the prediction that is likely to need the fewest bits, and whether its only column is the given one.

    Args:
        matrix: (n, d) float32.
        received: the tensor that the client had received under the same name, of the same shape; None: there is none.
        column: (n,) float32, a likely column, which costs nothing: the layer's bias, whose gradient is that of the
            weights with an input of 1; None: there is none.
    """
    some = _spread(len(matrix), _TRIED)
    few, before = matrix[some], None if received is None else received[some]
    width, one = matrix.shape[1], Prediction.none(len(few), matrix.shape[1])
    stored = 2 * _NUMBER / max(1, len(matrix))  # bits a number that a row v_k costs, which the file holds in float64
    choices = [(_bits(one, few, None), _Choice(0.0, None))]
    if before is not None:
        choices.append((_bits(replace(one, scale=1.0), few, before), _Choice(1.0, None)))
    if min(matrix.shape) >= _NARROWEST and width <= _WIDEST and bool(np.isfinite(matrix).all()):
        if column is not None and bool(np.isfinite(column).all()):
            for row in _rows_along(matrix, column):
                along = Prediction(0.0, column[some][:, None], row)
                choices.append((_bits(along, few, None) + stored, _Choice(0.0, row, given=True)))
        if min(choices, key=_first)[0] > _ALMOST:
            usable = received is not None and bool(np.isfinite(received).all())
            for base, rest in ((None, None), (received, before)) if usable else ((None, None),):
                for scale, axes in _axes_tried(matrix, base):
                    fitted = _fitted(few, rest, scale, axes)
                    costs = len(axes) * (stored + _NUMBER / width)
                    choices.append((_bits(fitted, few, rest) + costs, _Choice(scale, axes)))
    chosen = min(choices, key=_first)[1]
    if chosen.axes is None:
        return Prediction.none(*matrix.shape, scale=chosen.scale), False
    if chosen.given and column is not None:
        return Prediction(0.0, column[:, None], chosen.axes), True
    return _fitted(matrix, received if chosen.scale else None, chosen.scale, chosen.axes), False


@dataclass(frozen=True, eq=False)
class _Choice:
    """Possible prediction: the factor of the received matrix and the rows of the products, if there are any."""

    scale: float
    axes: np.ndarray | None
    given: bool = False


def _first(choice: tuple[float, _Choice]) -> float:
    return choice[0]


def _bits(prediction: Prediction, matrix: np.ndarray, received: np.ndarray | None) -> float:
    """Estimate the bits that a number needs with a prediction."""
    return float(np.log2(prediction.to(matrix, received) + 1.0).mean())


def _spread(length: int, maximum: int) -> np.ndarray:
    """Return the places of some rows, spread evenly."""
    return np.linspace(0, length - 1, min(length, maximum)).astype(np.int64)


def _rows_along(matrix: np.ndarray, column: np.ndarray) -> list[np.ndarray]:
    """Return the likely rows (1, d) of a product with a given column: rounded to float32, and as estimated."""
    some = _spread(len(matrix), _ROWS)
    wide = column[some].astype(np.float64)
    norm = float(wide @ wide)
    if not norm > 0:
        return []
    row = (wide @ matrix[some].astype(np.float64) / norm)[None]
    with np.errstate(over="ignore"):
        return [row.astype(np.float32).astype(np.float64), row]


def _axes_tried(matrix: np.ndarray, received: np.ndarray | None) -> list[tuple[float, np.ndarray]]:
    """Return factors of the received matrix, each with the rows (r, d) of the products, for r = 1, 2, 4, ...

    The rows are the principal axes of the change. Decay changes a matrix along all axes, so its factor is estimated
    from what the first axes leave, and the axes again without it. Where even the most axes leave half of the change,
    there is nothing to try: it would save a bit of a number, or less.
    """
    some = _spread(len(matrix), _ROWS if matrix.shape[1] <= _SLIM else _SLIM)
    after = matrix[some].astype(np.float64)
    before = np.zeros_like(after) if received is None else received[some].astype(np.float64)
    first = 1.0 + _ratio(after - before, before) if received is not None else 0.0
    axes, left = _axes(after - first * before, _MOST_PRODUCTS)
    if left > _HOPELESS:
        return []
    guesses = []
    for rank in (1, 2, 4, 8, _MOST_PRODUCTS):
        scale, chosen = first, axes[:rank]
        for _ in range(_TIMES if received is not None else 0):
            rest, last = before - (before @ chosen.T) @ chosen, scale
            scale = 1.0 + _ratio(after - before, rest)
            chosen, _ = _axes(after - scale * before, rank)
            if abs(scale - last) < _SETTLED:
                break
        guesses.append((scale, chosen))
        if rank * _NARROWEST >= min(matrix.shape):
            break
    return guesses


def _ratio(change: np.ndarray, along: np.ndarray) -> float:
    """Return the factor of one matrix in another, by least squares."""
    norm = float((along * along).sum())
    return float((along * change).sum()) / norm if norm > 0 else 0.0


def _axes(change: np.ndarray, rank: int) -> tuple[np.ndarray, float]:
    """Return the first principal axes (r, d) of rows, and the share of the rows' length that they leave, in [0, 1]."""
    tall = len(change) > change.shape[1]
    values, vectors = np.linalg.eigh(change.T @ change if tall else change @ change.T)
    total = float(values.sum())
    if not total > 0:
        return np.zeros((0, change.shape[1])), 0.0
    kept = vectors[:, ::-1][:, :rank].T
    axes = kept if tall else kept @ change
    length = np.sqrt((axes * axes).sum(axis=1))
    axes = axes[length > 0] / length[length > 0, None]
    return np.ascontiguousarray(axes), float(np.sqrt(max(0.0, values[:-rank].sum() / total)))


def _fitted(matrix: np.ndarray, received: np.ndarray | None, scale: float, axes: np.ndarray) -> Prediction:
    """Return the prediction with the least-squares columns for given axes."""
    left = np.empty((len(matrix), len(axes)), np.float32)
    for rows in blocks(matrix.shape):
        change = matrix[rows].astype(np.float64)
        if received is not None:
            change -= scale * received[rows].astype(np.float64)
        with np.errstate(over="ignore"):  # what overflows is predicted as 0
            left[rows] = change @ axes.T
    return Prediction(scale, left, axes)


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
    coded = (name for name, value in tensors.items() if value.dtype == np.float32 and value.size >= _LEAST)
    chosen = [] if ours else [*coded]
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
    parts, packed = _parts(prediction, given, matrix, known)
    if sum(part.nbytes for part in parts.values()) > value.nbytes:  # bits are estimated; planes alone never take more
        prediction, given = Prediction.none(*matrix.shape), False
        parts, packed = _parts(prediction, given, matrix, known)
    coded = _Coded(
        name=name,
        shape=list(value.shape),
        received=bool(prediction.scale),
        scale=prediction.scale.hex(),
        products=len(prediction.right),
        column=column if given else "",
        packed=packed,
    )
    return parts, coded


def _parts(
    prediction: Prediction, given: bool, matrix: np.ndarray, received: np.ndarray | None
) -> tuple[dict[str, np.ndarray], list[bool]]:
    """Return what the file holds of a tensor, and which of its planes are compressed."""
    steps = prediction.to(matrix, received)
    planes = np.ascontiguousarray(steps.astype("<u4", copy=False)).view(np.uint8).reshape(-1, 4)
    parts, packed = {}, []
    for number in range(4):
        plane = np.ascontiguousarray(planes[:, number])
        small = _deflated(plane)
        parts[f"plane{number}"] = plane if small is None else np.frombuffer(small, np.uint8)
        packed.append(small is not None)
    if len(prediction.right):
        parts |= {"right": prediction.right} | ({} if given else {"left": prediction.left})
    return parts, packed


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
    if left is None or right is None or not 1 <= rank <= _MOST_PRODUCTS or right.shape != (rank, size[1]):
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
            full = stream.decompress(plane.tobytes(), size + 1)  # bounds a file that decompresses to much more
        except zlib.error as error:
            raise ValueError(f"{name} cannot be decompressed ({error})") from error
        plane = np.frombuffer(full, np.uint8)
    if len(plane) != size:
        raise ValueError(f"{name} has {len(plane)} bytes, not {size}")
    return plane
