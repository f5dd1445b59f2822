"""Price of tuning: the epsilon of several runs together, each of which saw the same training examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flfw.dp.run_accountant import RunAccountant
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.papers.frontier.lines import FrontierLine
from flfw.privacy.claims import claim
from flfw.privacy.mechanism import Mechanism
from flfw.runs import run


def together(finished: Sequence[Experiment], line: FrontierLine) -> float:
    """Return the epsilon of all runs together, for the line's unit and adversary, at their delta.

    The mechanisms of all runs are composed one after the other by the runs' accountant, as if each
    could follow from the results of those before it.

    Args:
        finished: placed experiments whose runs are complete, with equal delta and accountant.
        line: unit and adversary.

    Raises:
        RunError: a run has no mechanism.
    """
    first, mechanisms = finished[0], [_mechanism(experiment) for experiment in finished]
    assert {one.clipped for one in mechanisms} == {line.unit}, "a line is of the unit that its method clips"
    rounds = sum(experiment.rounds for experiment in finished)
    return claim(mechanisms, line.unit, line.against, first.delta, rounds, first.accountant).epsilon


def _mechanism(experiment: Experiment) -> Mechanism:
    """Return the mechanism of a finished run with the noise that it had."""
    assert experiment.out is not None, "the experiment was placed"
    result: Any = json.loads((experiment.out / "result.json").read_text())
    noise = float(result["config"]["method_settings"]["noise_multiplier"])
    others = [one for one in experiment.set if not one.startswith("noise_multiplier=")]
    as_run = replace(experiment, target_epsilon=0.0, set=(*others, f"noise_multiplier={noise!r}"))
    run_plan, task, _ = run.check(as_run, new=False)
    mechanism = RunAccountant(run_plan.client, task.split).mechanism
    if mechanism is None:
        raise RunError(f"{experiment.out} claims nothing, so it has no place on the frontier.")
    return mechanism
