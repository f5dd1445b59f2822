"""Tables of text whose writer may be anybody: CSV with a header, in which every row has a value for each column."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flfw.errors import InputError
from flfw.files.earlier_names import COLUMNS, CONTROLS, CURVES

_WORDS = {"rung": CONTROLS, "curve": CURVES}
_WAY_OUT = "restore it, or run anew"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file by the names of its columns; earlier ones, and earlier words, by those of today.

    Raises:
        InputError: the file cannot be read, is no CSV, or a row has more or fewer values than there are columns.
    """
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Expected a table in {path}, got none that can be read ({error}); {_WAY_OUT}.") from error
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise InputError(f"Expected {len(row)} values in row {number} of {path}, got another number; {_WAY_OUT}.")
    rows = [{COLUMNS.get(name, name): value for name, value in row.items()} for row in rows]
    return [
        row | {name: words.get(row[name], row[name]) for name, words in _WORDS.items() if name in row} for row in rows
    ]


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the rows of an audit as its CSV; whole numbers stay whole although some are missing."""
    import pandas as pd

    table = pd.DataFrame(rows).drop(columns="db", errors="ignore")
    whole = {name: "Int64" for name in ("rank", "candidates", "iterations") if name in table}
    table.astype(whole).to_csv(path, index=False)
