"""CSV files that runs leave, with a line of names at the top."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read_csv(path: Path, **cells: str) -> list[dict[str, str]]:
    """Read the rows, or those alone that have these cells."""
    with path.open(newline="", encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if cells.items() <= row.items()]


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, all of the first one's columns."""
    with path.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
