"""Command line of a checkout, the same as ``flfw run``: ``python sim.py --method hyperfl --dataset mnist``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flfw.command.arguments import parse
from flfw.command.program import main as program

__all__ = ["main", "parse"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``flfw run``; return the exit code: 0 done, 1 failed, 2 bad input."""
    return program(["run", *(sys.argv[1:] if arguments is None else arguments)], "sim.py")


if __name__ == "__main__":
    sys.exit(main())
