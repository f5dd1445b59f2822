"""Tables of a user, one row an example: ``--dataset csv:FILE@TARGET`` and ``--dataset parquet:FILE@TARGET``.

The first use on a machine reads the file with pandas and writes plain arrays into the user's cache; later uses read
these and import nothing heavy.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flfw.data.files import cache
from flfw.data.files.columns import NumberTarget, TableSchema
from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.tables.names import TableName, TableSettings
from flfw.data.tables.plan_file import patients_of, require_columns, tested, to_state, with_plan
from flfw.data.tables.reading import Table
from flfw.errors import InputError
from flfw.files.typed import read_json

_PARTS = ("train_x", "train_y", "test_x", "test_y")
_GROUPS = ("train_group", "test_group")
_NAMED = 20  # columns of a command; the refusal of others names them
_VERSION = 3  # of what is kept; raise it when a table is read in another way


def csv(word: str) -> DatasetCard:
    """Return the card of the rows of a CSV file, ``FILE@TARGET``; see `table`."""
    return table(f"csv:{word}")


def parquet(word: str) -> DatasetCard:
    """Return the card of the rows of a Parquet file, ``FILE@TARGET``; see `table`."""
    return table(f"parquet:{word}")


def table(name: str) -> DatasetCard:
    """Return the card of a table, whose first line names the columns.

    Rows without a target are left out. Every fifth row of a class (of a regression: of the file), from the second on,
    is for testing, unless another file has the test part; with patients every fifth patient is, see
    `flfw.data.tables.plan_file.tested`. Kinds of columns are told by all rows, scales and categories by the training
    rows alone; a file with the plan of the columns overrides both.

    Raises:
        InputError: there is no such file, target or column, or the table is damaged.
    """
    parsed = TableName.parse(name)
    files = [parsed.path, *([parsed.plan] if parsed.plan else [])]
    if parsed.settings.test:
        files.append(parsed.beside(parsed.settings.test))
    for file in files:
        if not file.is_file():
            raise InputError(f"Expected {parsed.prefix}:FILE@TARGET with a file of rows, got {file}; no file is there.")
    folder = cache.user_cache() / "tables" / cache.digest(name, _VERSION, cache.fingerprint(files))
    if not folder.exists():
        arrays, meta = _made(parsed)
        cache.publish(folder, lambda target: cache.write_arrays(target, arrays, meta))
    schema, left_out, by_patient = _described(folder)
    unused = f"; {left_out} rows without a target are left out" if left_out else ""
    return DatasetCard(
        shape=(schema.width,),
        classes=schema.labels,
        files=dict.fromkeys([f"{part}.npy" for part in (*_PARTS, *(_GROUPS if by_patient else ()))]),
        read=_read_patients if by_patient else _read,
        source=f"rows in {parsed.file}, target {parsed.target}{unused}",
        fetch=f"the table itself, after removing {folder}",
        root=folder,
        net="mlp",
        split="iid",
        # Not normalised, as for adult: the column of a rare category, divided by its deviation, would be very large.
        mean=(0.0,) * schema.width,
        std=(1.0,) * schema.width,
        columns=schema,
        numbers=schema.number is not None,
    )


def _read(root: Path, side: int | None) -> DatasetArrays:
    return DatasetArrays(*cache.read_arrays(root, _PARTS)[0])


def _read_patients(root: Path, side: int | None) -> DatasetArrays:
    train, test = cache.read_arrays(root, _GROUPS)[0]
    return _read(root, side)._replace(train_group=train, test_group=test)


@lru_cache(maxsize=8)
def _described(folder: Path) -> tuple[TableSchema, int, bool]:
    meta = read_json(folder / "meta.json", dict[str, Any], f"remove {folder}, and it is made again")
    return TableSchema.from_dict(meta["plan"], folder / "meta.json"), meta["left_out"], meta["by_patient"]


def require_target(name: str) -> list[str]:
    """Return the names of a table's columns; refuse a target that is none. No row is read, nothing large imported.

    Raises:
        InputError: it is not; or there is no such file, or it has no names.
    """
    from flfw.data.tables import reading

    parsed = TableName.parse(name)
    return reading.require_target(parsed.path, parsed.prefix, _planned(parsed)[0], parsed.target)


def stating(name: str) -> tuple[str, str]:
    """Return the command that states a table's public plan beside it, and the table's name by that plan."""
    parsed = TableName.parse(name)
    bare = replace(parsed, settings=replace(parsed.settings, columns=""))
    ranges = " ".join(shlex.quote(f"{one}=RANGE") for one in to_state(require_target(name), bare)[:_NAMED])
    return f"flfw data columns {shlex.quote(str(bare))} --public {ranges}", shlex.quote(str(bare))


def _planned(parsed: TableName) -> tuple[TableSettings, TableSchema | None]:
    """Return the settings of a table, with those of the file beside it, or the plan that stands there."""
    from flfw.data.tables import plan_file

    if not parsed.plan:
        return parsed.settings, None
    schema = plan_file.read_plan(parsed.plan)
    return (parsed.settings if schema else plan_file.read_settings(parsed.plan, parsed.settings)), schema


def _made(parsed: TableName) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of both parts, and the plan and the numbers for the card."""
    from flfw.data.tables import reading

    settings, schema = _planned(parsed)
    reading.require_target(parsed.path, parsed.prefix, settings, parsed.target)
    parts = [reading.read(parsed.path, parsed.prefix, settings)]
    if settings.test:
        parts.append(reading.read(parsed.beside(settings.test), parsed.prefix, settings))
        require_columns(parts[1], list(parts[0]), parsed.beside(settings.test))
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    there = rows[parsed.target] != ""
    is_test_row = (np.arange(len(there)) >= len(parts[0][parsed.target]))[there] if len(parts) > 1 else None
    left_out, rows = int((~there).sum()), {name: words[there] for name, words in rows.items()}
    if schema is None:
        schema, train, group = _inferred(parsed, settings, rows, is_test_row)
    else:
        train, group = _divided(parsed, schema, rows, is_test_row)
    x, y = with_plan(rows, schema, parsed.path)
    arrays: dict[str, np.ndarray] = dict(zip(_PARTS, (x[train], y[train], x[~train], y[~train]), strict=True))
    if group is not None:
        arrays |= dict(zip(_GROUPS, (group[train], group[~train]), strict=True))
    for part in ("train", "test"):
        if not len(arrays[f"{part}_y"]):
            raise InputError(f"Expected rows in the {part} part of {parsed.path}, got none of {there.sum()}; add some.")
    return arrays, {"plan": schema.as_dict(), "left_out": left_out, "by_patient": group is not None}


def _inferred(
    parsed: TableName, settings: TableSettings, rows: Table, is_test_row: np.ndarray | None
) -> tuple[TableSchema, np.ndarray, np.ndarray | None]:
    """Return the plan that the values tell, the training rows (N,) of bool, and the patients (N,)."""
    from flfw.data.tables import column_types

    words = rows[parsed.target]
    if not len(words):
        raise InputError(f"Expected values of target {parsed.target} in {parsed.path}, got none.")
    task = column_types.task_of(parsed.target, words, settings.task)
    names = column_types.class_names(words) if task == "classification" else ()
    group = _patients(parsed, rows, settings.patient)
    labels = np.searchsorted(sorted(names), words.astype(str)) if names else np.zeros(len(words), np.int64)
    train = ~tested(labels, group, bool(names)) if is_test_row is None else ~is_test_row
    if not train.any():
        raise InputError(f"Expected training rows in {parsed.path}, got none of {len(words)}; add some.")
    features = {name: column for name, column in rows.items() if name not in (parsed.target, settings.patient)}
    columns = column_types.fit_columns(
        features, train, column_types.infer_column_kinds(features, settings), settings.most
    )
    if not any(column.width for column in columns):
        why = "; ".join(f"{column.name} is left out ({column.note})" for column in columns[:3])
        more = f" and {len(columns) - 3} more columns" if len(columns) > 3 else ""
        got = f"none: {why}{more}" if columns else "none"
        raise InputError(f"Expected a column beside {parsed.target} in {parsed.path} that tells rows apart, got {got}.")
    number: NumberTarget | None = None
    if task == "regression":
        number = column_types.number_target(parsed.target, column_types.target_numbers(parsed.target, words)[train])
    return TableSchema(tuple(columns), parsed.target, task, names, number, settings.patient), train, group


def _divided(
    parsed: TableName, schema: TableSchema, rows: Table, is_test_row: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the training rows (N,) of bool and the patients (N,) of a table with a given plan."""
    if parsed.target != schema.target:
        raise InputError(f"Expected target {schema.target}, as in {parsed.plan}, got {parsed.target}.")
    group = _patients(parsed, rows, schema.patient)
    labels = with_plan(rows, schema, parsed.path)[1] if schema.classes else np.zeros(len(rows[schema.target]), np.int64)
    return ~tested(labels, group, bool(schema.classes)) if is_test_row is None else ~is_test_row, group


def _patients(parsed: TableName, rows: Table, column: str) -> np.ndarray | None:
    """Return the patients (N,) int64, places in the sorted words of their column; None: there is no such column."""
    if column and (column not in rows or column == parsed.target):
        raise InputError(
            f"Expected a column of patients beside {parsed.target} in {parsed.path}, got patient={column}."
        )
    return patients_of([rows], column, [parsed.path])
