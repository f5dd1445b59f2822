"""Command ``python -m flfw.papers.evidence``: gather evidence, or print docs/evidence.md from it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flfw.errors import require
from flfw.papers.evidence import page
from flfw.papers.evidence.gather import RUNS, Gathering, gather, measure
from flfw.papers.evidence.records import FOLDER
from flfw.terminal.exit_code import exit_code
from flfw.terminal.parser import Parser


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return exit_code("python -m flfw.papers.evidence", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    ask = Parser(prog="python -m flfw.papers.evidence", description=__doc__)
    ask.add_argument("--minutes", type=float, default=150, help="end after so many; 0: when the list is done")
    ask.add_argument("--cores", type=int, default=1, help="cells at a time, a core each")
    ask.add_argument("--gpus", type=float, default=0.0, help="share of a GPU for each run")
    ask.add_argument("--only", default="", help="only cells whose path begins so, such as fed_cdp.5/Adult")
    ask.add_argument("--page", action="store_true", help="write docs/evidence.md from the records, and nothing else")
    ask.add_argument("--list", action="store_true", help="print the list with what is recorded, and nothing else")
    ask.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    ask.add_argument("--folder", type=Path, default=FOLDER, help="folder of the records")
    ask.add_argument("--item", default="", help=argparse.SUPPRESS)
    given = ask.parse_args(arguments)
    require(not (given.page and given.list), "one of --page and --list", page=True, list=True)
    if given.item:
        return measure(given.item, given.runs, given.folder, given.gpus)
    if given.list:
        print(page.listing(given.folder, given.only))
        return 0
    if not given.page:
        gather(Gathering(given.minutes, given.cores, given.runs, given.folder, given.only, given.gpus))
    page.write(given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
