"""Digits of printed bounds: an upper bound is rounded up, a lower one down, so that what is printed holds as well."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isfinite

_DUST = 1e-9  # relative; of float arithmetic, in which 0.1 + 0.2 is above 0.3


def at_most(value: float, digits: int = 3) -> str:
    """Format an upper bound with so many significant digits.

    >>> [at_most(value) for value in (2.7541, 4.0, 0.1 + 0.2, 1234.5, 0.00012341)]
    ['2.76', '4', '0.3', '1.24e+03', '0.000124']
    """
    return _rounded(value, 1 - _DUST, digits, ROUND_CEILING)


def at_least(value: float, digits: int = 3) -> str:
    """Format a lower bound with so many significant digits.

    >>> [at_least(value) for value in (2.7589, 4.0, 0.0)]
    ['2.75', '4', '0']
    """
    return _rounded(value, 1 + _DUST, digits, ROUND_FLOOR)


def _rounded(value: float, dust: float, digits: int, rounding: str) -> str:
    if not isfinite(value):
        return f"{value:g}"
    return f"{float(Context(digits, rounding).create_decimal(Decimal(value * dust))):.{digits}g}"
