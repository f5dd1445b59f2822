"""``python -m flfw.data.download mnist --root DIR``: get data sets before they are needed.

Say on a machine that soon has no network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from flfw import data
from flfw.errors import BadInput


def main(arguments: Iterable[str] | None = None) -> int:
    """Download data sets and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flfw.data.download", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="a data set, as for --dataset")
    parser.add_argument("--root", type=Path, help="data root; default: $FLFW_DATA, else the user cache")
    chosen = parser.parse_args(None if arguments is None else list(arguments))
    for name in chosen.names:
        try:
            data.fetch(name, chosen.root)
            print(f"{name}: {len(data.load(name, chosen.root).train_y)} training examples are ready")
        except BadInput as error:
            print(f"flfw.data.download: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
