"""What is known of an experiment before it starts: its sizes and what it will cost in privacy; nothing is trained."""

from __future__ import annotations

from dataclasses import asdict
from math import prod
from typing import Any

from flfw.dp.ledger import Ledger, course
from flfw.experiment import Experiment
from flfw.task import Task


def plan(experiment: Experiment, task: Task) -> dict[str, Any]:
    """As a part of result.json: ``privacy`` like a finished run's, and the sizes of the data and of the run.

    Args:
        experiment: resolved.
        task: of the experiment.

    Returns:
        Beside ``privacy``, ``plan``: examples for training and testing in all, numbers in an input, classes, examples
        and local steps of the client that has the most, batch size, rounds.
    """
    found, data = course(experiment, task.split), task.dataset
    sizes = {
        "train": len(data.train_y),
        "test": len(data.test_y),
        "features": prod(data.shape),
        "classes": data.classes,
        "examples": found.most,
        "steps": found.local_steps,
        "batch": found.batch,
        "rounds": found.rounds,
    }
    about = {**asdict(experiment), "out": None, "data_root": None, "lpips_weights": None}
    return {"config": about, "plan": sizes, "privacy": Ledger(experiment, task.split).entries()}
