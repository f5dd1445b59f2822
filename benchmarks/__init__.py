"""Benchmarks: one command for each claim of speed or memory, ``python -m benchmarks.NAME [--quick] [--only NAME]``."""

import time

STARTED = time.monotonic()
"""When the command began: what it imports takes part of a budget of time."""
