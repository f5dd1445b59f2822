"""``python -m flfw.data.download mnist --root DIR``: get data sets before they are needed.

Say on a machine that soon has no network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from flfw import data
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser


def main(arguments: Iterable[str] | None = None) -> int:
    """Download data sets and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code("flfw.data.download", lambda: _do(given))


def _do(arguments: list[str]) -> int:
    parser = Parser(prog="python -m flfw.data.download", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="a data set, as for --dataset")
    parser.add_argument("--root", type=Path, help="data root; default: $FLFW_DATA, else the user cache")
    chosen = parser.parse_args(arguments)
    return get(chosen.names, chosen.root)


def get(names: Iterable[str], root: Path | None) -> int:
    """Download data sets, say of each that it is ready, and return the exit code."""
    for name in names:
        data.fetch(name, root)
        ready = data.load(name, root)
        examples = "all" if ready.is_generated else len(ready.train_y)
        print(f"{name}: {examples} training examples are ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
