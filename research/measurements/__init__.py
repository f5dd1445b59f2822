"""Measurements behind statements of the docs, a command each: ``python -m research.measurements.NAME``."""
