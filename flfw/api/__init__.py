"""Interface for Python programs and notebooks: each function does what a command does, and returns its result.

The same names can be imported from `flfw` itself; docs/python.md explains them.
"""

from flfw.api.calls import audit, estimate, resume, run
from flfw.api.library_calls import set_environment
from flfw.api.matrices import MatrixResult, run_matrix
from flfw.api.rehearsals import RehearsalResult, run_rehearsal
from flfw.api.result import Result

set_environment()  # before Flower and torch are imported, which read it once

__all__ = [
    "MatrixResult",
    "RehearsalResult",
    "Result",
    "audit",
    "estimate",
    "resume",
    "run",
    "run_matrix",
    "run_rehearsal",
]
