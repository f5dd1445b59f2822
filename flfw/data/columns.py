"""Columns of a table on the terminal: ``python -m flfw.data.columns csv:FILE@TARGET``, and their plan as a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flfw.errors import InputError, require
from flfw.files.exit_code import exit_code


def _do(arguments: list[str]) -> int:
    from flfw import data
    from flfw.data.tables import listing, plan_file

    parser = argparse.ArgumentParser("python -m flfw.data.columns", description=__doc__)
    parser.add_argument("dataset", help="csv:FILE@TARGET or parquet:FILE@TARGET")
    parser.add_argument("--set", nargs="*", default=[], help="settings, as for sim.py: csv.drop=id csv.task=regression")
    parser.add_argument("--write", type=Path, help="write the plan of the columns to this file, to be edited")
    parser.add_argument(
        "--for-sites",
        action="store_true",
        help="give each category a feature for other values, each column for missing",
    )
    asked = parser.parse_args(arguments)
    require(data.is_table(asked.dataset), "csv:FILE@TARGET or parquet:FILE@TARGET", dataset=asked.dataset)
    card = data.describe(data.configured(asked.dataset, asked.set))
    assert card.columns is not None, "a table has columns"
    print(listing.listing(card.columns, most=len(card.columns.columns)), *listing.sentences(card.columns), sep="\n")
    if asked.write:
        try:
            with asked.write.open("x", encoding="utf-8") as file:
                file.write(plan_file.text(plan_file.for_sites(card.columns) if asked.for_sites else card.columns))
        except OSError as error:
            raise InputError(f"Expected a new file for --write, got {asked.write} ({error.strerror}).") from error
        print(asked.write)
    return 0


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 done, 2 bad input."""
    return exit_code("flfw.data.columns", lambda: _do(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
