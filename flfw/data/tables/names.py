"""Names of tables: ``csv:FILE@TARGET`` or ``parquet:FILE@TARGET``, perhaps with settings: ``...?drop=id``.

The settings come from ``--set csv.drop=id`` and become a part of the name, so that every process that has the name
reads the same table in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, quote, urlencode

from flfw.bounds import BoundedSettings, ValueRange
from flfw.errors import InputError, abridged, require, suggestion

PREFIXES = ("csv", "parquet")
"""Words before the colon of a table's name."""

_TAIL = re.compile(r"[a-z_]+=[^&]*(?:&[a-z_]+=[^&]*)*")


@dataclass(frozen=True)
class TableSettings(BoundedSettings):
    """Settings of a table, ``--set csv.FIELD=VALUE``; lists are names of columns or patterns such as ``gene_*``."""

    NAMED = "csv."
    task: Literal["auto", "classification", "regression"] = "auto"  # auto: told by the target's values
    numeric: str = ""  # columns of numbers
    categorical: str = ""  # columns of categories, such as codes that look like numbers
    boolean: str = ""  # columns with two values
    date: str = ""  # columns of dates
    drop: str = ""  # columns that are left out
    patient: str = ""  # column that says whose row it is
    missing: str = ""  # words for a missing value, beside the usual ones
    keep_default_na: Literal["yes", "no"] = "yes"  # no: of the usual ones an empty cell alone
    decimal: Literal["", ".", ","] = ""  # sign before decimals; empty: told by the values
    dayfirst: Literal["", "yes", "no"] = ""  # whether 03/04/2016 is in April; empty: told by the values
    # Categories of a column with a feature of their own; all others share one.
    most: Annotated[int, ValueRange(ge=2, le=1000)] = 30
    columns: str = ""  # TOML file with the plan of the columns; empty: FILE.toml if it is there
    test: str = ""  # file of the test part; empty: every fifth row
    separator: str = ""  # sign between the cells of a CSV file; empty: told by its first line
    encoding: str = "utf-8"  # of a CSV file

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.separator) <= 1 or self.separator == "tab", "csv.separator of one sign", separator=self.separator
        )

    def chosen(
        self, field: Literal["numeric", "categorical", "boolean", "date", "drop"], names: Sequence[str]
    ) -> list[str]:
        """Return the columns that a list names.

        Args:
            field: the list.
            names: all columns.

        Raises:
            InputError: a word of the list fits no column.
        """
        columns: list[str] = []
        for word in filter(None, getattr(self, field).split(",")):
            fits = [name for name in names if name == word or fnmatchcase(name, word)]
            if not fits:
                like = suggestion(word, names) or "."
                raise InputError(
                    f"Expected columns of the table in csv.{field}, got {word}; there are {abridged(names, 12)}{like}"
                )
            columns += fits
        return columns

    def require_columns(self, names: Sequence[str], path: Path) -> None:
        """Refuse lists, and a column of patients, that name none of the columns.

        Args:
            names: all columns but the target.
            path: the file.

        Raises:
            InputError: a word fits no column.
        """
        for field in ("numeric", "categorical", "boolean", "date", "drop"):
            self.chosen(field, names)
        if self.patient and self.patient not in names:
            like = suggestion(self.patient, names) or "."
            raise InputError(f"Expected a column of patients beside the target in {path}, got {self.patient}{like}")


@dataclass(frozen=True)
class TableName:
    """Parts of a table's name.

    Attributes:
        prefix: csv or parquet.
        file: path of the file.
        target: name of the target's column.
        settings: the settings in the name.
    """

    prefix: str
    file: str
    target: str
    settings: TableSettings

    @classmethod
    def parse(cls, name: str) -> TableName:
        """Parse the whole name.

        Raises:
            InputError: it names no file or no target, or a setting is unknown.

        >>> TableName.parse("csv:patients.csv@died?drop=id").settings.drop
        'id'
        """
        prefix, _, word = name.partition(":")
        given, mark, tail = word.rpartition("?")
        if not (mark and _TAIL.fullmatch(tail)):
            given, tail = word, ""
        file, _, target = given.rpartition("@")
        if not (file and target):
            raise InputError(f"Expected {prefix}:FILE@TARGET with the name of the target's column, got {name}.")
        return cls(prefix, file, target, _settings(dict(parse_qsl(tail, keep_blank_values=True)), TableSettings()))

    @property
    def path(self) -> Path:
        """Absolute path of the file."""
        return Path(self.file).expanduser().absolute()

    def beside(self, file: str) -> Path:
        """Return the absolute path of another file that a setting names."""
        return Path(file).expanduser().absolute()

    @property
    def plan(self) -> Path | None:
        """Absolute path of the file with the plan of the columns; None: there is none."""
        if self.settings.columns:
            return self.beside(self.settings.columns)
        usual = self.path.with_name(f"{self.path.name}.toml")
        return usual if usual.is_file() else None

    def absolute(self) -> TableName:
        """Return the same name with absolute paths."""
        paths = {one: str(self.beside(value)) for one in ("columns", "test") if (value := getattr(self.settings, one))}
        return replace(self, file=str(self.path), settings=replace(self.settings, **paths))

    def without_folders(self) -> TableName:
        """Return the same name with the last parts of its paths alone; it finds no file."""
        names = {one: Path(getattr(self.settings, one)).name for one in ("columns", "test")}
        return replace(self, file=self.path.name, settings=replace(self.settings, **names))

    def __str__(self) -> str:
        """Return the whole name, with the settings that are not the usual ones."""
        usual = asdict(TableSettings())
        given = {key: value for key, value in asdict(self.settings).items() if value != usual[key]}
        tail = f"?{urlencode(given, quote_via=quote, safe=',*/')}" if given else ""
        return f"{self.prefix}:{self.file}@{self.target}{tail}"


def is_table(name: str) -> bool:
    """Return whether a data set's name is that of a table."""
    return name.partition(":")[0] in PREFIXES


def configured(name: str, assignments: Sequence[str]) -> str:
    """Return a table's name with the values of ``--set csv.FIELD=VALUE`` in it; other names stay as they are.

    Raises:
        InputError: a setting is unknown or out of its range.
    """
    if not is_table(name):
        return name
    parsed = TableName.parse(name)
    pairs = [one.partition("=") for one in assignments]
    given = {key.partition(".")[2]: value for key, _, value in pairs if key.partition(".")[0] == parsed.prefix}
    return str(replace(parsed, settings=_settings(given, parsed.settings)).absolute())


def _settings(given: Mapping[str, str], usual: TableSettings) -> TableSettings:
    known = {field.name for field in fields(TableSettings)}
    for field, value in given.items():
        if field not in known:
            like = suggestion(field, known) or "."
            raise InputError(f"Expected a setting of a table among {', '.join(sorted(known))}; got {field}{like}")
        if field == "most" and not value.isdecimal():
            raise InputError(f"Expected int for csv.most, got csv.most={value}.")
    return replace(usual, **{key: int(value) if key == "most" else value for key, value in given.items()})
