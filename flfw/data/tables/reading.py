"""Tables as words: CSV and Parquet files, each cell a text as it is written."""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flfw.data.tables.names import TableSettings
from flfw.data.tables.written_values import plain_numbers
from flfw.errors import InputError, abridged, suggestion

Table: TypeAlias = dict[str, np.ndarray]
"""Columns (N,) of words, by their names."""

_SEPARATORS = (",", ";", "\t", "|")
_HEAD = 100  # lines that tell how a file is written
_LONGEST = 2**31 - 1  # signs of a cell, and of a line of a file with other signs between cells
_UNNAMED = "Unnamed: 0"  # as pandas calls a first column without a name
_SHOWN = 5  # columns of a refusal
_SMALL = 10_000  # rows, up to which a sum of all others is looked for
_SUM = re.compile(r"(?:(?:grand|sub).?)?totals?|sum|summe|gesamt\w*|insgesamt|mean|average|mittelwert", re.IGNORECASE)


class ReadTable(NamedTuple):
    """Table of a file: its columns, notes on how it was read, and the sign between cells ("": there is none)."""

    table: Table
    notes: list[str]
    separator: str


def read(path: Path, prefix: str, settings: TableSettings) -> ReadTable:
    """Read a table: a column of words each, without blanks around them.

    Raises:
        InputError: there is no such file, it is empty or damaged, or two columns have one name.
    """
    _require_file(path, prefix)
    made = _csv(path, settings) if prefix == "csv" else ReadTable(_parquet(path, settings), [], "")
    if not made.table or not len(next(iter(made.table.values()))):
        raise InputError(f"Expected rows below the names of the columns in {path}, got none.")
    if sums := [words[-1] for words in made.table.values() if _SUM.fullmatch(words[-1])]:
        made.notes.append(f"the last row says {sums[0]}: take it out of {path.name} if it sums up others")
    elif names := _summed(made.table):
        made.notes.append(f"the last row is the sum of the others in {abridged(names, 3)}: take it out of {path.name}")
    return made


def _summed(table: Table) -> list[str]:
    """Return the columns of a small table whose last number is the sum of all others, if most of its numbers are."""
    if not 4 <= len(next(iter(table.values()))) <= _SMALL:
        return []
    numbers = {name: plain for name, words in table.items() if (plain := plain_numbers(words.tolist())) is not None}
    with np.errstate(all="ignore"):  # sums may be infinite
        sums = [n for n, v in numbers.items() if np.isclose(v[:-1].sum(), v[-1], 1e-9, 0) and np.count_nonzero(v) > 3]
    return sums if 2 * len(sums) >= len(numbers) else []


def require_target(path: Path, prefix: str, settings: TableSettings, target: str) -> list[str]:
    """Return the names of all columns; refuse a target, and columns in settings, that are none. No row is read.

    Raises:
        InputError: it is not; or there is no such file, or it has no names.
    """
    _require_file(path, prefix)
    names = _layout(path, _encoded(path, settings)).names if prefix == "csv" else _schema(path)
    if target not in names:
        got = abridged(names, 12) + (suggestion(target, names) or ".")
        raise InputError(f"Expected target {target} among the columns of {path}, got {got}")
    settings.require_columns([name for name in names if name != target], path)
    return names


def _require_file(path: Path, prefix: str) -> None:
    if not path.is_file():
        raise InputError(f"Expected {prefix}:FILE@TARGET with a file of rows, got {path}; no file is there.")


@dataclass(frozen=True)
class _CsvForm:
    """How a CSV file is written, as its first lines tell: names, the form for csv.reader, and the line of the names."""

    names: list[str]
    form: Mapping[str, Any]
    line: int
    notes: list[str]


def _csv(path: Path, settings: TableSettings) -> ReadTable:
    settings = _encoded(path, settings)
    layout = _layout(path, settings)
    try:
        rows = _rows(path, layout, settings)
    except InputError:
        with path.open(encoding=settings.encoding, newline="") as file:
            escaped = any('\\"' in line for line in file)
        if not escaped:
            raise
        rows = _rows(path, layout, settings, escaped)
        layout.notes.append('\\" within quotes is read as one quote')
    columns = zip(*rows, strict=True) if rows else ([] for _ in layout.names)
    named = zip(layout.names, columns, strict=True)
    table = {name: np.array([word.strip() for word in words], dtype=object) for name, words in named}
    return ReadTable(table, layout.notes, layout.form["delimiter"])


def _encoded(path: Path, settings: TableSettings) -> TableSettings:
    """Return the settings with UTF-16, as spreadsheets write "Unicode text", where the file begins so."""
    with path.open("rb") as file:
        return replace(settings, encoding="utf-16") if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else settings


def _layout(path: Path, settings: TableSettings) -> _CsvForm:
    """Find the names of the columns: the first line, or the first one below remarks of one cell and ``sep=;``."""
    lines = _first_lines(path, settings)
    csv.field_size_limit(_LONGEST)
    filled = [line for line in lines if line.strip()]
    told = re.fullmatch(r'"?sep=(.|\\t)"?', filled[0].strip().rstrip(",;"), re.IGNORECASE)
    quote = "'" if re.match(r"'[^']*'\s*[,;\t|]", filled[min(bool(told), len(filled) - 1)]) else '"'
    given = {"tab": "\t"}.get(settings.separator, settings.separator) or (told[1].replace("\\t", "\t") if told else "")
    usual = {"quotechar": quote, "skipinitialspace": True}
    forms = [{"delimiter": sign, **usual} for sign in ((given,) if given else _SEPARATORS)]
    form, rows = max(((form, _cells(lines, form)) for form in forms), key=lambda both: _evenness(both[1]))
    if _width(rows) < 2 and not given:  # R's write.table, old files with aligned columns
        form = {"delimiter": " ", **usual}
        rows = _cells(lines, form)
    width = _width(rows)
    place = next((index for index, (_, row) in enumerate(rows) if not _is_remark(row, width)), 0)
    line, names = rows[place]
    notes = [f"line {number} stands before the names and is not read" for number, _ in rows[:place]]
    names, below = [name.strip() for name in names], [row for _, row in rows[place + 1 :]]
    while len(names) > 1 and not names[-1] and not any("".join(row[len(names) - 1 :]).strip() for row in below):
        names = names[:-1]  # each line ends with more signs between cells
    if not names[0] and len(names) > 1:
        names[0] = _UNNAMED
    elif (
        form["delimiter"] in " \t" and {len(row) for row in below} == {len(names) + 1} and all(row[-1] for row in below)
    ):
        names = [_UNNAMED, *names]  # R's write.table names rows by a first cell without a name
    if all(re.fullmatch(r"-?\d*\.\d+", name) for name in names[-2:]):
        raise InputError(f"Expected the names of the columns in line {line} of {path}, got numbers; add names.")
    if 2 * sum(re.fullmatch(r"-?\d+(?:[.,]\d+)?", name) is not None for name in names) >= len(names):
        notes.append(f"line {line} is read as names, {abridged(names, _SHOWN)}")
    if names[0] == _UNNAMED:
        notes.append(f"column 1 has no name and is called {_UNNAMED}")
    _require_names(path, names)
    return _CsvForm(names, form, line, notes)


def _cells(lines: Sequence[str], form: Mapping[str, Any]) -> list[tuple[int, list[str]]]:
    """Return the cells of the first lines, each row with the number of its last line."""
    reader = csv.reader(lines, **form)
    return [(reader.line_num, row) for row in reader if row]


def _width(rows: Sequence[tuple[int, list[str]]]) -> int:
    counts = Counter(len(row) for _, row in rows)
    return max(counts, key=lambda width: (counts[width], width))


def _evenness(rows: Sequence[tuple[int, list[str]]]) -> tuple[bool, float, int]:
    """Return how much lines look like those of a table: more than a cell, as many in each line, many."""
    width = _width(rows)
    return width > 1, sum(len(row) == width for _, row in rows) / len(rows), width


def _is_remark(row: Sequence[str], width: int) -> bool:
    filled = sum(bool(cell.strip()) for cell in row)
    return width > 1 and (filled <= max(1, width // 2) or (row[0].lstrip().startswith("#") and filled != width))


def _first_lines(path: Path, settings: TableSettings) -> list[str]:
    try:
        with path.open(encoding=settings.encoding, newline="") as file:
            lines = [line.removeprefix("\ufeff") for line in islice(file, _HEAD)]
    except LookupError as error:
        raise InputError(f"Expected a known csv.encoding, got {settings.encoding}.") from error
    except UnicodeError as error:
        raise _not_encoded(path, settings, error) from error
    if not "".join(lines).strip():
        raise InputError(f"Expected the names of the columns in the first line of {path}, got an empty line or file.")
    if "\0" in "".join(lines):
        raise InputError(f"Expected a CSV file of text, got a zero byte in the first lines of {path}.")
    return lines


def _schema(path: Path) -> list[str]:
    """Return the names of the columns of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(path).names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _parquet(path: Path, settings: TableSettings) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        read = pq.read_table(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    _require_names(path, list(map(str, read.column_names)))
    made, dropped = {}, settings.chosen("drop", read.column_names)
    for name, column in zip(read.column_names, read.columns, strict=True):
        if pa.types.is_nested(column.type) or "binary" in str(column.type):
            if name not in dropped:
                got = f"{column.type} in column {name}; parquet.drop={name} leaves it out"
                raise InputError(f"Expected numbers, words, dates or booleans in {path}, got {got}.")
            column = pa.array([None] * len(column))
        made[str(name)] = np.array(_words(column), dtype=object)
    return made


def _words(column: Any) -> list[str]:
    """Return the values of a Parquet column as words; those of time as Arrow writes them, which knows all years."""
    import pyarrow as pa

    kind, zone = column.type, ""
    if pa.types.is_duration(kind):
        per_hour = {"s": 3600, "ms": 3.6e6, "us": 3.6e9, "ns": 3.6e12}[kind.unit]
        return ["" if one is None else f"{one / per_hour!r} h" for one in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_timestamp(kind):
        column, zone = column.cast(pa.timestamp(kind.unit)), "Z" if kind.tz else ""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = column.cast(pa.string())
    words = ["" if one is None else f"{one}{zone}".strip() for one in column.to_pylist()]
    if pa.types.is_floating(kind) or pa.types.is_decimal(
        kind
    ):  # 1.125 has no sign between thousands, and 1.1250 says so
        words = [re.sub(r"\.\d{3}$", r"\g<0>0", word) for word in words]
    return words


def _unreadable(path: Path, error: Exception) -> InputError:
    got = " ".join(str(error).split())[:200].rstrip(".")
    return InputError(f"Expected a readable Parquet file {path}, got {type(error).__name__}: {got}.")


def _require_names(path: Path, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        got = abridged([name or "(no name)" for name in twice], _SHOWN)
        raise InputError(f"Expected a name of its own for each column of {path}, got {got} twice; rename one.")
    if "" in names:
        place = names.index("") + 1
        raise InputError(f"Expected a name for each column of {path}, got none for column {place}; name it.")


def _not_encoded(path: Path, settings: TableSettings, error: UnicodeError) -> InputError:
    byte = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
    return InputError(
        f"Expected {settings.encoding} in {path}, got another encoding{byte}; name it by --set csv.encoding, such as "
        "cp1252, or convert the file."
    )


def _rows(path: Path, layout: _CsvForm, settings: TableSettings, escaped: bool = False) -> list[list[str]]:
    """Return the cells below the names; refuse a line with another number of cells than there are columns."""
    columns, spare, rows, again = len(layout.names), 0, list[list[str]](), list[int]()
    with path.open(encoding=settings.encoding, newline="") as file:
        lines = (line.replace('\\"', '""') for line in file) if escaped else file
        reader = csv.reader(lines, strict=True, **layout.form)
        try:
            for row in reader:
                if (len(row) < 2 and not "".join(row).strip()) or reader.line_num <= layout.line:
                    continue
                if not rows and len(row) > columns and not any(row[columns:]):
                    spare = len(row) - columns  # each line ends with signs between cells
                if len(row) != columns + spare or (spare and any(row[columns:])):
                    raise InputError(
                        f"Expected {columns} cells in each line of {path}, as it names {columns} columns, got "
                        f"{len(row)} in line {reader.line_num}; correct the line."
                    )
                if [cell.strip() for cell in row[:columns]] == layout.names:
                    again.append(reader.line_num)
                    continue
                rows.append(row[:columns] if spare else row)
        except csv.Error as error:
            raise InputError(f"Expected a CSV file, got {error} in line {reader.line_num} of {path}.") from error
        except UnicodeError as error:
            raise _not_encoded(path, settings, error) from error
    if again:
        layout.notes.append(f"{len(again)} lines repeat the names and are not read, the first is line {again[0]}")
    return rows
