"""Arrays whose sender may lie: what NumPy writes is read as NumPy reads it, and everything else is a ValueError."""

from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array

from flfw.messages.npy import read

TYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")


def made(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype="float32", shape=(2,), stype=stype, data=data)


def headed(header: bytes, payload: bytes = b"", version: bytes = b"\x01\x00") -> Array:
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return made(b"\x93NUMPY" + version + length + header + payload)


def described(descr: str = "<f4", order: str = "False", shape: str = "(2,)", rest: str = ", }\n") -> bytes:
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}{rest}".encode()


def test_each_type_is_read_as_numpy_reads_it() -> None:
    """Other shapes and orders, versions of the format, and changed bytes are in `tests.properties.test_arrays`."""
    for name in TYPES:
        array = Array.from_numpy_ndarray(np.asarray([[0, 1, 1], [1, 0, 1]], dtype=name, order="F"))
        result, expected = read(array), np.load(BytesIO(array.data), allow_pickle=False)
        np.testing.assert_array_equal(result, expected)
        assert (result.dtype, result.strides) == (expected.dtype, expected.strides)
        assert not result.flags.writeable


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
