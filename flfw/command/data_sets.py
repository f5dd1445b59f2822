"""Data sets from the command line: ``flfw data list|get|verify|show|columns|pictures|split``.

list    all data sets, and whether their files are on this machine
get     download some, and convert them for the first run
verify  compare their files' MD5 sums with the published ones
show    the card of a data set: shape, classes, files, source
columns what becomes of each column of a table, and their plan as a file
pictures what a folder of pictures holds, and what is left out
split   who would hold what, as a table and a picture; takes the flags of a run
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flfw import data
from flfw.data.files.dataset import DatasetCard
from flfw.errors import InputError, require
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser


def main(arguments: Sequence[str], program: str = "flfw data") -> int:
    """Carry out an action; return the exit code: 0 done, 1 a file is not the published one, 2 bad input."""
    words = list(arguments)
    if words[:1] == ["split"]:
        from flfw.command.help import asked, page
        from flfw.command.program import main as run

        if asked(words):
            print(page(f"{program} split", words, "Print who would hold what, and draw it; nothing is trained."))
            return 0
        return run(["run", "--show-split", *words[1:]], f"{program} split")
    return exit_code(program, lambda: _do(words, program))


def _do(words: list[str], program: str) -> int:
    args = _parser(program).parse_args(words)
    return _ACTIONS[args.action](args)


def _list(args: argparse.Namespace) -> int:
    for name in data.names():
        card = data.describe(name)
        shape = "x".join(map(str, card.shape))
        print(f"{name:<17} {shape:<9} {card.classes:>4} classes  {_presence(name, card, args.root)}")
    print("folder:PATH, text:FILE, hf:NAME and site:SHAPE:CLASSES are data of your own; see docs/data.md")
    return 0


def _presence(name: str, card: DatasetCard, root: Path | None) -> str:
    if card.population:
        return "generated when needed"
    if data.is_here(name, root):
        return "here"
    return "to be downloaded" if callable(card.fetch) else "to be got by hand"


def _get(args: argparse.Namespace) -> int:
    for name in args.names:
        data.fetch(name, args.root)
        ready = data.load(name, args.root)
        examples = "all" if ready.is_generated else len(ready.train_y)
        print(f"{name}: {examples} training examples are ready")
    return 0


def _verify(args: argparse.Namespace) -> int:
    odd = 0
    for name in args.names:
        sums = data.sums(name, args.root)
        wrong = [file for file, right in sums.items() if right is False]
        unknown = sum(right is None for right in sums.values())
        odd += len(wrong)
        for file in wrong:
            print(f"{name}: {file} does not have the published MD5 sum")
        right = f"{len(sums) - len(wrong) - unknown} of {len(sums)} files have the published MD5 sum"
        print(f"{name}: {right}" + (f", {unknown} have none published" if unknown else ""))
    return 1 if odd else 0


def _show(args: argparse.Namespace) -> int:
    for name in args.names:
        card = data.here(name, args.root) if name.startswith("site:") else data.describe(data.absolute(name))
        print(f"{name}: {'x'.join(map(str, card.shape))}, {card.classes} classes, {_presence(name, card, args.root)}")
        print(f"  source   {card.source}")
        print(f"  network  {card.net}")
        print(f"  split    {card.split}", *(card.notes(None) if card.notes else ()), sep="\n  note     ")
        if not callable(card.fetch) and not card.population and not data.is_here(name, args.root):
            print(f"  get it   {card.fetch}")
        for file in list(card.files)[:_MOST_FILES]:
            print(f"  file     {file}")
        if len(card.files) > _MOST_FILES:
            print(f"  and {len(card.files) - _MOST_FILES} files more")
    return 0


def _columns(args: argparse.Namespace) -> int:
    from flfw.data.readers.table import described, require_target
    from flfw.data.tables import listing, names, plan_file

    path, at, _ = args.table.rpartition("@")
    bare = not data.is_table(args.table) and at and Path(path).is_file()
    table = f"{'parquet' if path.endswith('.parquet') else 'csv'}:{args.table}" if bare else args.table
    require(data.is_table(table), "csv:FILE@TARGET or parquet:FILE@TARGET", dataset=table)
    name = data.configured(table, args.set)
    parsed, schema, out = names.TableName.parse(name), None, args.write
    if args.public:
        schema, out = plan_file.stated(args.public, require_target(name), parsed), out or Path(f"{parsed.path}.toml")
    card = None if schema else data.describe(name)
    schema = schema or (card.columns if card else None)
    assert schema is not None, "a table has columns"
    said = [f"{card.source[0].upper()}{card.source[1:]}."] if card else []
    said += [f"{name}: {remark}." for name, remark in described(card.root)[3].items()] if card and card.root else []
    said += data.load(name).notes[-1:] if card else []  # how many rows there are
    print(listing.listing(schema, len(schema.columns), 1000), *said, *listing.sentences(schema), sep="\n")
    if out:
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(plan_file.text(plan_file.for_sites(schema) if args.for_sites else schema))
        except OSError as error:
            way = f"--write FILE, and name it by --set {parsed.prefix}.columns=FILE"
            raise InputError(f"Expected a new file, got {out} ({error.strerror}); {way}.") from error
        print(out)
    return 0


def _pictures(args: argparse.Namespace) -> int:
    from flfw.data.files import patients
    from flfw.data.image_files.listing import LAYOUT, Listing

    path, ending = patients.parsed(args.folder.removeprefix("folder:"))
    require(Path(path).expanduser().is_dir(), LAYOUT, folder=path)
    print(*Listing.of(Path(path).expanduser().absolute(), ending).account(), sep="\n")
    return 0


_MOST_FILES = 12
_ACTIONS = {"list": _list, "get": _get, "verify": _verify, "show": _show, "columns": _columns, "pictures": _pictures}


def _parser(program: str) -> Parser:
    form: Any = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser(program, **form)
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("list", "get", "verify", "show"):
        one = actions.add_parser(action, **form)
        if action != "list":
            one.add_argument("names", nargs="+", metavar="NAME", help="a data set, as for --dataset")
        one.add_argument("--root", type=Path, help="data root; default: $FLFW_DATA, else the user cache")
    one = actions.add_parser("columns", **form)
    one.add_argument("table", help="csv:FILE@TARGET or parquet:FILE@TARGET")
    stated = "write the plan of ranges that you state (age=0:120 sex=f,m), to FILE.toml; no row is read"
    one.add_argument("--public", nargs="+", metavar="COLUMN=RANGE", help=stated)
    one.add_argument("--set", nargs="*", default=[], help="settings, as for flfw run: csv.drop=id csv.task=regression")
    one.add_argument("--write", type=Path, help="write the plan of the columns to this file, to be edited")
    one.add_argument("--for-sites", action="store_true", help="features for other and for missing values")
    actions.add_parser("pictures", **form).add_argument(
        "folder", help="a folder, with @patient as for --dataset folder:"
    )
    actions.add_parser("split")
    return parser
