"""Benchmarks: one command for each claim of speed or memory, ``python -m benchmarks.NAME [--quick] [--only NAME]``."""
