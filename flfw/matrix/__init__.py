"""Matrix of methods, defences and seeds under the same attacks, budget, images and clients: ``sim.py --matrix``."""

from flfw.matrix.cells import main, run, summary
from flfw.matrix.question import Matrix, parse

__all__ = ["Matrix", "main", "parse", "run", "summary"]
