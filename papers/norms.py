"""How long gradients are, by local iteration: Fed-CDP's Figure 3, which is why its clipping bound decays.

Each client takes a round's local steps without clipping and noise, and before each of them the norms of its examples'
gradients are measured: the whole gradient's, of one example, as no client ever sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor
from torch.nn.functional import cross_entropy

from flfw import resolve as parts
from flfw.client.federated_client import FederatedClient
from flfw.client.workplace import Workplace
from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.runs import run
from flfw.storage.checkpoint import require_same_data, stored_experiment
from flfw.storage.sealed import sealed, unseal
from flfw.task import Task
from flfw.training.per_example import PerExample
from papers.drawing import Rows
from papers.timing import plain

MOST_CLIENTS = 100
LOW, HIGH = 0.1, 0.9
"""Between these shares of the clients the band is drawn."""


def norms(folder: Path, data_root: Path | None = None, most: int = MOST_CLIENTS) -> Rows:
    """A row a state and local iteration: ``state``, ``iteration``, ``clients``, ``mean``, ``low``, ``high``.

    The states are that before training and, if the method shares its whole model, that of the last checkpoint. A
    client's value is the mean over its batch; ``mean`` and the two quantiles are over the clients that get so far.

    Args:
        folder: of a run.
        data_root: where the data lie now; None: where the run found them.
        most: clients, the first ones.

    Raises:
        BadInput: the run or its data are not there, or its network has no per-example gradients.
    """
    stored = stored_experiment(folder).experiment
    asked = replace(stored, out=folder, data_root=data_root or stored.data_root)
    experiment, task, _ = run.check(asked, new=False)
    require_same_data(folder, task.dataset.digest)
    found = _rows("before training", by_client(experiment, task, most=most))
    last = _last(folder)
    if last is None or set(last[1]) != set(parts.blank_model(plain(experiment)).state_dict()):
        return found
    return [*found, *_rows(f"after round {last[0]}", by_client(experiment, task, last[1], most))]


def by_client(
    experiment: Experiment, task: Task, weights: Tensors | None = None, most: int = MOST_CLIENTS
) -> list[list[float]]:
    """For each client and local iteration the mean norm of the gradients of the batch's examples.

    Args:
        experiment: resolved; its steps are taken without what its method does to gradients.
        task: of the experiment.
        weights: to start from; None: fresh ones, as a run starts from.
        most: clients, the first ones.
    """
    return [norms_of(client_of(plain(experiment), task, at, weights)) for at in range(min(most, experiment.clients))]


def client_of(experiment: Experiment, task: Task, partition: int, weights: Tensors | None) -> FederatedClient:
    """A client in its first round."""
    half, settings = parts.method(experiment)
    made = parts.client(experiment)(Workplace(experiment, task, half, settings, partition, 1, None, None))
    start = weights if weights is not None else made.model.state_dict()
    made.install({name: start[name].clone().numpy() for name in made.download_names}, 0)
    return made


def norms_of(client: FederatedClient) -> list[float]:
    """One client's, in the order of its steps; the client is trained."""
    per_example, found = PerExample(client.model, grouping="flat", way="rows"), []

    def follow(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        def losses() -> Tensor:
            return cross_entropy(client.model(client.at.task.inputs.normalise(x)), y, reduction="none")

        batch = per_example.clipped_sum(losses, inf)
        found.append(float(batch.norms.mean()))
        return float(batch.losses.mean()), {name: value / len(y) for name, value in batch.sums.items()}

    client.descend(client.moving(), client.at.experiment.local_epochs, client.optimiser(), follow=follow)
    return found


def _rows(state: str, clients: list[list[float]]) -> list[dict[str, object]]:
    rows = []
    for step in range(max(map(len, clients))):
        there = np.array([norms[step] for norms in clients if len(norms) > step])
        low, high = np.quantile(there, (LOW, HIGH)).tolist()
        about = {"state": state, "iteration": step + 1, "clients": len(there)}
        rows.append({**about, "mean": float(there.mean()), "low": low, "high": high})
    return rows


def _last(folder: Path) -> tuple[int, Tensors] | None:
    """The last round that a run has a checkpoint of, and what the server then had; None: there is none."""
    rounds = sealed(folder / "checkpoint", "round-*")
    if not rounds:
        return None
    name, path = rounds[-1]
    try:
        stored = load(unseal(path))
    except SafetensorError as error:
        raise BadInput(f"Expected a checkpoint of this version, got {path}: {error!r}.") from error
    shared = {key.removeprefix("model/"): value for key, value in stored.items() if key.startswith("model/")}
    return int(name.rpartition("-")[2]), {key: torch.as_tensor(value) for key, value in shared.items()}
