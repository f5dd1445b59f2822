"""What a local iteration costs: a client's own training, timed in turns with plain training of the same network.

Timed is all that `flfw.client.federated_client.FederatedClient.train` does in a round, and `outgoing` with what is to
be sent, over the number of mini-batches in its epochs: batches and their loading, gradients, clipping, noise, steps.
Not timed are evaluation, messages and the server. On a machine that others use as well only seconds of the processor
mean something, and only ratios of sides that took turns may be compared with another machine's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, final

from flfw import resolve as parts
from flfw.client.workplace import Workplace
from flfw.experiment import Experiment
from flfw.plugins import split_assignment
from flfw.storage.provenance import hardware
from flfw.task import Task
from flfw.training.optimisers import LocalTraining
from flfw.training.threads import one_thread

PLAIN = "fedavg"
TURNS = 7


@final
class Trainee:
    """The first client of an experiment, which starts every turn from the same weights.

    Args:
        experiment: resolved.
        task: of the experiment.
    """

    def __init__(self, experiment: Experiment, task: Task) -> None:
        half, settings = parts.method(experiment)
        self._client = parts.client(experiment)(Workplace(experiment, task, half, settings, 0, 1, None, None))
        self._start = {name: value.clone() for name, value in self._client.model.state_dict().items()}
        received = {name: self._start[name].numpy() for name in self._client.download_names}
        self._client.install(received, 0)
        self.steps = experiment.local_epochs * ceil(len(task.split.train[0]) / experiment.batch_size)

    def turn(self) -> float:
        """Milliseconds of the processor for one local iteration, mean over a round's."""
        for name, value in self._client.model.state_dict().items():
            value.copy_(self._start[name])
        started = time.process_time()
        self._client.train()
        self._client.outgoing()
        return 1000 * (time.process_time() - started) / self.steps


def in_turns(trainees: Sequence[Trainee], turns: int) -> list[list[float]]:
    """Milliseconds of each, turn by turn: A B A B, after one turn each that is not counted; on one thread."""
    with one_thread():
        for one in trainees:  # the first steps set things up
            one.turn()
        return [[one.turn() for one in trainees] for _ in range(turns)]


def plain(experiment: Experiment) -> Experiment:
    """The same experiment by FedAvg, with the method's optimiser."""
    settings: Any = parts.method(experiment)[1]
    others = [one for one in experiment.set if "." in split_assignment(one)[0]]
    alike = [other for other in others if not other.startswith(f"{parts.short_name(experiment.method)}.")]
    if isinstance(settings, LocalTraining):
        alike += [f"{name}={getattr(settings, name)}" for name in ("optimiser", "momentum", "weight_decay")]
    return replace(experiment, method=PLAIN, set=tuple(alike))


def clocked(experiment: Experiment, task: Task, turns: int = TURNS) -> dict[str, Any]:
    """As a part of result.json: ``timing``, of a local iteration.

    Args:
        experiment: resolved.
        task: of the experiment.
        turns: whose median is taken.

    Returns:
        ``ms`` of this method and ``plain_ms`` of plain training, medians in milliseconds of the processor, and
        ``ratio``, the median of the turns' ratios; a note on the machine.
    """
    sides = [Trainee(experiment, task), Trainee(plain(experiment), task)]
    found = in_turns(sides, turns)
    own, other = (statistics.median(column) for column in zip(*found, strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in found)
    timing = {"ms": own, "plain_ms": other, "ratio": ratio, "turns": turns, "steps": sides[0].steps}
    return {"timing": timing, "notes": [f"Timed in milliseconds of the processor, one thread, on {hardware()}."]}
