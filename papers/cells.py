"""Experiments of a cell: they are planned and run, and their results are read; a finished run is used again.

Each experiment has its own folder. The folder is named after all settings that decide the numbers, so tables share
runs. A completed run is read, an interrupted run is resumed, and a run without a checkpoint is started again. Where no
whole run is needed (`flfw.papers.preset.Source`), the folder holds only a result.json. The plan of an experiment has
its sizes and its privacy budget; nothing is trained for it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite, prod
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from flfw import data, nets, plugins
from flfw.comparisons.figures import norms
from flfw.dp.run_accountant import RunAccountant, schedules
from flfw.errors import InputError, RunError
from flfw.experiment import FREE_ON_RESUME, Experiment
from flfw.files.provenance import code_hash
from flfw.files.result_file import read_result, to_json
from flfw.files.sealed import write_atomic
from flfw.papers.preset import Preset, ResultMetric
from flfw.papers.published import Cell
from flfw.plans.run_plan import plan, without_auto
from flfw.runs import run
from flfw.runs.reach import Reach, keep, reach, uninformative
from flfw.server import checkpoint
from flfw.task.task import Task


def planned(experiment: Experiment, task: Task) -> dict[str, Any]:
    """Return a part of result.json: ``privacy`` as in a finished run, and the sizes of the data and of the run.

    Args:
        experiment: the resolved experiment.
        task: task of the experiment.

    Returns:
        Beside ``privacy``, ``plan``: examples for training and testing in all, numbers in an input, classes, examples
        and local steps of the client with the most examples, batch size, rounds.
    """
    largest = max(schedules(plan(experiment).client, task.split), key=lambda one: one.examples)
    data = task.dataset
    sizes = {
        "train": len(data.train_y),
        "test": len(data.test_y),
        "features": prod(data.shape),
        "classes": data.classes,
        "examples": largest.examples,
        "steps": largest.local_steps,
        "batch": largest.batch_size,
        "rounds": largest.rounds,
    }
    config = {**asdict(experiment), "out": None, "data_root": None, "lpips_weights": None}
    return {"config": config, "plan": sizes, "privacy": RunAccountant(plan(experiment).client, task.split).entries()}


Status = Literal["measured", "not run", "failed"]
OURS = "variant=ours"
"""Name of the figure that the variant ``ours`` gives, beside that of ``authors``."""

_WITHOUT_A_RUN: Mapping[str, Callable[[Experiment, Task], dict[str, Any]]] = {"plan": planned, "clock": norms.clocked}


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell.

    Attributes:
        cell: the published cell.
        status: whether the cell was measured.
        reason: reason for a missing number, in one line.
        preset: preset of the cell, if there is one.
        value: mean over the seeds, in the paper's unit; Y or N where the paper prints these, or another word.
        deviation: sample standard deviation over the seeds; None with one seed, and for words.
        also: means over the seeds of the figures beside it, by name.
        runs: the chosen experiments, one for each seed.
        codes: hashes of the code that ran them.
        notes: notes of the runs on their data and failures.
        uninformative: why the numbers say nothing of the method; empty if nothing shows that.
    """

    cell: Cell
    status: Status
    reason: str = ""
    preset: Preset | None = None
    value: float | str | None = None
    deviation: float | None = None
    also: Mapping[str, float | str] = field(default_factory=dict)
    runs: tuple[Experiment, ...] = ()
    codes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    uninformative: str = ""


def obstacle(cell: Cell, preset: Preset | None) -> str:
    """Return why this version cannot run a cell, even with all data present; empty if it can."""
    if cell.value is None and not cell.lost and not (preset and preset.figure.absent):
        return f"paper value not available{f' ({cell.note})' if cell.note else ''}"
    if preset is None:
        return f"no preset for {cell.table} in this version"
    for experiment in preset.experiments:
        method, dataset = experiment.method, experiment.dataset
        if ":" not in method and method not in plugins.names(plugins.METHOD):
            return f"method {method} is not in this version"
        if ":" not in dataset and dataset not in data.names():
            return f"data set {dataset} is not in this version"
    return ""


def placed(preset: Preset, given: Experiment, folder: Path) -> Preset:
    """Return the preset with all settings in place and a folder for each experiment.

    Args:
        preset: the preset from the paper's file.
        given: source of the settings that decide no numbers.
        folder: folder of all runs.

    Raises:
        InputError: the given settings do not fit.
    """
    free = {name: getattr(given, name) for name in FREE_ON_RESUME}
    nets.look_in(given.weights)

    def place(experiment: Experiment) -> Experiment:
        try:
            full = without_auto(experiment)
        except InputError:  # the check before the run gives the reason, for this cell alone
            full = experiment
        name = folder_name(full) if preset.source == "run" else f"{preset.source}-{folder_name(full)}"
        return replace(full, **{**free, "out": folder.absolute() / name})

    choices = tuple(tuple(map(place, runs)) for runs in preset.choices)
    further = tuple(replace(one, experiments=tuple(map(place, one.experiments))) for one in preset.further)
    return replace(preset, choices=choices, beside=tuple(map(place, preset.beside)), further=further)


def folder_name(experiment: Experiment) -> str:
    """Return METHOD-DATASET-DIGEST, the same for all experiments with the same numbers.

    Settings at their default are not hashed. So a new setting of a later version changes no name.
    """
    usual = Experiment().decisive
    changed = {key: value for key, value in sorted(experiment.decisive.items()) if value != usual[key]}
    digest = hashlib.sha256(json.dumps(changed).encode()).hexdigest()[:12]
    return "-".join((experiment.method.rpartition(":")[2], experiment.dataset.partition(":")[0], digest))


def is_complete(preset: Preset) -> bool:
    """Return whether all experiments are complete."""
    return all(checkpoint.is_complete(experiment.folder) for experiment in preset.experiments)


class NotMeasured(InputError):
    """Error: the runs are complete, but an input of a figure was not given."""


def measured(cell: Cell, preset: Preset, say: Callable[[str], None] = lambda line: None) -> Outcome:
    """Run the missing experiments, and read the results of all.

    Args:
        cell: the published cell.
        preset: its `placed` preset.
        say: takes a line on the reach of each experiment that clips or adds noise, before it is trained.

    Returns:
        The measured outcome; or, in one line, why nothing could be run or which run failed.
    """
    todo = [experiment for experiment in preset.experiments if not checkpoint.is_complete(experiment.folder)]
    foreseen: list[tuple[Reach | None, Task]] = []
    try:
        for experiment in todo:
            run_plan, task, _ = run.check(experiment, new=False)
            reached = reach(run_plan, task) if preset.source == "run" and task.has_data else None
            foreseen.append((reached, task))
    except InputError as error:
        return Outcome(cell, "not run", str(error), preset)
    try:
        for experiment, (reached, task) in zip(todo, foreseen, strict=True):
            if preset.source == "run":
                if reached:
                    say(f"{cell.path}: {reached.sentence}")
                run.run_or_resume(experiment)
                keep(experiment.folder, reached, task)
            else:
                _without_a_run(experiment, preset.source)
        return read(cell, preset)
    except NotMeasured as error:
        return Outcome(cell, "not run", str(error), preset)
    except (InputError, RunError) as error:
        return Outcome(cell, "failed", str(error), preset)


def _without_a_run(experiment: Experiment, source: str) -> None:
    run_plan, task, notes = run.check(experiment, new=False)
    experiment = run_plan.experiment
    result = {"notes": notes, "provenance": {"code": code_hash()}} | _WITHOUT_A_RUN[source](experiment, task)
    folder = experiment.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "result.json", to_json(result))


def read(cell: Cell, preset: Preset) -> Outcome:
    """Return the outcome of a cell from its completed runs.

    Raises:
        NotMeasured: the figure needs LPIPS, and its weights were not given.
        RunError: a result lacks the figure, or is damaged.
    """
    runs, figure = _chosen(preset), preset.figure
    loaded, values = [result(experiment) for experiment in runs], numbers(runs, figure)
    spread = len(values) > 1 and figure.yes is None and all(map(isfinite, values))
    beside = {other.name: _mean(runs, other) for other in preset.also}
    beside |= {other.name: _mean(other.experiments, other.figure) for other in preset.further}
    if preset.beside:
        beside[OURS] = _mean(preset.beside, figure)
    return Outcome(
        cell,
        "measured",
        preset=preset,
        value=_mean(runs, figure),
        deviation=stdev(values) if spread else None,
        also={name: value for name, value in beside.items() if value != ""},
        runs=runs,
        codes=tuple(dict.fromkeys(result["provenance"]["code"] for result in loaded)),
        notes=tuple(dict.fromkeys(note for result in loaded for note in result["notes"])),
        uninformative=next(filter(None, (uninformative(experiment.folder) for experiment in runs)), ""),
    )


def _chosen(preset: Preset) -> tuple[Experiment, ...]:
    """Return the runs of the best choice; the first one if several are equal."""
    by = preset.chosen_by
    return max(preset.choices, key=lambda runs: fmean(numbers(runs, by))) if by else preset.choices[0]


def _mean(runs: Sequence[Experiment], figure: ResultMetric) -> float | str:
    """Return the table entry for the mean of a figure over runs."""
    values = numbers(runs, figure)
    return figure.printed(fmean(values)) if values else figure.absent or ""


def numbers(runs: Iterable[Experiment], figure: ResultMetric) -> list[float]:
    """Return the figure of each run, in the paper's unit; empty if it is optional and a run lacks it."""
    values = []
    for experiment in runs:
        value = _under(result(experiment), figure.name.split("."))
        if value is None and figure.absent is not None:
            return []
        if value is None and ".lpips." in figure.name and not experiment.lpips_weights:
            raise NotMeasured("LPIPS is not measured without the weights of its network: give --lpips-weights FILE")
        if value == "inf":  # as result.json writes it
            value = inf
        if not isinstance(value, int | float):
            raise RunError(f"{experiment.folder / 'result.json'} has no {figure.name}.")
        values.append(value * figure.factor)
    return values


def _under(value: Any, keys: Sequence[str]) -> Any:
    """Return the value under a path of keys; None: there is none, or several entries of a list match.

    A key into a list is ``name=value`` or ``name!=value``, or several of them with commas between. ``*`` is the mean
    over all entries of the list.
    """
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if isinstance(value, Mapping):
        return _under(value.get(key), rest)
    if not isinstance(value, list):
        return None
    if key == "*":
        each = [_under(entry, rest) for entry in value]
        return fmean(each) if each and all(isinstance(one, int | float) for one in each) else None
    wanted = [part.split("=", 1) for part in key.split(",")]
    entries = [one for one in value if all(_holds(one, name, text) for name, text in wanted)]
    return _under(entries[0], rest) if len(entries) == 1 else None


def _holds(entry: Mapping[str, Any], name: str, text: str) -> bool:
    return (str(entry.get(name.removesuffix("!"))) == text) != name.endswith("!")


def result(experiment: Experiment) -> dict[str, Any]:
    """Read the result of a finished, placed experiment.

    Raises:
        RunError: it is damaged.
    """
    path = experiment.folder / "result.json"
    try:
        return read_result(path.parent)
    except InputError as error:
        raise RunError(f"{path} is damaged ({error}); remove its folder to run it again.") from error
