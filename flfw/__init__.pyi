"""Types of the names that `flfw` imports when they are asked for."""

from flfw.command.api import MatrixResult as MatrixResult
from flfw.command.api import RehearsalResult as RehearsalResult
from flfw.command.api import Result as Result
from flfw.command.api import audit as audit
from flfw.command.api import estimate as estimate
from flfw.command.api import load_model as load_model
from flfw.command.api import resume as resume
from flfw.command.api import run as run
from flfw.command.api import run_matrix as run_matrix
from flfw.command.api import run_rehearsal as run_rehearsal
from flfw.command.api.tables import TableResult as TableResult
from flfw.command.api.tables import reproduce_table as reproduce_table
from flfw.errors import InputError as InputError
from flfw.errors import RunError as RunError
from flfw.experiment import Experiment as Experiment

__version__: str

from types import ModuleType

class CallablePackage(ModuleType): ...
