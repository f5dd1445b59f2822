"""Arrays in NumPy's format whose sender may lie: the header is matched, not evaluated, and the size is counted.

NumPy's own reader parses the header as Python, allocates what it announces, and ignores what stands behind the array.
What it raises on a made-up header depends on Python's parser: `SyntaxError`, `RecursionError`, `OverflowError` and
others. Here everything but one array of plain numbers, to the byte, is a `ValueError`.
"""

from __future__ import annotations

import re
from math import prod

import numpy as np
from flwr.app import Array

_MAGIC = b"\x93NUMPY"
_WIDTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}  # bytes of the header's length, by version
_SHAPE = rb"\((|\d{1,12},|\d{1,12}(?:, \d{1,12}){1,31})\)"  # at most 32 axes
_HEADER = re.compile(rb"\{'descr': '([^']{2,4})', 'fortran_order': (True|False), 'shape': " + _SHAPE + rb", \} *\n")
_TYPES = {
    np.dtype(name).str.encode(): np.dtype(name)
    for name in ("?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")
}


def read(array: Array) -> np.ndarray:
    """Return a message's array without a copy; it is read-only.

    Raises:
        ValueError: it is not one array of plain numbers in NumPy's format, little endian, or has other bytes too.
    """
    data = array.data
    width = _WIDTHS.get(data[6:8])
    if array.stype != "numpy.ndarray" or not data.startswith(_MAGIC) or width is None:
        raise ValueError("no array in NumPy's format")
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    header = _HEADER.fullmatch(data, 8 + width, start)
    dtype = _TYPES.get(header[1]) if header else None
    if header is None or dtype is None:
        raise ValueError("a header that does not describe plain numbers")
    shape = tuple(int(size) for size in header[3].split(b",") if size)
    if len(data) - start != prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data) - start} bytes for {dtype}{shape}")
    if dtype == np.bool_ and np.frombuffer(data, np.uint8, offset=start).max(initial=0) > 1:
        raise ValueError("truth values other than 0 and 1")
    return np.ndarray(shape, dtype, data, start, order="F" if header[2] == b"True" else "C")
