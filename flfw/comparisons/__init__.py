"""Matrix of methods, defences, seeds and data sets under the same attacks and budget: ``sim.py --matrix``."""

from flfw.comparisons.matrices import main, run, summary
from flfw.comparisons.question import Matrix, parse

__all__ = ["Matrix", "main", "parse", "run", "summary"]
