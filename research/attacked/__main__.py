"""Command ``python -m research.attacked [FOLDER]``: take a finished matrix, and print its pages in docs/."""

import sys
from collections.abc import Sequence
from pathlib import Path

from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.files.sealed import write_atomic
from research.attacked import PAGE, TABLES, read, tables, take, text


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return exit_code("python -m research.attacked", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    ask = Parser(prog="python -m research.attacked", description=__doc__)
    ask.add_argument("finished", nargs="?", type=Path, help="folder of the finished matrix; none: print the page anew")
    given = ask.parse_args(arguments)
    if given.finished:
        take(given.finished)
    records = read()
    write_atomic(PAGE, text(PAGE.read_text(), records).encode())
    write_atomic(TABLES, tables(records).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
