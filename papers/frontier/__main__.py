"""Command ``python -m papers.frontier POINTS.json``: write the page and the figure of measured points."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flfw.errors import BadInput
from papers.frontier import points
from papers.frontier.command import write


def main() -> int:
    """Run the command and return its exit code."""
    ask = argparse.ArgumentParser(prog="python -m papers.frontier", description=__doc__)
    ask.add_argument("points", type=Path, help="what sim.py --table dp.frontier wrote, such as docs/frontier.json")
    given = ask.parse_args()
    try:
        scale, known, papers = points.read(given.points)
        print("\n".join(map(str, write(given.points.with_suffix(""), scale, known, papers))))
        return 0
    except BadInput as error:
        print(f"python -m papers.frontier: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
