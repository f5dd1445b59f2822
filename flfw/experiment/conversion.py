"""Conversion of values as a Python program gives them to those of a record, and their check by type."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import cache
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from flfw.errors import InputError
from flfw.files.paths import from_home
from flfw.files.typed import SchemaMismatchError, fit

_LARGEST = 2**63


def convert_fields(record: object) -> None:
    """Convert the fields of a new frozen record: one word to a tuple, text to a path, a mapping to assignments.

    A list becomes a tuple, a number or a truth of NumPy one of Python. `require_choices` checks fields with a choice of
    words.

    Raises:
        InputError: a value has another type; names the flag.
    """
    for name, kind in _kinds(type(record)).items():
        given = getattr(record, name)
        value = _converted(given, kind)
        if get_origin(kind) is not Literal and not (kind in (int, float) and _is_beyond(value)):
            value = _fitted(value, Path if Path in get_args(kind) and value is not None else kind, name)
            value = from_home(value) if isinstance(value, Path) else value
        if value is not given:
            object.__setattr__(record, name, value)


def require_choices(record: object) -> None:
    """Refuse a record with another value than the words that a field has to choose from.

    Raises:
        InputError: names the flag and its words.
    """
    for name, kind in _kinds(type(record)).items():
        if get_origin(kind) is Literal:
            _fitted(getattr(record, name), kind, name)


@cache
def _kinds(record: type) -> dict[str, Any]:
    """Return the types of a record's fields by name."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in dataclasses.fields(cast(Any, record))}


def _converted(value: Any, kind: Any) -> Any:
    """Convert a value to the type of a field, where it can be meant so; else return it as it is."""
    if get_origin(kind) is tuple:
        if isinstance(value, Mapping):
            return tuple(f"{name}={_word(setting)}" for name, setting in value.items())
        words = (value,) if isinstance(value, str) else value
        return tuple(words) if isinstance(words, list) else words
    if Path in get_args(kind) and isinstance(value, str | os.PathLike):
        return os.fspath(value) or None
    if kind in (int, float) and not isinstance(value, bool | int | float):
        if isinstance(value, Integral):
            return int(value)
        return float(value) if kind is float and isinstance(value, Real) else value
    if kind is bool and type(value).__name__ in ("bool", "bool_"):  # NumPy's names of its truths
        return bool(value)
    return value


def _is_beyond(value: Any) -> bool:
    """Return whether a number is infinite, none at all, or of more than 64 bits: a field's own check says its range."""
    return type(value) in (int, float) and not (isfinite(value) and abs(value) < _LARGEST)


def _word(setting: Any) -> str:
    """Return a setting as ``--set`` has it.

    >>> _word(True), _word(0.5)
    ('true', '0.5')
    """
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def _fitted(value: Any, kind: Any, name: str) -> Any:
    try:
        return fit(value, kind, name.replace("_", "-"))
    except SchemaMismatchError as error:
        raise InputError(f"Expected {error}.") from error
