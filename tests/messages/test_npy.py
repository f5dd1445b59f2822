"""Arrays whose sender may lie: what NumPy writes is read as NumPy reads it, and everything else is a ValueError."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from random import Random

import numpy as np
import pytest
from flwr.app import Array
from numpy.lib import format as npy

from flfw.messages.npy import read

TYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
SHAPES = ((), (0,), (3,), (2, 3), (2, 0, 4), (1,) * 32)


def made(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype="float32", shape=(2,), stype=stype, data=data)


def headed(header: bytes, payload: bytes = b"", version: bytes = b"\x01\x00") -> Array:
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return made(b"\x93NUMPY" + version + length + header + payload)


def described(descr: str = "<f4", order: str = "False", shape: str = "(2,)", rest: str = ", }\n") -> bytes:
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}{rest}".encode()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_flower_writes_is_read_as_numpy_reads_it(name: str, shape: tuple[int, ...], order: str) -> None:
    value = np.asarray(np.random.default_rng(0).integers(0, 2, shape), dtype=name, order=order)  # type: ignore[call-overload]
    array = Array.from_numpy_ndarray(value)
    result, expected = read(array), np.load(BytesIO(array.data), allow_pickle=False)
    np.testing.assert_array_equal(result, expected)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.size == 0 or result.strides == expected.strides
    assert not result.flags.writeable


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_are_read(version: tuple[int, int]) -> None:
    file = BytesIO()
    npy.write_array(file, np.arange(6.0).reshape(2, 3), version)
    np.testing.assert_array_equal(read(made(file.getvalue())), np.arange(6.0).reshape(2, 3))


EIGHT = bytes(8)


@pytest.mark.parametrize(
    "array",
    [
        made(b""),
        made(b"\x93NUMPY"),
        made(b"\x93NUMPY\x01\x00"),
        made(b"\x80\x04."),
        made(b"PK\x03\x04" + bytes(60)),  # a zip file, which NumPy opens
        Array.from_numpy_ndarray(np.array(["text"])),
        Array.from_numpy_ndarray(np.zeros(2, ">f4")),
        Array.from_numpy_ndarray(np.zeros(2, [("a", "<f4")])),
        Array.from_numpy_ndarray(np.zeros(2, "<M8[s]")),
        headed(described(), EIGHT + b"\0"),
        headed(described(), EIGHT[1:]),
        headed(described("|O"), EIGHT),
        headed(described("<f0"), EIGHT),
        headed(described("|b1"), b"\1\2"),
        headed(described(shape="(-2,)"), EIGHT),
        headed(described(shape="(2.0,)"), EIGHT),
        headed(described(shape="(True, 2)"), EIGHT),
        headed(described(shape=f"({'9' * 500},)"), EIGHT),
        headed(described(shape=f"({'9' * 12},)"), EIGHT),
        headed(described(shape="(0, " + ", ".join(["999999999999"] * 30) + ")")),  # NumPy: more than memory addresses
        headed(described(shape="(" + "1, " * 32 + "2)"), EIGHT),
        headed(described(shape="(" * 5000 + "2," + ")" * 5000), EIGHT),  # RecursionError in Python's parser
        headed(described(rest=", 'x': 1 << 1}\n"), EIGHT),
        headed(described(order="None"), EIGHT),
        headed(b"{'descr': '<f4", EIGHT),  # SyntaxError
        headed(b"\xff" * 40, EIGHT),
        headed(described(), EIGHT, b"\x09\x00"),
        made(Array.from_numpy_ndarray(np.zeros(2)).data, stype="torch.tensor"),
    ],
)
def test_everything_else_is_a_value_error(array: Array) -> None:
    with pytest.raises(ValueError):
        read(array)


def flipped(data: bytearray, rng: Random) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def cut(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data)) :]


def doubled(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[: rng.randrange(1, 40)]


@pytest.mark.parametrize("change", [flipped, cut, doubled])
def test_ten_thousand_mutations_are_read_as_numpy_reads_them_or_refused(
    change: Callable[[bytearray, Random], None],
) -> None:
    rng, whole = Random(0), Array.from_numpy_ndarray(np.arange(6, dtype="<f4").reshape(2, 3)).data
    taken = 0
    for _ in range(10_000):
        data = bytearray(whole)
        change(data, rng)
        try:
            result = read(made(bytes(data)))
        except ValueError:
            continue
        taken += 1
        np.testing.assert_array_equal(result, np.load(BytesIO(data), allow_pickle=False))
    assert taken < 10_000
