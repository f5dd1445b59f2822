"""Tables as words: CSV and Parquet files, each cell a text, empty where its value is missing."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import numpy as np

from flfw.data.tables.names import TableSettings
from flfw.errors import InputError, suggestion

Table: TypeAlias = dict[str, np.ndarray]
"""Columns (N,) of words, by their names."""

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none", "?", "-", ".", "<na>", "nat")
"""Words for a missing value, whatever their case."""

_SEPARATORS = (",", ";", "\t", "|")
_SHOWN = 5  # columns of a refusal


def read(path: Path, prefix: str, settings: TableSettings) -> Table:
    """Read a table: a column of words each, "" where a value is missing.

    Raises:
        InputError: there is no such file, it is empty or damaged, or two columns have one name.
    """
    _require_file(path, prefix)
    table = _csv(path, settings) if prefix == "csv" else _parquet(path)
    if not table or not len(next(iter(table.values()))):
        raise InputError(f"Expected rows below the names of the columns in {path}, got none.")
    absent = {*MISSING_WORDS, *(word.strip().lower() for word in settings.missing.split(",") if word.strip())}
    return {name: _without(words, absent) for name, words in table.items()}


def require_target(path: Path, prefix: str, settings: TableSettings, target: str) -> list[str]:
    """Return the names of all columns; refuse a target, and columns in settings, that are none. No row is read.

    Raises:
        InputError: it is not; or there is no such file, or it has no names.
    """
    _require_file(path, prefix)
    names = _head(path, settings)[0] if prefix == "csv" else _schema(path)
    if target not in names:
        near = ", ".join(names[:12]) + (f" and {len(names) - 12} more" * (len(names) > 12))
        like = suggestion(target, names) or "."
        raise InputError(f"Expected target {target} among the columns of {path}, got {near}{like}")
    settings.require_columns([name for name in names if name != target], path)
    return names


def _require_file(path: Path, prefix: str) -> None:
    if not path.is_file():
        raise InputError(f"Expected {prefix}:FILE@TARGET with a file of rows, got {path}; no file is there.")


def _without(words: np.ndarray, absent: set[str]) -> np.ndarray:
    """Return words without spaces around them, and "" for those that mean a missing value."""
    stripped = (str(word).strip() for word in words)
    return np.array(["" if word.lower() in absent else word for word in stripped], dtype=object)


def _csv(path: Path, settings: TableSettings) -> Table:
    import pandas as pd

    names, separator = _head(path, settings)
    _require_cells(path, separator, len(names), settings)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pandas only warns where it would lose cells
            read = pd.read_csv(
                path,
                sep=separator,
                names=names,
                skiprows=1,
                dtype=str,
                keep_default_na=False,
                encoding=settings.encoding,
                index_col=False,
                skipinitialspace=True,
            )
    except pd.errors.EmptyDataError as error:
        raise InputError(f"Expected rows below the names of the columns in {path}, got none.") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
        got = " ".join(str(error).split())[:200]
        raise InputError(f"Expected a CSV file, got {path}, which cannot be read: {got}.") from error
    return {name: np.asarray(read[name], dtype=object) for name in names}


def _head(path: Path, settings: TableSettings) -> tuple[list[str], str]:
    """Return the names of the columns of a CSV file, and the sign between its cells."""
    try:
        with path.open(encoding=settings.encoding, newline="") as file:
            first = file.readline().removeprefix("\ufeff")
    except LookupError as error:
        raise InputError(f"Expected a known csv.encoding, got {settings.encoding}.") from error
    except UnicodeError as error:
        raise _not_encoded(path, settings, error) from error
    if not first.strip():
        raise InputError(f"Expected the names of the columns in the first line of {path}, got an empty line or file.")
    separator = {"tab": "\t", "": max(_SEPARATORS, key=first.count)}.get(settings.separator, settings.separator)
    if "\0" in first:
        raise InputError(f"Expected a CSV file of text, got a zero byte in the first line of {path}.")
    names = [name.strip() for name in next(csv.reader([first], delimiter=separator))]
    _require_names(path, names)
    return names, separator


def _schema(path: Path) -> list[str]:
    """Return the names of the columns of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(path).names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        read = pq.read_table(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    _require_names(path, list(map(str, read.column_names)))
    made = {}
    for name, column in zip(read.column_names, read.columns, strict=True):
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            raise InputError(
                f"Expected numbers, words, dates or booleans in {path}, got {column.type} in column {name}."
            )
        made[str(name)] = np.array(["" if one is None else str(one) for one in column.to_pylist()], dtype=object)
    return made


def _unreadable(path: Path, error: Exception) -> InputError:
    got = " ".join(str(error).split())[:200].rstrip(".")
    return InputError(f"Expected a readable Parquet file {path}, got {type(error).__name__}: {got}.")


def _require_names(path: Path, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        more = f" and {len(twice) - _SHOWN} more" if len(twice) > _SHOWN else ""
        got = ", ".join(name or "(no name)" for name in twice[:_SHOWN])
        raise InputError(f"Expected a name of its own for each column of {path}, got {got}{more} twice; rename one.")
    if "" in names:
        place = names.index("") + 1
        index = ", or if it is an index, write the file without it (pandas: index=False)" if place == 1 else ""
        raise InputError(f"Expected a name for each column of {path}, got none for column {place}; name it{index}.")


def _not_encoded(path: Path, settings: TableSettings, error: UnicodeError) -> InputError:
    byte = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
    return InputError(
        f"Expected {settings.encoding} in {path}, got another encoding{byte}; name it by --set csv.encoding, such as "
        "latin-1, or convert the file."
    )


def _require_cells(path: Path, separator: str, columns: int, settings: TableSettings) -> None:
    """Refuse a line with another number of cells than there are columns; pandas would fill a short one up."""
    with path.open(encoding=settings.encoding, newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=True, skipinitialspace=True)
        try:
            for row in reader:
                if row and len(row) != columns:
                    raise InputError(
                        f"Expected {columns} cells in each line of {path}, as it names {columns} columns, got "
                        f"{len(row)} in line {reader.line_num}; correct the line."
                    )
        except csv.Error as error:
            raise InputError(f"Expected a CSV file, got {error} in line {reader.line_num} of {path}.") from error
        except UnicodeError as error:
            raise _not_encoded(path, settings, error) from error
