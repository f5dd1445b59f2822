"""Plan of an experiment before it starts: its sizes and its privacy budget; nothing is trained."""

from __future__ import annotations

from dataclasses import asdict
from math import prod
from typing import Any

from flfw.dp.run_accountant import RunAccountant, course
from flfw.experiment import Experiment
from flfw.plan import plan
from flfw.task import Task


def planned(experiment: Experiment, task: Task) -> dict[str, Any]:
    """Return a part of result.json: ``privacy`` as in a finished run, and the sizes of the data and of the run.

    Args:
        experiment: the resolved experiment.
        task: task of the experiment.

    Returns:
        Beside ``privacy``, ``plan``: examples for training and testing in all, numbers in an input, classes, examples
        and local steps of the client with the most examples, batch size, rounds.
    """
    schedule, data = course(plan(experiment).client, task.split), task.dataset
    sizes = {
        "train": len(data.train_y),
        "test": len(data.test_y),
        "features": prod(data.shape),
        "classes": data.classes,
        "examples": schedule.max_examples,
        "steps": schedule.local_steps,
        "batch": schedule.batch_size,
        "rounds": schedule.rounds,
    }
    config = {**asdict(experiment), "out": None, "data_root": None, "lpips_weights": None}
    return {"config": config, "plan": sizes, "privacy": RunAccountant(plan(experiment).client, task.split).entries()}
