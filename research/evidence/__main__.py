"""Command ``python -m research.evidence``: gather evidence, or print docs/tables/evidence.md from it."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import flfw
from flfw.errors import require
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.papers.evidence.records import FOLDER, read
from research.evidence import costs, page
from research.evidence.gather import RUNS, Gathering, gather


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return exit_code("python -m research.evidence", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    ask = Parser(prog="python -m research.evidence", description=__doc__)
    ask.add_argument("--minutes", type=float, default=150, help="end after so many; 0: when the list is done")
    ask.add_argument("--cores", type=int, default=1, help="cells at a time, each in a process of its own")
    ask.add_argument("--gpus", type=float, default=0.0, help="share of a GPU for each run")
    ask.add_argument("--only", default="", help="only cells whose path begins so, such as fed_cdp.5/Adult")
    ask.add_argument("--page", action="store_true", help="write docs/tables/evidence.md, and nothing else")
    ask.add_argument("--list", action="store_true", help="print the list with core-hours, and nothing else")
    ask.add_argument("--migrate", action="store_true", help="give records the present names of settings, nothing else")
    ask.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    ask.add_argument("--folder", type=Path, default=FOLDER, help="folder of the records")
    ask.add_argument("--code", type=Path, help=argparse.SUPPRESS)
    given = ask.parse_args(arguments)
    requested = {name: True for name in ("page", "list", "migrate") if getattr(given, name)}
    require(len(requested) < 2, "one of --page, --list and --migrate", **requested)
    require(given.cores >= 1, "cores >= 1", cores=given.cores)
    if given.code:  # the environment knows a checkout's code, too
        running = Path(flfw.__file__).resolve()
        require(running.is_relative_to(given.code.resolve()), f"the code of {given.code}", flfw=running)
    if given.page:
        page.write(given.folder)
        return 0
    if given.list:
        print(costs.listing(given.folder, given.only))
        return 0
    if given.migrate:
        for one in read(given.folder):  # under the names of today
            one.write(given.folder)
        return 0
    # The records that the landed code has count as well: those of the checkout may have been migrated to later names.
    limits = Gathering(given.minutes, given.runs, given.folder, FOLDER if given.code else None, given.only, given.gpus)
    os.nice(19)
    with _beside(given.cores - 1, arguments):
        gather(limits)
    return 0


@contextmanager
def _beside(count: int, arguments: Sequence[str]) -> Iterator[None]:
    """Gather in further processes, which end with this one; a terminal's Ctrl-C comes to them by SIGTERM from here."""
    command = [sys.executable, "-m", "research.evidence", *arguments, "--cores", "1"]
    others = [subprocess.Popen(command, process_group=0) for _ in range(count)]
    try:
        yield
        for one in others:
            one.wait()
    finally:
        for one in others:
            one.terminate()
        for one in others:
            one.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
