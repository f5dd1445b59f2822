"""Rounds of a federation in this process without an engine, and what loops that are written beside them need."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.store import ClientStore
from flfw.experiment import Experiment
from flfw.files.tensor_names import matches
from flfw.messages.wire import pack
from flfw.plans.run_plan import plan
from flfw.rng import initialising, torch_generator
from flfw.server.aggregation import Update
from flfw.server.context import ServerContext
from flfw.server.strategy import FederatedStrategy
from flfw.task.task import Task


@dataclass
class Rounds:
    """What went over the wire, and who is left behind.

    Attributes:
        strategy: the server half.
        broadcasts: by name, of each round and then of the one that did not begin.
        uploads: of each round, by partition.
        clients: of the last round.
    """

    strategy: FederatedStrategy
    broadcasts: list[dict[str, Tensor]]
    uploads: list[list[Update]] = field(default_factory=list)
    clients: list[FederatedClient] = field(default_factory=list)


COUNTS = (1000, 3000)
"""How many examples the two clients say they have: unlike, so that a plain mean in place of the weighted one shows."""
SHARES = (0.25, 0.75)


@contextmanager
def exactly() -> Iterator[None]:
    """Everything is computed in float64, where a loop and what it stands for agree to rounding even after Adam's steps.

    In float32 they part soon: Adam divides by gradients that may be nearly zero.
    """
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def play(experiment: Experiment, folder: Path, rounds: int = 1) -> Rounds:
    """So many rounds of both clients."""
    cls, settings = plan(experiment).strategy, plan(experiment).client.settings
    strategy = cls(settings, seed=experiment.seed)
    strategy.ctx = place(experiment)
    model = fresh(experiment)
    downloads = cls.shared(model, settings).downloads
    first = {n: v.clone() for n, v in model.state_dict().items() if matches(n, downloads)}
    result = Rounds(strategy, [first])
    for now in range(1, rounds + 1):
        result.clients = [client(experiment, folder, partition, now) for partition in range(len(COUNTS))]
        sent = {name: value.numpy().copy() for name, value in result.broadcasts[-1].items()}
        uploads = []
        for partition, one in enumerate(result.clients):
            tensors, metrics = one.fit_named(sent, version=now - 1)
            tensors = {n: v.clone() for n, v in tensors.items()}
            uploads.append(Update(partition, COUNTS[partition], tensors, metrics))
        result.uploads.append(uploads)
        result.broadcasts.append(strategy.aggregate_round(pack(result.broadcasts[-1]), iter(uploads), now))
    return result


def place(experiment: Experiment) -> ServerContext:
    """Where the experiment's server works."""
    return ServerContext(plan(experiment).client)


def client(experiment: Experiment, folder: Path, partition: int, server_round: int = 1) -> FederatedClient:
    """One client in one round."""
    store = ClientStore(folder, "test", partition)
    task = plan(experiment).task.load(None)
    return plan(experiment).client_class(
        ClientContext(plan(experiment).client, task, partition, server_round, None, store)
    )


def fresh(experiment: Experiment, *numbers: int) -> nn.Module:
    """The method's model as all begin with it; with a client's number, as that one would by itself."""
    cls, settings = plan(experiment).client.method, plan(experiment).client.settings
    with initialising(experiment.seed, "model", *numbers):
        return cls.build_model(plan(experiment).task.load(None).build_net(), settings)


def batches(
    experiment: Experiment, partition: int, purpose: str, epochs: int, server_round: int
) -> list[tuple[Tensor, Tensor]]:
    """Network inputs and labels of each local step."""
    task = plan(experiment).task.load(None)
    rng = torch_generator(experiment.seed, purpose, server_round, partition)
    given, result = task.split.train[partition], []
    for _ in range(epochs):
        order = given[torch.randperm(len(given), generator=rng).numpy()]
        for start in range(0, len(given), experiment.batch_size):
            chosen = order[start : start + experiment.batch_size]
            result.append((normalised(task, chosen), torch.tensor(task.dataset.train_y[chosen])))
    return result


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step by the loss's own gradient alone."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def normalised(task: Task, chosen: np.ndarray) -> Tensor:
    """Training images as the network takes them."""
    pixels = torch.tensor(task.dataset.train_x[chosen]).float() / 255  # as the data are, whatever is computed in
    mean, std = torch.tensor(task.dataset.mean), torch.tensor(task.dataset.std)
    return (pixels - mean[:, None, None]) / std[:, None, None]


def mean(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The weighted mean by name; of counts, rounded."""
    weighed = list(zip(states, SHARES, strict=True))
    sums = {n: torch.stack([state[n].double() * weight for state, weight in weighed]).sum(0) for n in states[0]}
    whole = {n: not states[0][n].is_floating_point() for n in sums}
    return {n: (value.round() if whole[n] else value).to(states[0][n].dtype) for n, value in sums.items()}


def error(result: Mapping[str, Tensor], expected: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    """Length of what is wrong in all tensors together, over that of the change that was expected."""
    assert result.keys() == expected.keys() <= start.keys()
    wrong = sum(float((result[n].double() - value.double()).square().sum()) for n, value in expected.items())
    change = sum(float((value.double() - start[n].double()).square().sum()) for n, value in expected.items())
    return (wrong / change) ** 0.5
