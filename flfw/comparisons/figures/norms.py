"""Norms of per-example gradients by local iteration: Fed-CDP's Figure 3, the motive for its decaying clipping bound.

Each client takes the local steps of a round without clipping and noise. Before each step the L2 norm of the whole
gradient of each example is measured. No client ever sends such a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor
from torch.nn.functional import cross_entropy

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.figures.timing import plain
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.sealed import sealed, unseal
from flfw.nets import Tensors
from flfw.nets.training.per_example import PerExample
from flfw.plans.run_plan import plan
from flfw.runs import run
from flfw.task.task import Task

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


def client_of(experiment: Experiment, task: Task, partition: int, weights: Tensors | None) -> FederatedClient:
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
    rounds = sealed(folder / "checkpoint", "round-*")
    if not rounds:
        return None
    name, path = rounds[-1]
    try:
        stored = load(unseal(path))
    except SafetensorError as error:
        raise InputError(f"Expected a checkpoint of this version, got {path}: {error!r}.") from error
    shared = {key.removeprefix("model/"): value for key, value in stored.items() if key.startswith("model/")}
    return int(name.rpartition("-")[2]), {key: torch.as_tensor(value) for key, value in shared.items()}
