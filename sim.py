"""Command line of a checkout: ``python sim.py --method hyperfl --dataset mnist --attack ig``; see `flfw.command`."""

from __future__ import annotations

import sys

from flfw.command.record import parse
from flfw.command.simulation import main

__all__ = ["main", "parse"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
