"""Values of JSON and TOML whose writer may be anybody: a shape is given as a type, and everything else is refused.

The types are those of annotations: ``int``, ``list[str]``, ``Literal``, a dataclass, whose fields are the table's keys,
or a ``TypedDict``, which allows further keys. A number is finite, and a whole one has 64 bits. The refusal names file
and field.

A dataclass whose fields have new names keeps the old ones in ``EARLIER_NAMES``, by which files of earlier versions are
read.
"""

import json
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from flfw.errors import InputError

T = TypeVar("T")

_SHOWN = 80  # characters of a value in a message
_LIKE_OTHERS = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?|true|false|none", re.IGNORECASE)  # text to quote in a message
_LARGEST = 2**63
_WAY_OUT = "restore it"
_PLAIN: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    Path: "a path",
    types.NoneType: "nothing",
}


class SchemaMismatchError(ValueError):
    """Error: a value has not the form of a type; the message names field, form and value, without a full stop."""


@contextmanager
def readable(path: Path, way_out: str = _WAY_OUT) -> Iterator[None]:
    """Refuse a file in one line where its reading in the body fails.

    Raises:
        InputError: the body raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"Expected {path}, got none that can be read ({error.strerror}); {way_out}.") from error


def read_json(path: Path, shape: type[T], way_out: str = _WAY_OUT) -> T:
    """Read a file of JSON as a value of a type.

    Args:
        path: path of the file.
        shape: the type.
        way_out: words for the end of a refusal.

    Raises:
        InputError: the file cannot be read, is no JSON, or holds a value of another form.
    """
    with readable(path, way_out):
        data = path.read_bytes()
    return from_json(data, shape, path, way_out)


def read_toml(path: Path, way_out: str = _WAY_OUT) -> dict[str, Any]:
    """Read a file of TOML.

    Raises:
        InputError: the file cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Expected {path}, got none that can be read ({error.strerror}); {way_out}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected TOML in {path}, got none that can be read: {error}; {way_out}.") from error


def from_json(data: bytes, shape: type[T], source: object, way_out: str = _WAY_OUT) -> T:
    """Return JSON as a value of a type.

    Args:
        data: the JSON.
        shape: the type.
        source: the file or the message, for a refusal.
        way_out: words for the end of a refusal.

    Raises:
        InputError: it is no JSON, or a value of another form.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected JSON in {source}, got one which is damaged ({error}); {way_out}.") from error
    return fitted(value, shape, source, way_out)


def fitted(value: object, shape: type[T], source: object, way_out: str = _WAY_OUT) -> T:
    """Return a value of JSON or TOML as one of a type.

    Raises:
        InputError: it has another form.
    """
    try:
        return fit(value, shape)
    except SchemaMismatchError as error:
        raise InputError(f"Expected {error} in {source}; {way_out}.") from error


def fit(value: Any, shape: Any, field: str = "") -> Any:
    """Return a value as one of a type: lists as tuples, text as paths, tables as dataclasses, where the type says so.

    Args:
        value: the value.
        shape: the type.
        field: name of the value's field, for a refusal.

    Raises:
        SchemaMismatchError: it has another form.

    >>> fit({"a": [1, 2]}, dict[str, tuple[int, ...]])
    {'a': (1, 2)}
    >>> fit({"a": True}, dict[str, int])
    Traceback (most recent call last):
    flfw.files.typed.SchemaMismatchError: a as a whole number, got True
    """
    if shape in (Any, object):
        return value
    if shape in _PLAIN or shape is None:
        return _plain(value, shape or types.NoneType, field)
    origin, inner = get_origin(shape), get_args(shape)
    if origin is Literal:
        _require(value in inner and isinstance(value, type(inner[0])), " or ".join(map(str, inner)), value, field)
        return value
    if origin in (Union, types.UnionType):
        return _any(value, inner, field)
    if origin in (list, tuple, Sequence):
        return _list(value, origin, inner, field)
    if origin in (dict, Mapping):
        _require(isinstance(value, Mapping), "a table", value, field)
        return {_text(key, field): fit(item, inner[1], _under(field, key)) for key, item in value.items()}
    if is_dataclass(shape) or is_typeddict(shape):
        _require(isinstance(value, Mapping), "a table", value, field)
        return _table(value, shape, field)
    raise TypeError(f"no form is known for {shape}")


def _plain(value: Any, shape: Any, field: str) -> Any:
    """Return a value of one of the plain types."""
    whole = type(value) is int and abs(value) < _LARGEST
    fits = {
        int: whole,
        float: whole or (type(value) is float and isfinite(value)),
        Path: type(value) is str and "\0" not in value,
    }.get(shape, type(value) is shape)
    _require(fits, _PLAIN[shape], value, field)
    if type(value) is str:
        _text(value, field)
    return Path(str(value)) if shape is Path else value


def _text(value: object, field: str) -> str:
    """Return text that can be written again: half a surrogate pair cannot."""
    fits = type(value) is str and (value.isascii() or not any("\ud800" <= one <= "\udfff" for one in value))
    _require(fits, "text", ascii(value), field)
    return str(value)


def _any(value: Any, shapes: Sequence[Any], field: str) -> Any:
    refusals = []
    for shape in shapes:
        try:
            return fit(value, shape, field)
        except SchemaMismatchError as error:
            refusals.append(error)
    # Of a table and nothing, the table's own refusal says more.
    raise max(refusals, key=lambda error: (not str(error).startswith(f"{_named(field)} as "), len(str(error))))


def _list(value: Any, origin: Any, inner: Sequence[Any], field: str) -> Any:
    _require(isinstance(value, list | tuple), "a list", value, field)
    if origin is tuple and (len(inner) != 2 or inner[1] is not Ellipsis):
        _require(len(value) == len(inner), f"a list of {len(inner)}", value, field)
        return tuple(
            fit(item, shape, f"{field}[{at}]") for at, (item, shape) in enumerate(zip(value, inner, strict=True))
        )
    items = [fit(item, inner[0], f"{field}[{at}]") for at, item in enumerate(value)]
    return tuple(items) if origin is tuple else items


@cache
def _fields(shape: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the types of a table's keys, and the keys that it must have."""
    hints = get_type_hints(shape)
    if is_typeddict(shape):  # its own list of needed keys is wrong where annotations are not evaluated
        marked = get_type_hints(shape, include_extras=True)
        return hints, frozenset(name for name, hint in marked.items() if _is_needed(shape, hint))
    given = [field for field in fields(shape) if field.init]
    needed = (field.name for field in given if field.default is MISSING and field.default_factory is MISSING)
    return {field.name: hints[field.name] for field in given}, frozenset(needed)


def _is_needed(shape: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    return origin is Required or (origin is not NotRequired and shape.__total__)


def _table(value: Mapping[Any, Any], shape: Any, field: str) -> Any:
    known, needed = _fields(shape)
    value = _renamed(value, earlier_names(shape), field)
    for name in needed:
        if name not in value:
            raise SchemaMismatchError(f"{_under(field, name)}, got none")
    made = {}
    for name, item in value.items():
        key = _text(name, field)
        if key not in known and not is_typeddict(shape):
            raise SchemaMismatchError(f"{', '.join(known)}{f' in {field}' if field else ''}, got {_shown(key)}")
        made[key] = fit(item, known.get(key, Any), _under(field, key))
    return made if is_typeddict(shape) else shape(**made)


def _renamed(value: Mapping[Any, Any], earlier: Mapping[str, str], field: str) -> Mapping[Any, Any]:
    """Return a table with the new names of its keys; a key under both of its names is refused."""
    for old, new in earlier.items():
        if old in value and new in value:
            raise SchemaMismatchError(f"{_under(field, new)} alone, got {old} too")
    return {earlier.get(name, name): item for name, item in value.items()} if earlier else value


def earlier_names(shape: type) -> dict[str, str]:
    """Return the name of today of each earlier field of a dataclass, those of its bases among them."""
    return {old: new for kind in shape.__mro__ for old, new in vars(kind).get("EARLIER_NAMES", {}).items()}


def _under(field: str, key: object) -> str:
    return f"{field}.{key}" if field else str(key)


def _require(holds: bool, form: str, value: object, field: str) -> None:
    if not holds:
        marks = "'" if isinstance(value, str) and _LIKE_OTHERS.fullmatch(value) else ""
        raise SchemaMismatchError(f"{_named(field)} as {form}, got {marks}{_shown(value)}{marks}")


def _named(field: str) -> str:
    return _shown(field) if field else "a value"


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10 * _LARGEST:
        return "a number of many digits"  # Python refuses to write it
    words = "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list | tuple) else str(value)
    return f"{words[:_SHOWN]}..." if len(words) > _SHOWN else words or ("nothing" if value is not None else "None")
