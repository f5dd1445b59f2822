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
    args = parser.parse_args(arguments)
    require(data.is_table(args.dataset), "csv:FILE@TARGET or parquet:FILE@TARGET", dataset=args.dataset)
    card = data.describe(data.configured(args.dataset, args.set))
    assert card.columns is not None, "a table has columns"
    print(listing.listing(card.columns, maximum=len(card.columns.columns)), *listing.sentences(card.columns), sep="\n")
    if args.write:
        try:
            with args.write.open("x", encoding="utf-8") as file:
                file.write(plan_file.text(plan_file.for_sites(card.columns) if args.for_sites else card.columns))
        except OSError as error:
            raise InputError(f"Expected a new file for --write, got {args.write} ({error.strerror}).") from error
        print(args.write)
    return 0


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 done, 2 bad input."""
    return exit_code("flfw.data.columns", lambda: _do(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
