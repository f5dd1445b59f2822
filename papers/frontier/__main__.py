"""Command ``python -m flfw.papers.frontier POINTS.json``: write the page and the figure of measured points."""

import sys
from collections.abc import Sequence
from pathlib import Path

from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.papers.frontier import points
from flfw.papers.frontier.command import write


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return exit_code("python -m flfw.papers.frontier", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    ask = Parser(prog="python -m flfw.papers.frontier", description=__doc__)
    ask.add_argument("points", type=Path, help="of sim.py --table dp.frontier, such as docs/tables/frontier.json")
    given = ask.parse_args(arguments)
    scale, known, papers = points.read(given.points)
    print("\n".join(map(str, write(given.points.with_suffix(""), scale, known, papers))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
