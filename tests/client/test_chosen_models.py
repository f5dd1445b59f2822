"""What a server learns by asking for the numbers of models that it chose, as docs/threat_model.md says."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from flfw.engines import apps
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack
from flfw.plans.run_plan import plan
from tests.support.method_rounds import initial_tensors

PIXEL, ONE, OTHER, CLIENT = 28, 3, 0, 1
LEVELS = 17  # of grey in the digits


def test_accuracies_of_chosen_models_tell_the_pixels_of_a_sites_test_examples(
    small: Experiment, tmp_path: Path
) -> None:
    """A threshold at a pixel is a model: one class above it, another below. Each example that it passes changes it."""
    experiment = dataclasses.replace(small, method="fedavg", net="linear")
    task, fresh = plan(experiment).task.load(None), initial_tensors(experiment)
    weight, bias = (next(name for name in fresh if name.endswith(part)) for part in ("weight", "bias"))
    (mean,), (std,) = task.dataset.mean, task.dataset.std

    def right_at(threshold: float) -> int:
        crafted = {name: np.zeros_like(value) for name, value in fresh.items()}
        crafted[bias][:] = -1e3  # the score of all other classes
        crafted[weight][ONE, PIXEL], crafted[bias][ONE] = std, mean - threshold
        crafted[bias][OTHER] = 0.0
        answer = evaluated(experiment, crafted, tmp_path)
        return round(answer["acc_global"] * answer["num-examples"])

    right = [right_at((level - 0.5) / (LEVELS - 1)) for level in range(LEVELS + 1)]
    learnt = np.subtract(right[:-1], right[1:])  # a level's examples of one class, less those of the other
    x, y = task.examples("test", task.split.test[CLIENT])
    levels = (x.flatten(1)[:, PIXEL] * (LEVELS - 1)).round().long()
    true = [
        int(((levels == level) & (y == ONE)).sum() - ((levels == level) & (y == OTHER)).sum())
        for level in range(LEVELS)
    ]
    assert learnt.tolist() == true and np.abs(learnt).sum() > 5


def evaluated(experiment: Experiment, arrays: dict[str, np.ndarray], folder: Path) -> dict[str, float]:
    grid = InProcessGrid(apps.client, 3, experiment.to_run_config(), [{"state": str(folder)}] * 3)
    config = {"code": code_hash(), "experiment": "test", "deadline": 600.0, "round": 1, "state_version": 0}
    content = {"arrays": pack({n: torch.tensor(v) for n, v in arrays.items()}), "config": ConfigRecord(config)}
    (reply,) = grid.send_and_receive([Message(RecordDict(content), CLIENT + 1, "evaluate")])
    assert not reply.has_error(), reply.error
    return dict(reply.content.metric_records["metrics"])  # type: ignore[arg-type]
