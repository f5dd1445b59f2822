"""Time of a local iteration: the training of a client, timed in turns with plain training of the same network.

The time covers `flfw.client.federated_client.FederatedClient.train` in a round and `upload_tensors`, which prepares the
upload: batches and their loading, gradients, clipping, noise, steps. It is divided by the number of mini-batches.
Evaluation, messages and the server are not timed. Times are processor times, since other programs may use the machine.
Compare only ratios with those of another machine, and only ratios of trainings that were timed in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, final

from torch import Tensor

from flfw.client.context import ClientContext
from flfw.experiment import Experiment
from flfw.files.provenance import hardware
from flfw.nets.training.devices import one_thread
from flfw.nets.training.optimisers import LocalTraining
from flfw.plans.run_plan import plan
from flfw.plugins import short_name, split_assignment
from flfw.task.task import Task

PLAIN = "fedavg"
TURNS = 7


@final
class Trainee:
    """First client of an experiment, which starts every turn from the same weights.

    Args:
        experiment: the resolved experiment.
        task: task of the experiment.
    """

    def __init__(self, experiment: Experiment, task: Task) -> None:
        self._client = plan(experiment).client_class(ClientContext(plan(experiment).client, task, 0, 1, None, None))
        self._start = {name: value.clone() for name, value in self._client.model.state_dict().items()}
        received = {name: self._start[name].numpy() for name in self._client.download_names}
        self._client.load_received(received, 0)
        self.steps = experiment.local_epochs * ceil(len(task.split.train[0]) / experiment.batch_size)

    def turn(self) -> float:
        """Train for a round; return the processor time of a local iteration in ms, mean over the round."""
        for name, value in self._client.model.state_dict().items():
            value.copy_(self._start[name])
        started = time.process_time()
        self._client.train()
        self._client.upload_tensors()
        return 1000 * (time.process_time() - started) / self.steps

    def update(self) -> dict[str, Tensor]:
        """Return the change of each tensor by the last turn, on the processor."""
        now = self._client.model.state_dict()
        return {name: now[name].cpu() - value for name, value in self._start.items() if value.is_floating_point()}


def in_turns(trainees: Sequence[Trainee], turns: int) -> list[list[float]]:
    """Time the trainees in turns A B A B, in ms, on one thread; the first turn of each is not counted."""
    with one_thread():
        for one in trainees:  # the first steps set things up
            one.turn()
        return [[one.turn() for one in trainees] for _ in range(turns)]


def plain(experiment: Experiment) -> Experiment:
    """Return the same experiment by FedAvg, with the method's optimiser."""
    settings: Any = plan(experiment).client.settings
    others = [one for one in experiment.set if "." in split_assignment(one)[0]]
    alike = [other for other in others if not other.startswith(f"{short_name(experiment.method)}.")]
    if isinstance(settings, LocalTraining):
        alike += [f"{name}={getattr(settings, name)}" for name in ("optimiser", "momentum", "weight_decay")]
    return replace(experiment, method=PLAIN, set=tuple(alike))


def clocked(experiment: Experiment, task: Task, turns: int = TURNS) -> dict[str, Any]:
    """Return a part of result.json: ``timing`` of a local iteration.

    Args:
        experiment: the resolved experiment.
        task: task of the experiment.
        turns: number of turns, over which the median is taken.

    Returns:
        ``ms`` of this method and ``plain_ms`` of plain training, medians of the processor time in milliseconds;
        ``ratio``, the median of the turns' ratios; a note on the machine.
    """
    sides = [Trainee(experiment, task), Trainee(plain(experiment), task)]
    times = in_turns(sides, turns)
    ms, plain_ms = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in times)
    timing = {"ms": ms, "plain_ms": plain_ms, "ratio": ratio, "turns": turns, "steps": sides[0].steps}
    return {"timing": timing, "notes": [f"Timed in milliseconds of the processor, one thread, on {hardware()}."]}
