"""Command line of a checkout, the same as ``flfw run``: ``python sim.py --method hyperfl --dataset mnist``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flfw.__main__ import main as program

if TYPE_CHECKING:
    from flfw.command.arguments import Command
    from flfw.experiment import Experiment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``flfw run``; return the exit code: 0 done, 1 failed, 2 bad input."""
    return program(["run", *(sys.argv[1:] if arguments is None else arguments)], "sim.py")


def parse(arguments: list[str], stored: Experiment | None = None) -> Command:
    """Parse a command line, as `flfw.command.arguments.parse` does."""
    from flfw.command import arguments as command_line

    return command_line.parse(arguments, stored)


if __name__ == "__main__":
    sys.exit(main())
