"""Sizes in words."""

from __future__ import annotations


def in_units(size: float) -> str:
    """Format a number of bytes with a unit.

    >>> in_units(999), in_units(1_234_567_890)
    ('999 bytes', '1.2 GB')
    """
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
