"""Interface for Python programs and notebooks: each function does what a command does, and returns its result.

Runs, audits, resumptions and estimates are by the code of the command ``sim.py``. The same names can be imported from
`flfw` itself; docs/python.md explains them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flfw.command.api.arguments import changed, experiment_of, folder_of
from flfw.command.api.library_calls import library_call, set_environment
from flfw.command.api.matrices import MatrixResult, run_matrix
from flfw.command.api.rehearsals import RehearsalResult, run_rehearsal
from flfw.command.api.result import Result
from flfw.command.arguments import PRIVATE, leaves_training_open
from flfw.experiment import Experiment

if TYPE_CHECKING:
    from flfw.command.api.expectation import Expectation
    from flfw.runs.trained_model import TrainedModel

set_environment()  # before Flower and torch are imported, which read it once

__all__ = [
    "MatrixResult",
    "RehearsalResult",
    "Result",
    "audit",
    "estimate",
    "load_model",
    "resume",
    "run",
    "run_matrix",
    "run_rehearsal",
]


def run(experiment: Experiment | None = None, **fields: Any) -> Result:
    """Run an experiment and its audit, as ``sim.py`` does; return its result.

    Args:
        experiment: the experiment; None: the defaults.
        fields: fields of `Experiment` with other values than the experiment's: ``run(method="fedavg", attack="ig")``.

    Raises:
        InputError: something asked for does not exist or does not fit; nothing has been written.
        RunError: it started and could not be completed; `resume` goes on with it.
    """
    with library_call():
        requested = _with_training(experiment, fields)
        from flfw.runs.run import run as carry_out

        return Result.load(carry_out(requested))


def _with_training(experiment: Experiment | None, fields: dict[str, Any]) -> Experiment:
    """Return the experiment of a call; of fields alone with its private training chosen, as ``sim.py`` does."""
    requested = experiment_of(experiment, fields)
    if experiment is not None or not leaves_training_open(requested, fields.keys()):
        return requested
    from flfw.runs.run import choose_training

    return choose_training(replace(requested, method=PRIVATE), fields)


def resume(folder: str | os.PathLike[str], **fields: Any) -> Result:
    """Resume a run that was cut short from its last checkpoint, as ``sim.py --resume`` does; return its result.

    Args:
        folder: folder of the run.
        fields: fields that decide no numbers, such as ``engine``, with other values.

    Raises:
        InputError: the folder holds no run, a damaged one or another one, or a field decides its numbers.
        RunError: it could not be completed.
    """
    with library_call():
        from flfw.command.api.earlier import resume_changed

        return Result.load(resume_changed(folder_of(folder), lambda stored: changed(stored, fields)))


def audit(run: str | os.PathLike[str], **fields: Any) -> Result:
    """Attack the recordings of an earlier run, as ``sim.py --from`` does; return the result of this audit.

    Args:
        run: the result or the folder of the run.
        fields: fields of the audit with other values than the run's, such as ``attack``; ``out`` is a new folder, by
            default ``audit-N`` in that of the run.

    Raises:
        InputError: a field is not one of an audit, or what it asks for was not recorded; nothing has been written.
        RunError: the attack process could not go on.
    """
    with library_call():
        from flfw.command.api.earlier import audit_changed

        return Result.load(audit_changed(folder_of(run, "run"), lambda stored: changed(stored, fields)))


def estimate(experiment: Experiment | None = None, **fields: Any) -> Expectation:
    """Measure for some seconds and return expected time, memory and claims, as ``sim.py --estimate`` prints them.

    Args:
        experiment: the experiment; None: the defaults.
        fields: fields of `Experiment` with other values than the experiment's.

    Raises:
        InputError: something asked for does not exist or does not fit.
        RunError: a measurement failed, as the run would.
    """
    with library_call():
        requested = _with_training(experiment, fields)
        from flfw.command.api.expectation import expected

        return expected(requested)


def load_model(run: str | os.PathLike[str], client: int | None = None) -> TrainedModel:
    """Load the model that a run ended with, from its folder alone: ``scores = model(model.preprocess(x))``.

    Args:
        run: the result or the folder of the run.
        client: number of the client whose model it is, where each has its own; None: the model of all.

    Raises:
        InputError: the run is not finished, or its folder is damaged or does not hold the model.
    """
    with library_call():
        from flfw.runs.trained_model import open_model

        return open_model(folder_of(run, "run"), client)
