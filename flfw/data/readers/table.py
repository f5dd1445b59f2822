"""Tables of a user, one row an example: ``--dataset csv:FILE@TARGET`` and ``--dataset parquet:FILE@TARGET``.

The first use on a machine reads the file with pandas and writes plain arrays into the user's cache; later uses read
these and import nothing heavy.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flfw.data.files import cache
from flfw.data.files.columns import TableSchema
from flfw.data.files.dataset import DatasetArrays, DatasetCard, counted
from flfw.data.tables.column_types import ColumnValues
from flfw.data.tables.names import TableName, TableSettings
from flfw.data.tables.plan_file import labels_of, patients_of, planned_target, require_columns, tested, to_state
from flfw.errors import InputError, abridged, alike
from flfw.files.typed import read_json

_PARTS = ("train_x", "train_y", "test_x", "test_y")
_GROUPS = ("train_group", "test_group")
_NAMED = 20  # columns of a command; the refusal of others names them
_VERSION = 6  # of what is kept; raise it when a table is read in another way


def table(name: str | TableName) -> DatasetCard:
    """Return the card of a table, ``csv:FILE@TARGET`` or ``parquet:FILE@TARGET``, whose first line names the columns.

    Rows without a target are left out. Every fifth row of a class (of a regression: of the file), from the second on,
    is for testing, unless another file has the test part; with patients every fifth patient is, see
    `flfw.data.tables.plan_file.tested`. Kinds of columns are told by all rows, scales and categories by the training
    rows alone; a file with the plan of the columns overrides both.

    Raises:
        InputError: there is no such file, target or column, or the table is damaged.
    """
    parsed = TableName.parse(name) if isinstance(name, str) else name
    files = [parsed.path, *([parsed.plan] if parsed.plan else [])]
    if parsed.settings.test:
        files.append(parsed.beside(parsed.settings.test))
    for file in files:
        if not file.is_file():
            raise InputError(f"Expected {parsed.prefix}:FILE@TARGET with a file of rows, got {file}; no file is there.")
    folder = cache.user_cache() / "tables" / cache.digest(str(name), _VERSION, cache.fingerprint(files))
    if not folder.exists():
        arrays, meta = _made(parsed)
        cache.publish(folder, lambda target: cache.write_arrays(target, arrays, meta))
    schema, by_patient, notes, remarks = described(folder)
    doubtful = abridged([column.name for column in schema.kept if column.note] + [*remarks], 6)
    told = (f"How {doubtful} is read, or what to know of it, stands in `flfw data columns`.",) if doubtful else ()
    return DatasetCard(
        shape=(schema.width,),
        classes=schema.labels,
        files=dict.fromkeys([f"{part}.npy" for part in (*_PARTS, *(_GROUPS if by_patient else ()))]),
        read=_read_patients if by_patient else read,
        source=f"rows in {parsed.file}, target {'; '.join([parsed.target, *notes])}",
        fetch=f"the table itself, after removing {folder}",
        root=folder,
        net="mlp",
        split="iid",
        # Not normalised, as for adult: the column of a rare category, divided by its deviation, would be very large.
        mean=(0.0,) * schema.width,
        std=(1.0,) * schema.width,
        columns=schema,
        numbers=schema.number is not None,
        notes=lambda held: told if held is None else (*told, counted(held, schema.classes)),
    )


def read(root: Path, side: int | None) -> DatasetArrays:
    """Return the arrays of a table that was encoded."""
    return DatasetArrays(*cache.read_arrays(root, _PARTS)[0])


def _read_patients(root: Path, side: int | None) -> DatasetArrays:
    train, test = cache.read_arrays(root, _GROUPS)[0]
    return read(root, side)._replace(train_group=train, test_group=test)


@lru_cache(maxsize=8)
def described(folder: Path) -> tuple[TableSchema, bool, list[str], dict[str, str]]:
    """Return a table's plan, whether it names patients, notes, and remarks on columns, which show single values."""
    meta = read_json(folder / "meta.json", dict[str, Any], f"remove {folder}, and it is made again")
    return TableSchema.from_dict(meta["plan"], folder / "meta.json"), meta["by_patient"], meta["notes"], meta["remarks"]


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


def reading_of(name: str) -> dict[str, str]:
    """Return the settings by which the words of a table's cells are read."""
    settings = _planned(TableName.parse(name))[0]
    return {field: getattr(settings, field) for field in ("missing", "keep_default_na", "decimal", "dayfirst")}


def _planned(parsed: TableName) -> tuple[TableSettings, TableSchema | None]:
    """Return the settings of a table, with those of the file beside it, or the plan that stands there."""
    from flfw.data.tables import plan_file

    if not parsed.plan:
        return parsed.settings, None
    schema = plan_file.read_plan(parsed.plan)
    return (parsed.settings if schema else plan_file.read_settings(parsed.plan, parsed.settings)), schema


def _made(parsed: TableName) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of both parts, and the plan and the notes for the card."""
    from flfw.data.tables import column_types, reading

    settings, schema = _planned(parsed)
    reading.require_target(parsed.path, parsed.prefix, settings, parsed.target)
    rows, notes, separator = reading.read(parsed.path, parsed.prefix, settings)
    length = len(rows[parsed.target])
    if settings.test:
        tests, more, other = reading.read(parsed.beside(settings.test), parsed.prefix, settings)
        require_columns(tests, list(rows), parsed.beside(settings.test))
        rows, notes = {name: np.concatenate([rows[name], tests[name]]) for name in rows}, notes + more
        if other != separator:
            got = f"{other!r} and {separator!r}"
            raise InputError(
                f"Expected one sign between cells in {parsed.path} and its test file, got {got}; write both alike."
            )
    notes += column_types.unused_missing(rows, settings)
    signs = column_types.decimal_signs(rows, settings, separator)
    if schema is None:
        target = column_types.infer_target(parsed.target, rows[parsed.target], settings, signs)
    else:
        if parsed.target != schema.target:
            raise InputError(f"Expected target {schema.target}, as in {parsed.plan}, got {parsed.target}.")
        require_columns(rows, schema.names, parsed.path)
        target = planned_target(rows, schema, settings, signs)
    there = np.flatnonzero(~target.absent)
    if left_out := len(target.values) - len(there):
        notes.append(f"{left_out} rows without a target are left out")
    remarks = {parsed.target: target.note} if target.note else {}
    target, rows = replace(target, values=target.values[there]), {name: words[there] for name, words in rows.items()}
    patient = schema.patient if schema else settings.patient
    group = patients_of([rows], patient, settings, [parsed.path])
    if patient and alike(map(str, rows[patient])):
        notes.append(f"some names in {patient} differ in capitals, blanks or dots alone, and count as two")
    of_classes = target.kind == "categorical"
    labels = np.unique(target.values.astype(str) if of_classes else np.zeros(len(there)), return_inverse=True)[1]
    train = there < length if settings.test else ~tested(labels, group, of_classes)
    if schema is None:
        features = {name: words for name, words in rows.items() if name not in (parsed.target, patient)}
        values = column_types.infer_columns(features, settings, signs, there)
        schema = _schema(parsed, settings, values, target, train)
    else:
        values, beyond = column_types.by_schema(rows, schema, settings, signs)
        remarks |= beyond
    x, y = column_types.encoded(values, schema.columns), labels_of(target, schema, parsed.path)
    notes += [*_in_one_part(y, train, schema.classes)] if of_classes else []
    arrays: dict[str, np.ndarray] = dict(zip(_PARTS, (x[train], y[train], x[~train], y[~train]), strict=True))
    if group is not None:
        arrays |= dict(zip(_GROUPS, (group[train], group[~train]), strict=True))
    for part in ("train", "test"):
        if not len(arrays[f"{part}_y"]):
            raise InputError(f"Expected rows in the {part} part of {parsed.path}, got none of {len(there)}; add some.")
    return arrays, {"plan": schema.as_dict(), "notes": notes, "remarks": remarks, "by_patient": group is not None}


def _in_one_part(y: np.ndarray, train: np.ndarray, classes: Sequence[str]) -> Iterator[str]:
    """Yield a note on the classes of each part that the other part lacks: they are never learnt, or never tested."""
    rows = {
        part: np.bincount(y[where], minlength=len(classes)) for part, where in (("training", train), ("test", ~train))
    }
    for part, other in (("test", "training"), ("training", "test")):
        alone = np.flatnonzero((rows[part] > 0) & (rows[other] == 0))
        if names := [f"{classes[at]} (rows: {rows[part][at]})" for at in alone.tolist()]:
            yield f"{part} rows alone have class {abridged(names, 3, ' classes')}"


def _schema(
    parsed: TableName,
    settings: TableSettings,
    values: Mapping[str, ColumnValues],
    target: ColumnValues,
    train: np.ndarray,
) -> TableSchema:
    """Return the plan that the values of the training rows (N,) of bool tell."""
    from flfw.data.tables import column_types

    if not train.any():
        raise InputError(f"Expected training rows in {parsed.path}, got none of {len(train)}; add some.")
    columns = column_types.fit_columns(values, train, settings.most)
    if not any(column.width for column in columns):
        why = abridged([f"{column.name} is left out ({column.note})" for column in columns], 3, " columns")
        got = f"none: {why}" if columns else "none"
        raise InputError(f"Expected a column beside {parsed.target} in {parsed.path} that tells rows apart, got {got}.")
    if target.kind == "categorical":
        names = column_types.class_names(target.values)
        return TableSchema(tuple(columns), parsed.target, "classification", names, None, settings.patient)
    number = column_types.number_target(parsed.target, target.values[train], target.unit)
    return TableSchema(tuple(columns), parsed.target, "regression", (), number, settings.patient)
