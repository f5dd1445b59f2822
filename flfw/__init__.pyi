"""Types of the names that `flfw` imports when they are asked for."""

from flfw.api import MatrixResult as MatrixResult
from flfw.api import RehearsalResult as RehearsalResult
from flfw.api import Result as Result
from flfw.api import audit as audit
from flfw.api import estimate as estimate
from flfw.api import resume as resume
from flfw.api import run as run
from flfw.api import run_matrix as run_matrix
from flfw.api import run_rehearsal as run_rehearsal
from flfw.errors import InputError as InputError
from flfw.errors import RunError as RunError
from flfw.experiment import Experiment as Experiment
from flfw.papers.interface.tables import TableResult as TableResult
from flfw.papers.interface.tables import reproduce_table as reproduce_table

__version__: str

from types import ModuleType

class CallablePackage(ModuleType): ...
