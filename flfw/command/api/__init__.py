"""Interface for Python programs and notebooks: each function does what a command does, and returns its result.

The same names can be imported from `flfw` itself; docs/python.md explains them.
"""

from flfw.command.api.calls import audit, estimate, resume, run
from flfw.command.api.library_calls import set_environment
from flfw.command.api.matrices import MatrixResult, run_matrix
from flfw.command.api.rehearsals import RehearsalResult, run_rehearsal
from flfw.command.api.result import Result

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
