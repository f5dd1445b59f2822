"""Measurement of a point: settings are chosen on validation data, then the chosen ones are tested with other seeds.

The price of tuning is the epsilon of all these runs together, each of which saw the same training examples.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.papers import cells
from flfw.papers.frontier.points import FrontierPoint, in_scale, line_of
from flfw.papers.frontier.trials import SEEDS, TUNING_SEED, FrontierLine, Trial, experiment, trials
from flfw.papers.preset import Preset, Scale, at_seeds
from flfw.papers.published import Cell
from flfw.privacy.claims import claim
from flfw.runs.run import check

PENDING = "not reached yet"
_NEAR = 0.01  # a point of accuracy


def chosen(tried: Sequence[tuple[Trial, float]]) -> Trial:
    """Return the settings with the highest validation accuracy, the first of equals.

    >>> one, two = (Trial("linear", 1.0, lr, 10) for lr in (1.0, 2.0))
    >>> chosen([(one, 0.8), (two, 0.8)]) is one
    True
    """
    return max(tried, key=lambda one: one[1])[0]


def missing(cell: Cell, reason: str) -> FrontierPoint:
    """Return the point of a cell that was not measured."""
    line = line_of(cell)
    data, epsilon = str(cell.keys["dataset"]), float(cell.keys["epsilon"])
    return FrontierPoint(cell.path, data, line.method, line.unit, line.against, epsilon, reason=reason)


def measured(cell: Cell, scale: Scale, given: Experiment, folder: Path, say: Callable[[str], None]) -> FrontierPoint:
    """Run the missing runs of a point, and read its numbers.

    Args:
        cell: the point's cell.
        scale: the scale.
        given: source of the settings that decide no numbers.
        folder: folder of all runs.
        say: takes a line of progress.

    Returns:
        The point; a missing one, with the reason in one line, if a run failed or could not be started.
    """
    line, outcomes = line_of(cell), list[cells.Outcome]()
    if not in_scale(cell, scale):
        return missing(cell, f"not in the {scale} scale")
    options = trials(line, str(cell.keys["dataset"]), scale)
    try:
        for trial in options:
            outcomes.append(cells.measured(cell, _tuning(cell, trial, scale, given, folder), say))
            if not isinstance(outcomes[-1].value, float):
                return missing(cell, f"{trial.words}: {outcomes[-1].reason}")
        values = [float(one.value or 0) for one in outcomes]
        best = chosen(list(zip(options, values, strict=True)))
        say(f"{cell.path}: {best.words}, {max(values):.3f} on validation data")
        final = cells.measured(cell, _reported(cell, best, scale, given, folder), say)
        if not isinstance(final.value, float):
            return missing(cell, f"{best.words}: {final.reason}")
        tuning = [run for outcome in outcomes for run in outcome.runs]
        return _point(cell, line, list(zip(options, values, strict=True)), best, tuning, final)
    except (InputError, RunError) as error:
        return missing(cell, str(error))


def folders(cell: Cell, scale: Scale, given: Experiment, folder: Path) -> Iterator[str]:
    """Yield the names of a point's runs that choose."""
    for trial in trials(line_of(cell), str(cell.keys["dataset"]), scale):
        for run in _tuning(cell, trial, scale, given, folder).experiments:
            yield run.folder.name


def _experiment(cell: Cell, trial: Trial, scale: Scale) -> Experiment:
    line, data = line_of(cell), str(cell.keys["dataset"])
    return experiment(line, data, trial, float(cell.keys["epsilon"]), TUNING_SEED, scale)


def _tuning(cell: Cell, trial: Trial, scale: Scale, given: Experiment, folder: Path) -> Preset:
    return cells.placed(Preset(((_experiment(cell, trial, scale),),), line_of(cell).validation), given, folder)


def _reported(cell: Cell, trial: Trial, scale: Scale, given: Experiment, folder: Path) -> Preset:
    line = line_of(cell)
    preset = Preset((at_seeds(_experiment(cell, trial, scale), SEEDS),), line.test, also=(line.epsilon,))
    return cells.placed(preset, given, folder)


def _point(
    cell: Cell,
    line: FrontierLine,
    tried: Sequence[tuple[Trial, float]],
    best: Trial,
    tuning: Sequence[Experiment],
    final: cells.Outcome,
) -> FrontierPoint:
    """Return the point; its epsilons are the largest over the seeds, and its accuracy is their mean."""
    assert isinstance(final.value, float), "it was measured"
    ended = max((run.folder / "result.json").stat().st_mtime for run in final.runs)
    return replace(
        missing(cell, ""),
        status="measured",
        epsilon=max(cells.numbers((run,), line.epsilon)[0] for run in final.runs),
        with_tuning=max(together([*tuning, run], line) for run in final.runs),
        accuracy=final.value,
        deviation=final.deviation,
        seeds=tuple(run.seed for run in final.runs),
        chosen=best.words,
        tried=tuple((trial.words, value) for trial, value in tried),
        folders=tuple(run.folder.name for run in (*tuning, *final.runs)),
        code=final.codes,
        date=datetime.fromtimestamp(ended, UTC).date().isoformat(),
        hardware=tuple(dict.fromkeys(cells.result(run)["environment"]["hardware"] for run in final.runs)),
        notes=tuple(filter(None, (*final.notes, final.uninformative, guessing(final.runs[0], final.value)))),
    )


def guessing(one: Experiment, accuracy: float) -> str:
    """Return a note where a mean accuracy is not above the share of the largest class in the training data."""
    largest = json.loads((one.folder / "reach.json").read_text())["largest_class"]
    return f"no better than guessing the largest class, {largest:.2f}" if accuracy <= largest + _NEAR else ""


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
    first, runs = finished[0], [_accountant(experiment) for experiment in finished]
    mechanisms = [one.mechanism for one in runs if one.mechanism]
    assert {one.clipped for one in mechanisms} == {line.unit}, "a line is of the unit that its method clips"
    others = [one.others(line.unit)[0] for one in runs]
    rounds = sum(experiment.rounds for experiment in finished)
    return claim(mechanisms, line.unit, line.against, first.delta, rounds, first.accountant, others=others).epsilon


def _accountant(experiment: Experiment) -> RunAccountant:
    """Return the accountant of a finished run with the noise that it had."""
    result: Any = json.loads((experiment.folder / "result.json").read_text())
    noise = float(result["config"]["method_settings"]["noise_multiplier"])
    others = [one for one in experiment.set if not one.startswith("noise_multiplier=")]
    as_run = replace(experiment, target_epsilon=0.0, set=(*others, f"noise_multiplier={noise!r}"))
    run_plan, task, _ = check(as_run, new=False)
    accountant = RunAccountant(run_plan.client, task.split)
    if accountant.mechanism is None:
        raise RunError(f"{experiment.folder} claims nothing, so it has no place on the frontier.")
    return accountant
