"""Columns of a table on the terminal, and their plan as a file; see docs/data.md."""

from __future__ import annotations

import sys
from pathlib import Path

from flfw.errors import InputError, require
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser


def _do(arguments: list[str], program: str) -> int:
    from flfw import data
    from flfw.data.readers.table import require_target
    from flfw.data.tables import listing, names, plan_file

    parser = Parser(program, description=__doc__)
    parser.add_argument("dataset", help="csv:FILE@TARGET or parquet:FILE@TARGET")
    parser.add_argument(
        "--public",
        nargs="+",
        metavar="COLUMN=RANGE",
        help="write a public plan of ranges that you state (age=0:120 sex=f,m), to FILE.toml; no row is read",
    )
    parser.add_argument("--set", nargs="*", default=[], help="settings, as for sim.py: csv.drop=id csv.task=regression")
    parser.add_argument("--write", type=Path, help="write the plan of the columns to this file, to be edited")
    parser.add_argument(
        "--for-sites",
        action="store_true",
        help="give each category a feature for other values, each column for missing; --public always does",
    )
    args = parser.parse_args(arguments)
    require(data.is_table(args.dataset), "csv:FILE@TARGET or parquet:FILE@TARGET", dataset=args.dataset)
    name = data.configured(args.dataset, args.set)
    parsed = names.TableName.parse(name)
    if args.public:
        schema = plan_file.stated(args.public, require_target(name), parsed)
        args.write = args.write or parsed.usual_plan
    else:
        schema = data.describe(name).columns
        assert schema is not None, "a table has columns"
    if args.write:
        try:
            with args.write.open("x", encoding="utf-8") as file:
                file.write(plan_file.text(plan_file.for_sites(schema) if args.for_sites else schema))
        except OSError as error:
            way = f"--write FILE, and name it by --set {parsed.prefix}.columns=FILE"
            raise InputError(f"Expected a new file, got {args.write} ({error.strerror}); {way}.") from error
    print(listing.listing(schema, maximum=len(schema.columns)), *listing.sentences(schema), sep="\n")
    if args.write:
        print(args.write)
    return 0


def main(arguments: list[str], program: str = "python -m flfw.data.columns") -> int:
    """Return the exit code: 0 done, 2 bad input."""
    return exit_code(program, lambda: _do(arguments, program))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
