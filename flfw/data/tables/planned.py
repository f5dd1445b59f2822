"""Rows of a table by the plan of its columns, and the choice of those for testing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flfw.data.files import patients
from flfw.data.files.columns import TableSchema
from flfw.data.tables import column_types
from flfw.data.tables.reading import Table
from flfw.errors import InputError

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


def with_plan(rows: Table, schema: TableSchema, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return features (N, d) float32 and labels (N,): int64 of classes, float32 of a regression, standardised.

    Raises:
        InputError: the columns are not those of the plan, or a value does not fit its column.
    """
    asked = [column.name for column in schema.columns] + [schema.target] + ([schema.patient] if schema.patient else [])
    require_columns(rows, asked, path)
    x, words = column_types.encoded(rows, schema.columns), rows[schema.target]
    if schema.number is not None:
        values = column_types.target_numbers(schema.target, words)
        return x, ((values - schema.number.mean) / schema.number.std).astype(np.float32)
    strange = words[~np.isin(words.astype(str), schema.classes)]
    if len(strange):
        known = ", ".join(schema.classes[:12])
        raise InputError(f"Expected classes {known} of target {schema.target} in {path}, got {strange[0]!r}.")
    label = {name: place for place, name in enumerate(schema.classes)}
    return x, np.array([label[word] for word in words], dtype=np.int64)


def require_columns(rows: Table, asked: list[str], path: Path) -> None:
    """Refuse a table whose columns are not the ones that are asked for; their order is free.

    Raises:
        InputError: naming those that are absent and those that are too many.
    """
    got = list(rows)
    wrong = {"without": [n for n in asked if n not in set(got)], "with": [n for n in got if n not in set(asked)]}
    words = [
        f"{how} {', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"
        for how, names in wrong.items()
        if names
    ]
    if words:
        raise InputError(f"Expected the {len(asked)} columns of the plan in {path}, got a table {' and '.join(words)}.")


def patients_of(tables: Sequence[Table], column: str, files: Sequence[Path]) -> np.ndarray | None:
    """Return the patients (N,) int64 of the rows of all tables together; None: no column names them.

    Raises:
        InputError: a row names none.
    """
    if not column:
        return None
    for table, path in zip(tables, files, strict=True):
        if len(without := np.flatnonzero(table[column] == "")):
            got = f"none in column {column}, row {without[0] + 1}"
            raise InputError(f"Expected a patient in each row of {path}, got {got}.")
    words = np.concatenate([table[column] for table in tables])
    return np.unique(words.astype(str), return_inverse=True)[1].astype(np.int64)
