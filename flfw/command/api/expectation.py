"""Expectation of a run before it starts: its claims of privacy, its notes, and its costs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from subprocess import Popen
from typing import Any, final

from flfw.command.api.summary import claimed
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.folders import require_folder
from flfw.runs.estimate import Estimate, estimate, lines
from flfw.runs.launch import check_resources
from flfw.runs.run import check


@final
@dataclass(frozen=True)
class Expectation:
    """Expectation of a run; as text, the lines that the command line prints.

    Attributes:
        privacy: the claims, as in result.json.
        notes: notes on the data and the settings.
        costs: time, memory, traffic and disk.
        metrics: numbers that clients report.
    """

    privacy: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    costs: Estimate
    metrics: str

    def __str__(self) -> str:
        return "\n".join([*claimed(self.privacy, self.metrics), *self.notes, lines(self.costs)])


def expected(experiment: Experiment, **begun: Popen[str]) -> Expectation:
    """Check an experiment and measure its costs for some seconds; nothing is written.

    Args:
        experiment: the experiment.
        **begun: processes of phases that wait for it.

    Raises:
        InputError: something asked for does not exist or does not fit.
        RunError: a measurement failed, as the run would.
    """
    if experiment.ray_address:
        raise InputError(f"Expected --estimate on this machine alone, got --ray-address {experiment.ray_address}.")
    run_plan, task, notes = check(experiment)
    task.require_data("--estimate")
    check_resources(run_plan.experiment)
    require_folder(run_plan.experiment.folder)
    began = time.process_time()
    privacy = tuple(RunAccountant(run_plan.client, task.split).entries())
    costs = estimate(run_plan, time.process_time() - began, **begun)
    return Expectation(privacy, tuple(notes), costs, run_plan.experiment.metrics)
