"""Norms of per-example gradients by local iteration, and the time of an iteration, as in Fed-CDP's paper.

The norms are its Figure 3, the motive for the decaying clipping bound. Each client takes the local steps of a round
without clipping and noise. Before each step the L2 norm of the whole gradient of each example is measured. No client
ever sends such a gradient.

The training of a client is timed in turns with plain training of the same network. The time covers
`flfw.client.federated_client.FederatedClient.train` in a round and `upload_tensors`, which prepares the upload: batches
and their loading, gradients, clipping, noise, steps. It is divided by the number of mini-batches. Evaluation, messages
and the server are not timed. Times are processor times, since other programs may use the machine. Compare only ratios
with those of another machine, and only ratios of trainings that were timed in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.experiment import Experiment
from flfw.files.provenance import hardware
from flfw.files.sealed import sealed
from flfw.messages.wire import unpack
from flfw.nets import Tensors
from flfw.nets.training.devices import one_thread
from flfw.nets.training.optimisers import LocalTraining
from flfw.nets.training.per_example import PerExample
from flfw.plans.run_plan import plan
from flfw.plugins import short_name, split_assignment
from flfw.runs import run
from flfw.server.checkpoint import last_snapshot
from flfw.task.task import Task

if TYPE_CHECKING:  # matplotlib comes with it, and a machine with a GPU may have none
    from flfw.comparisons.figures.drawing import Rows

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
        self._client = client_of(experiment, task, 0)
        self._start = {name: value.clone() for name, value in self._client.model.state_dict().items()}
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


MOST_CLIENTS = 100
LOW, HIGH = 0.1, 0.9
"""Quantiles over the clients between which the band is drawn."""


def norms(folder: Path, data_root: Path | None = None, maximum: int = MOST_CLIENTS) -> Rows:
    """Return a row per state and local iteration: ``state``, ``iteration``, ``clients``, ``mean``, ``low``, ``high``.

    The states are the model before training and, if the method shares its whole model, the model of the last
    checkpoint. A client's value is the mean over its batch. ``mean`` and the two quantiles are over the clients that
    take this local step.

    Args:
        folder: folder of a run.
        data_root: present folder of the data; None: the folder that the run used.
        maximum: largest number of clients; the first ones are taken.

    Raises:
        InputError: the run or its data are not there, or its network has no per-example gradients.
    """
    experiment, task = run.reopened(folder, data_root)
    rows = _rows("before training", by_client(experiment, task, maximum=maximum))
    last = last_weights(folder)
    if last is None or set(last[1]) != set(plan(plain(experiment)).client.model.state_dict()):
        return rows
    return [*rows, *_rows(f"after round {last[0]}", by_client(experiment, task, last[1], maximum))]


def by_client(
    experiment: Experiment, task: Task, weights: Tensors | None = None, maximum: int = MOST_CLIENTS
) -> list[list[float]]:
    """Compute for each client and local iteration the mean norm of the per-example gradients of the batch.

    Args:
        experiment: the resolved experiment; its steps are taken by plain training.
        task: task of the experiment.
        weights: initial weights; None: the fresh ones of a run.
        maximum: largest number of clients; the first ones are taken.
    """
    return [norms_of(client_of(plain(experiment), task, at, weights)) for at in range(min(maximum, experiment.clients))]


def client_of(experiment: Experiment, task: Task, partition: int, weights: Tensors | None = None) -> FederatedClient:
    """Build a client in its first round."""
    made = plan(experiment).client_class(ClientContext(plan(experiment).client, task, partition, 1, None, None))
    start = weights if weights is not None else made.model.state_dict()
    made.load_received({name: start[name].clone().numpy() for name in made.download_names}, 0)
    return made


def norms_of(client: FederatedClient) -> list[float]:
    """Compute the mean norms of one client, in the order of its steps; this trains the client."""
    per_example, means = PerExample(client.model, grouping="flat", way="rows"), []

    def follow(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        def losses() -> Tensor:
            return cross_entropy(client.model(client.ctx.task.inputs.normalise(x)), y, reduction="none")

        batch = per_example.clipped_sum(losses, inf)
        means.append(float(batch.norms.mean()))
        return float(batch.losses.mean()), {name: value / len(y) for name, value in batch.sums.items()}

    client.train_epochs(client.trainable_parameters(), client.ctx.local.local_epochs, client.optimiser(), follow=follow)
    return means


def _rows(state: str, clients: list[list[float]]) -> list[dict[str, object]]:
    rows = []
    for step in range(max(map(len, clients))):
        there = np.array([norms[step] for norms in clients if len(norms) > step])
        low, high = np.quantile(there, (LOW, HIGH)).tolist()
        keys = {"state": state, "iteration": step + 1, "clients": len(there)}
        rows.append({**keys, "mean": float(there.mean()), "low": low, "high": high})
    return rows


def last_weights(folder: Path) -> tuple[int, Tensors] | None:
    """Return the round and the shared weights of a run's last checkpoint; None: there is none."""
    if not sealed(folder / "checkpoint", "round-*"):
        return None
    last = last_snapshot(folder)
    return last.round, unpack(last.arrays)
