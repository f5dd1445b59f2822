"""Arrays of a message: what NumPy writes is read as NumPy reads it, and a changed one is so too, or is refused."""

from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.lib import format as npy

from flfw.messages.npy import packed, read
from flfw.messages.wire import deflate, inflate, pack, unpack, views
from tests.properties.message_changes import changed_array
from tests.properties.reading import require_refused_or_valid

TYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
SHAPES = st.one_of(
    npst.array_shapes(min_dims=2, max_dims=3, min_side=2, max_side=4),
    npst.array_shapes(min_dims=0, min_side=0, max_side=4),
    st.sampled_from(((1,) * 32, (2, 0, 4))),
)


@st.composite
def arrays(draw: st.DrawFn, types: tuple[str, ...] = TYPES) -> np.ndarray:
    """Arrays of plain numbers, in the order of C or of Fortran."""
    value = draw(npst.arrays(np.dtype(draw(st.sampled_from(types))), draw(SHAPES)))
    return np.asarray(value, order=draw(st.sampled_from(("C", "F"))))


def by_numpy(data: bytes) -> np.ndarray:
    return np.load(BytesIO(data), allow_pickle=False)


def require_equal(result: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(result, expected)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)


@given(arrays(), st.sampled_from([(1, 0), (2, 0), (3, 0)]))
def test_what_numpy_writes_is_read_as_numpy_reads_it(value: np.ndarray, version: tuple[int, int]) -> None:
    file = BytesIO()
    npy.write_array(file, value, version)
    result, expected = read(made(file.getvalue())), by_numpy(file.getvalue())
    require_equal(result, expected)
    assert result.size == 0 or result.strides == expected.strides
    assert not result.flags.writeable


@given(arrays(), st.booleans())
def test_what_is_packed_is_what_flower_writes(value: np.ndarray, late: bool) -> None:
    ours = packed(value, late=late)
    require_equal(read(ours), value)
    assert ours.data == Array.from_numpy_ndarray(np.asarray(value, order="C")).data


@given(st.dictionaries(st.text(max_size=5), arrays(("?", "i4", "i8", "u1", "f2", "f4", "f8")), max_size=3))
def test_tensors_come_back_as_they_were_packed(values: dict[str, np.ndarray]) -> None:
    import torch

    record = pack({name: torch.from_numpy(value.copy()) for name, value in values.items()})
    tensors, seen = unpack(record), views(record)
    assert list(tensors) == list(seen) == list(values)
    for name, value in values.items():
        require_equal(tensors[name].numpy(), value)
        require_equal(seen[name], value)


def made(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype="float32", shape=(2,), stype=stype, data=data)


WHOLE = Array.from_numpy_ndarray(np.arange(6, dtype="<f4").reshape(2, 3))


@given(changed_array(WHOLE))
def test_a_changed_array_is_refused_or_read_as_numpy_reads_it(array: Array) -> None:
    result: Any = require_refused_or_valid(lambda: read(array), refusals=(ValueError,))
    if result is not None:
        require_equal(result, by_numpy(array.data))


HEADS = st.sampled_from((b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", WHOLE.data[:60], b"\x80\x04", b"PK\x03\x04"))


@given(st.tuples(HEADS, st.binary(max_size=200)).map(b"".join))
@example(b"\x80\x04.")
@example(b"PK\x03\x04" + bytes(60))  # a zip file, which NumPy opens
def test_any_bytes_are_refused_or_an_array(data: bytes) -> None:
    result: Any = require_refused_or_valid(lambda: read(made(data)), refusals=(ValueError,))
    assert result is None or result.nbytes < len(data)


@given(npst.arrays(np.int32, npst.array_shapes(min_dims=2, max_dims=2, max_side=6)), st.data())
def test_integers_come_back_as_they_were_deflated_and_a_changed_stream_is_refused_or_read(
    columns: np.ndarray, data: st.DataObject
) -> None:
    stream, planes = deflate(columns)
    np.testing.assert_array_equal(inflate(stream, planes, columns.shape[1]), columns)
    at = data.draw(st.integers(0, len(stream) - 1))
    bad = np.delete(stream, at) if data.draw(st.booleans()) else np.insert(stream, at, data.draw(st.integers(0, 255)))
    counts = data.draw(st.sampled_from((planes, planes[::-1].copy(), planes + 1, np.full_like(planes, 255))))
    result: Any = require_refused_or_valid(lambda: inflate(bad, counts, columns.shape[1]), refusals=(ValueError,))
    assert result is None or result.shape == columns.shape
