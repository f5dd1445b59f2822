"""The reader of types that most files share: a value is read if, and only if, it has the type to the letter."""

import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from hypothesis import example, given
from hypothesis import strategies as st

from flfw.files.typed import from_json
from tests.properties.changes import changed_json, odd
from tests.properties.reading import require_refused_or_valid


def is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def is_number(value: Any) -> bool:
    return is_whole(value) or (type(value) is float and isfinite(value))


def is_word(value: Any) -> bool:
    return type(value) is str and not any("\ud800" <= one <= "\udfff" for one in value)


TYPES: list[tuple[Any, Any]] = [
    (int, is_whole),
    (float, is_number),
    (str, is_word),
    (bool, lambda value: type(value) is bool),
    (int | None, lambda value: value is None or is_whole(value)),
    (Literal["a", "b"], lambda value: value in ("a", "b")),
    (list[int], lambda value: isinstance(value, list) and all(map(is_whole, value))),
    (dict[str, bool], lambda value: isinstance(value, dict) and all(type(one) is bool for one in value.values())),
]
SCALARS = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=3) | odd()


@given(SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from("ab"), SCALARS, max_size=2))
@example(True)
@example([1, True])
@example({"a": 1})
@example(2**63)
@example("\ud800")
def test_a_value_is_read_if_it_has_the_type(value: Any) -> None:
    data = json.dumps(value).encode()
    written = json.loads(data)
    for shape, fits in TYPES:
        got = require_refused_or_valid(lambda shape=shape: (from_json(data, shape, "a test"),))
        assert (got is not None) == fits(written), shape
        assert got is None or repr(got) == repr((written,))


@dataclass(frozen=True)
class Inner:
    place: Path
    pair: tuple[int, str]


@dataclass(frozen=True)
class Outer:
    many: tuple[Inner, ...]
    share: float
    known: bool = False


INNER = st.builds(Inner, st.text("abc/.", min_size=1).map(Path), st.tuples(st.integers(-9, 9), st.text("é\n\x1b")))
OUTER = st.builds(
    Outer, st.lists(INNER, max_size=2).map(tuple), st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)


@given(OUTER, st.data())
def test_a_table_is_read_as_it_was_written_and_a_changed_one_is_refused_or_one(
    outer: Outer, data: st.DataObject
) -> None:
    written = json.dumps(asdict(outer), default=str).encode()
    assert from_json(written, Outer, "a test") == outer
    changed = data.draw(changed_json(written))
    got: Any = require_refused_or_valid(lambda: from_json(changed, Outer, "a test"))
    assert got is None or (
        type(got.known) is bool
        and is_number(got.share)
        and all(type(one.pair[0]) is int and is_word(one.pair[1]) and isinstance(one.place, Path) for one in got.many)
    )
