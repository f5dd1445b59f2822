"""Plan of a table's columns: its files as TOML, the table's rows by it, and the choice of those for testing.

A file has a whole plan, or settings of a table alone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from flfw.data.files import patients
from flfw.data.files.cache import digest
from flfw.data.files.columns import Column, NumberTarget, TableSchema
from flfw.data.tables import column_types, written_values
from flfw.data.tables.column_types import ColumnValues
from flfw.data.tables.names import TableName, TableSettings
from flfw.data.tables.reading import Table
from flfw.data.tables.written_values import DecimalSigns
from flfw.errors import InputError, abridged, require
from flfw.files.typed import read_toml

KEPT = "columns.toml"
"""Name of the plan in the folder of a run."""

_HEAD = """\
# Plan of a table's columns: what becomes of each, in this order. low and high are what 0 and 1 stand for.
# public = true says that nothing below was computed from anybody's private rows.
"""


def read_plan(path: Path) -> TableSchema | None:
    """Read a whole plan; None where the file has no table ``columns``, but settings.

    Raises:
        InputError: the file cannot be read, or is no plan.
    """
    entries = read_toml(path)
    return TableSchema.from_dict(entries, path) if "columns" in entries else None


def read_settings(path: Path, given: TableSettings) -> TableSettings:
    """Return settings with those of a file where none was given; a list may be an array.

    Raises:
        InputError: the file cannot be read, or a setting is unknown.
    """
    usual, known = TableSettings(), {field.name for field in fields(TableSettings)} - {"columns"}
    made: dict[str, Any] = {}
    for key, value in read_toml(path).items():
        if key not in known:
            raise InputError(f"Expected settings among {', '.join(sorted(known))}, or a plan, in {path}, got {key}.")
        value = ",".join(map(str, value)) if isinstance(value, list) else value
        if type(value) is not type(getattr(usual, key)):
            raise InputError(f"Expected {type(getattr(usual, key)).__name__} for {key} in {path}, got {value!r}.")
        if getattr(given, key) == getattr(usual, key):
            made[key] = value
    return replace(given, **made)


def text(schema: TableSchema) -> str:
    """Return a plan as TOML."""
    # Notes on kept columns are those of one file.
    entries = replace(schema, columns=tuple(replace(c, note="") if c.width else c for c in schema.columns)).as_dict()
    columns: Mapping[str, Mapping[str, Any]] = entries.pop("columns")
    lines = [f"{key} = {_value(value)}" for key, value in entries.items()]
    for name, column in columns.items():
        lines += ["", f"[columns.{json.dumps(name)}]", *(f"{key} = {_value(value)}" for key, value in column.items())]
    return _HEAD + "\n".join([*lines, ""])


def _value(value: object) -> str:
    # JSON's text, numbers, booleans and lists are TOML's as well, but for one sign of control.
    return json.dumps(value).replace("\x7f", "\\u007f")


def stated(ranges: Sequence[str], names: Sequence[str], table: TableName) -> TableSchema:
    """Return the public plan that a user states; nothing in it is computed from a row.

    A cell may be missing or, in a category, another word, as nobody is to know from the plan whether one is.

    Args:
        ranges: ``age=0:120`` for numbers, ``seen=2020-01-01:2029-12-31`` for days, ``sex=f,m`` for categories; a name
            may be a pattern such as ``gene_*``.
        names: all columns, in the order of the features.
        table: names the target, the columns that are dropped, and the patients' column.

    Raises:
        InputError: a column is neither stated nor dropped, or stated twice, or a range is none.
    """
    open_names = to_state(names, table)
    features = [name for name in names if name not in (table.target, table.settings.patient)]
    columns = {name: Column(name, "dropped", note="as asked") for name in features if name not in open_names}
    for word in ranges:
        pattern, _, given = word.partition("=")
        fits = [name for name in open_names if name == pattern or fnmatchcase(name, pattern)]
        if not fits or not columns.keys().isdisjoint(fits):
            rest = ", ".join(name for name in open_names if name not in columns) or "none"
            raise InputError(f"Expected COLUMN=RANGE once for each column, got {word}; not yet stated: {rest}.")
        columns |= {name: _stated(name, given) for name in fits}
    if without := [name for name in open_names if name not in columns]:
        rest = f"{', '.join(without)}; state these too, or leave columns out by --set {table.prefix}.drop=NAME,NAME"
        raise InputError(f"Expected a range of each column for --public, got none of {rest}.")
    made, target = tuple(columns[name] for name in features), columns[table.target]
    require(target.kind != "date", f"numbers or classes of target {table.target}", kind=target.kind)
    number, task = None, "classification" if target.categories else "regression"
    if not target.categories:
        cuts = tuple(np.linspace(target.low, target.high, column_types.BANDS + 1)[1:-1].tolist())
        middle, deviation = (target.low + target.high) / 2, (target.high - target.low) / 12**0.5
        number = NumberTarget(table.target, middle, deviation, cuts, target.unit)
    return TableSchema(made, table.target, task, target.categories, number, table.settings.patient, public=True)


def to_state(names: Sequence[str], table: TableName) -> list[str]:
    """Return the columns whose ranges a user states: all but those that are dropped and the patients'."""
    left = table.settings.chosen("drop", [name for name in names if name != table.target])
    return [name for name in names if name not in (*left, table.settings.patient)]


def _stated(name: str, text: str) -> Column:
    low, _, high = text.partition(":")
    number = re.fullmatch(r"([+-]?[\d.]+(?:[eE][+-]?\d+)?) ?((?:[^\W\d_]|[%‰°$€£¥₹])\S*)?", high)  # 120, 60%, 200 mg/dL
    if number:
        with suppress(ValueError):
            given = float(low), float(number[1])
            return Column(name, "numeric", *given, missing=True, fill=0.5, unit=number[2] or "")
    with suppress(ValueError):
        first, last = (float((date.fromisoformat(day) - date(1970, 1, 1)).days) for day in (low, high))
        return Column(name, "date", first, last, missing=True, fill=0.5)
    words = tuple(word.strip() for word in text.split(","))
    if len(words) < 2 or re.fullmatch(r"[-+\d.,]+:[-+\d.,]+", text):  # 0:1,000 is no list
        raise InputError(f"Expected LOW:HIGH (number or day, LOW first) or WORD,WORD for column {name}, got {text!r}.")
    return Column(name, "categorical", categories=words, other=True, missing=True)


def for_sites(schema: TableSchema) -> TableSchema:
    """Return a plan for rows of other sites, with features for values that these rows do not have."""
    kept = [column for column in schema.columns if column.width]
    wider = {c.name: replace(c, missing=True, other=c.kind == "categorical", absent=0.0) for c in kept}
    return replace(schema, columns=tuple(wider.get(column.name, column) for column in schema.columns))


def keep(schema: TableSchema | None, folder: Path) -> None:
    """Write a table's plan into the folder of a run, for its report; nothing of other data."""
    if schema is not None:
        (folder / KEPT).write_text(text(schema), encoding="utf-8")
        (folder / KEPT).chmod(0o600)  # least and greatest values, and rare categories, are somebody's


def kept(folder: Path) -> TableSchema | None:
    """Return the plan in the folder of a run; None where there is none.

    Raises:
        InputError: it is damaged.
    """
    return read_plan(folder / KEPT) if (folder / KEPT).is_file() else None


def plan_digest(schema: TableSchema) -> str:
    """Return a digest of a plan, 16 hexadecimal digits: the same for plans that encode rows alike."""
    columns = tuple(replace(column, note="", absent=0.0) for column in schema.columns)
    same = TableSchema.from_dict(replace(schema, columns=columns).as_dict(), "a plan")  # with whole numbers as others
    return digest(json.dumps(same.as_dict(), sort_keys=True))


_EVERY = 5  # one row in so many is for testing


def tested(labels: np.ndarray, group: np.ndarray | None, by_class: bool) -> np.ndarray:
    """Choose the test rows (N,) of bool: from the second on, every fifth of a class or of all, or every fifth patient.

    Args:
        labels: (N,) classes.
        group: (N,) patients; None: they are not known.
        by_class: whether labels are classes.
    """
    if group is not None:
        return patients.tested(labels, group)
    if not by_class:
        return np.arange(len(labels)) % _EVERY == 1
    chosen = np.concatenate([np.flatnonzero(labels == label)[1::_EVERY] for label in np.unique(labels)])
    return np.isin(np.arange(len(labels)), chosen)


def planned_target(rows: Table, schema: TableSchema, settings: TableSettings, signs: DecimalSigns) -> ColumnValues:
    """Return the values of a plan's target: numbers, or the words of classes."""
    words, name = rows[schema.target], schema.target
    if schema.number is None:
        return column_types.given_values(name, words, "categorical", settings, signs, schema.classes)
    read = column_types.given_values(name, words, "numeric", settings, signs)
    column_types.require_unit(name, read, schema.number.unit)
    return read


def labels_of(target: ColumnValues, schema: TableSchema, path: Path) -> np.ndarray:
    """Return labels (N,) of a target without missing values: int64 of classes, float32 of a regression, standardised.

    Raises:
        InputError: a word is no class of the plan.
    """
    if schema.number is not None:
        return ((target.values - schema.number.mean) / schema.number.std).astype(np.float32)
    strange = target.values[~np.isin(target.values.astype(str), schema.classes)]
    if len(strange):
        known = ", ".join(schema.classes[:12])
        raise InputError(f"Expected classes {known} of target {schema.target} in {path}, got {strange[0]!r}.")
    label = {name: index for index, name in enumerate(schema.classes)}
    return np.array([label[word] for word in target.values], dtype=np.int64)


def require_columns(rows: Table, requested: list[str], path: Path) -> None:
    """Refuse a table whose columns are not the ones that are asked for; their order is free.

    Raises:
        InputError: naming those that are absent and those that are too many.
    """
    got = list(rows)
    wrong = {
        "without": [n for n in requested if n not in set(got)],
        "with": [n for n in got if n not in set(requested)],
    }
    words = [f"{how} {abridged(names, 8)}" for how, names in wrong.items() if names]
    if words:
        raise InputError(
            f"Expected the {len(requested)} columns of the plan in {path}, got a table {' and '.join(words)}."
        )


def patients_of(
    tables: Sequence[Table], column: str, settings: TableSettings, files: Sequence[Path]
) -> np.ndarray | None:
    """Return the patients (N,) int64 of the rows of all tables together; None: no column names them.

    Raises:
        InputError: a row names none.
    """
    if not column:
        return None
    named = [column_types.without_missing(table[column], settings) for table in tables]
    for words, path in zip(named, files, strict=True):
        if len(without := np.flatnonzero(words == "")):
            got = f"none in column {column}, row {without[0] + 1}"
            raise InputError(f"Expected a patient in each row of {path}, got {got}.")
    words = np.concatenate(named)
    plain = written_values.plain_numbers(words.tolist())  # 1 and 1.0 are one patient
    exact = words.astype(str) if plain is None or np.abs(plain).max() >= 2**53 else plain
    return np.unique(exact, return_inverse=True)[1].astype(np.int64)
