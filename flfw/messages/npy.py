"""Arrays in NumPy's format whose sender may lie: the header is matched, not evaluated, and the size is counted.

NumPy's own reader parses the header as Python, allocates what it announces, and ignores what stands behind the array.
What it raises on a made-up header depends on Python's parser: `SyntaxError`, `RecursionError`, `OverflowError` and
others. Here everything but one array of plain numbers, to the byte, is a `ValueError`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any, final

import numpy as np
from flwr.app import Array
from numpy.lib import format as npy

_MAGIC = b"\x93NUMPY"
_STYPE = "numpy.ndarray"
_WIDTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}  # bytes of the header's length, by version
_SHAPE = rb"\((|\d{1,12},|\d{1,12}(?:, \d{1,12}){1,31})\)"  # at most 32 axes
_HEADER = re.compile(rb"\{'descr': '([^']{2,4})', 'fortran_order': (True|False), 'shape': " + _SHAPE + rb", \} *\n")
_TYPES = {
    np.dtype(name).str.encode(): np.dtype(name)
    for name in ("?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")
}


_LATE: ContextVar[bool] = ContextVar("late", default=False)


@final
class LateBytes:
    """Bytes of an array that are put together when somebody wants them in one piece, and then kept.

    Args:
        head: the bytes before the numbers.
        body: bytes of the numbers, as an array in somebody else's memory, which stay as they are.
    """

    def __init__(self, head: bytes, body: np.ndarray) -> None:
        self.head, self.body = head, body
        self._whole: bytes | None = None

    def __len__(self) -> int:
        return len(self.head) + len(self.body)

    def whole(self) -> bytes:
        """Return them in one piece."""
        if self._whole is None:
            self._whole = b"".join([self.head, self.body.data])
            self.body = np.frombuffer(self._whole, np.uint8, offset=len(self.head))
        return self._whole


@final
class LateArray(Array):
    """Array of a message that becomes an ordinary one when its bytes are read."""

    def __init__(self, dtype: str, shape: tuple[int, ...], stype: str, late: LateBytes) -> None:
        self.__dict__.update(dtype=dtype, shape=shape, stype=stype, late=late)

    def __getattr__(self, name: str) -> Any:
        late = self.__dict__.get("late")
        if name != "data" or (late is None and "data" not in self.__dict__):
            raise AttributeError(name)
        if late is not None:  # otherwise another thread has been here
            self.__dict__["data"] = late.whole()
            self.__dict__.pop("late", None)
            object.__setattr__(self, "__class__", Array)
        return self.__dict__["data"]

    def __setattr__(self, name: str, value: Any) -> None:
        _ = self.data
        setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        _ = self.data
        return self == other

    __hash__ = None  # type: ignore[assignment]


@contextmanager
def made_late() -> Iterator[None]:
    """Let arrays that are packed meanwhile have their bytes made late: they are to be read before they change."""
    token = _LATE.set(True)
    try:
        yield
    finally:
        _LATE.reset(token)


def packed(value: np.ndarray, *, late: bool | None = None) -> Array:
    """Make the array of a message, in NumPy's format, as Flower writes it.

    Args:
        value: the numbers.
        late: whether its bytes are made when they are read; None: within `made_late`.
    """
    value = np.asarray(value, order="C")
    name, head = _head(value.dtype, value.shape)
    body = value.reshape(-1).view(np.uint8)
    if _LATE.get() if late is None else late:
        return LateArray(name, tuple(value.shape), _STYPE, LateBytes(head, body))
    return Array(dtype=name, shape=tuple(value.shape), stype=_STYPE, data=b"".join([head, body.data]))


@lru_cache(maxsize=4096)  # each message has the same shapes
def _head(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[str, bytes]:
    """Return the name of a type, and the bytes before an array's numbers, in C's order, in NumPy's format."""
    head = BytesIO()
    npy.write_array_header_1_0(head, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    return str(dtype), head.getvalue()


def late_of(array: Array) -> LateBytes | None:
    """Return the bytes of an array that have not been made yet; None: they have been."""
    return array.__dict__.get("late")


def length(array: Array) -> int:
    """Count the bytes of an array, without making them."""
    late = late_of(array)
    return len(array.data if late is None else late)


def split(whole: np.ndarray) -> LateBytes | None:
    """Divide the bytes of an array into those before its numbers and the numbers; None: that is not possible."""
    begin = whole[:12].tobytes()
    width = _WIDTHS.get(begin[6:8])
    if not begin.startswith(_MAGIC) or width is None:
        return None
    start = 8 + width + int.from_bytes(begin[8 : 8 + width], "little")
    return LateBytes(whole[:start].tobytes(), whole[start:]) if start <= len(whole) else None


def read(array: Array) -> np.ndarray:
    """Return a message's array without a copy; it is read-only.

    Raises:
        ValueError: it is not one array of plain numbers in NumPy's format, little endian, or has other bytes too.
    """
    late = late_of(array)
    data = array.data if late is None else late.head
    width = _WIDTHS.get(data[6:8])
    if array.stype != _STYPE or not data.startswith(_MAGIC) or width is None:
        raise ValueError("no array in NumPy's format")
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    header = _HEADER.fullmatch(data, 8 + width, start)
    dtype = _TYPES.get(header[1]) if header else None
    if header is None or dtype is None:
        raise ValueError("a header that does not describe plain numbers")
    shape = tuple(int(size) for size in header[3].split(b",") if size)
    if (size := length(array) - start) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{size} bytes for {dtype}{shape}")
    if dtype == np.bool_ and (late.body if late else np.frombuffer(data, np.uint8, offset=start)).max(initial=0) > 1:
        raise ValueError("truth values other than 0 and 1")
    order = "F" if header[2] == b"True" else "C"
    if late is None:
        return np.ndarray(shape, dtype, data, start, order=order)
    numbers = np.ndarray(shape, dtype, late.body.data, order=order)
    numbers.flags.writeable = False
    return numbers
