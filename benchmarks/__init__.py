"""One command for each claim of speed or memory: ``python -m benchmarks.NAME --json``."""
