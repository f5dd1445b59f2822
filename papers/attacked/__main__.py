"""Command ``python -m papers.attacked [FOLDER]``: take a finished matrix, and print docs/attacked_defences.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flfw.errors import BadInput
from flfw.storage.sealed import write_whole
from papers.attacked import PAGE, read, take, text


def main() -> int:
    """Run the command and return its exit code."""
    ask = argparse.ArgumentParser(prog="python -m papers.attacked", description=__doc__)
    ask.add_argument("finished", nargs="?", type=Path, help="folder of the finished matrix; none: print the page anew")
    given = ask.parse_args()
    try:
        if given.finished:
            take(given.finished)
        write_whole(PAGE, text(read()).encode())
        return 0
    except BadInput as error:
        print(f"python -m papers.attacked: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
