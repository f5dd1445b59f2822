"""Clients, servers and means of golden cases, each given the case's inputs in the place of data and random draws."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import flfw.clients.fedcg
import flfw.clients.fedgen
import flfw.strategies.fedcg
import flfw.strategies.fedgen
from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.store import ClientStore
from flfw.data.files.dataset import Dataset
from flfw.data.splits.partition import Split
from flfw.experiment import Experiment
from flfw.messages.sharing import select_shared
from flfw.messages.wire import pack
from flfw.plans.run_plan import plan
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.context import ServerContext
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task
from tests.golden.cases import Arrays, Case
from tests.support import rounds

_NET = {"hyperfl_cnn2": "cnn2", "fedcg": "lenet5", "fedgen": "lenet5", "feddf": "lenet5", "fedprox": "lenet5"}
_LASTING = ("optimiser=adam", "lasting=true")
_FIXED = {"fedgen": _LASTING, "feddf": _LASTING, "fedprox": _LASTING}
_RENAMED = {"clip_hypernetwork": "clip", "sigma": "noise_multiplier", "server_weight_decay": "server_decay"}
_METHODS = ("hyperfl", "fedcg", "fedgen", "feddf", "fedprox", "fedavg", "dp_fedavg", "centaur", "ppsgd")


class Outcome(NamedTuple):
    """Result of one stage of a case.

    Attributes:
        tensors: the tensors afterwards.
        before: the tensors that their change is from.
        metrics: the client's numbers; of a server none.
    """

    tensors: Arrays
    before: Arrays
    metrics: Mapping[str, Any]


def outcomes(case: Case, settings: Sequence[str], folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """Compute a case with these settings of its method beside the authors'; return its stages by name.

    Args:
        case: the case.
        settings: assignments of ``--set``; they override the authors'.
        folder: empty folder for a client's private tensors.
        patch: replaces the random draws, until the end of the test.
    """
    if case.name.startswith("mean"):
        return {"after": mean_of(case)}
    experiment = ask(case, settings)
    if case.name.endswith("server"):
        return serve(case, experiment, patch)
    return train(case, experiment, folder, patch)


def ask(case: Case, settings: Sequence[str]) -> Experiment:
    """Ask for the case's method and network, with the authors' hyper-parameters and these settings."""
    method = max((m for m in _METHODS if case.name.startswith(m)), key=len)
    net = _NET.get(case.name, _NET.get(method, "cnn1"))
    epochs = case.hyper.get("local_epochs", case.hyper.get("hypernetwork_epochs", 1))
    experiment = Experiment(
        method=method,
        dataset="cifar10" if net == "cnn2" else "fmnist",
        net=net,
        split="sampled",
        clients=2,
        local_epochs=epochs,
        batch_size=case.hyper.get("batch_size", 16),
        lr=case.hyper.get("lr", 1.0),  # a server has none
        augment="none",
        attack=("none",),
    )
    fields = {field.name for field in dataclasses.fields(plan(experiment).client.method.Settings)}
    theirs = {_RENAMED.get(name, name): value for name, value in case.hyper.items() if isinstance(value, float | int)}
    assigned = [f"{name}={value}" for name, value in theirs.items() if name in fields]
    return dataclasses.replace(experiment, set=(*_FIXED.get(method, ()), *assigned, *settings))


# --- one client ---


def train(case: Case, experiment: Experiment, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """Play the case's rounds at one client: from message to message, its private tensors in a store."""
    orders, z = in_turn(case.inputs.arrays["orders"]), in_turn(case.inputs.arrays.get("z", []))
    patch.setattr(torch, "randperm", lambda count, generator: next(orders))
    for module in (flfw.clients.fedcg, flfw.clients.fedgen):
        patch.setattr(module, "noise", lambda count, rng: next(z))
    result, version = {}, 0
    for stage, now, received in received_by(case):
        client = build_client(case, experiment, folder, now)
        if not version:
            put(client, received)
        _, metrics = client.fit_named({name: received[name] for name in client.download_names}, version)
        after = {name: value.detach().numpy().copy() for name, value in client.model.state_dict().items()}
        result[stage], version = Outcome(after, received, metrics), now
    assert next(orders, None) is None, "fewer passes over the data than the authors'"
    assert next(z, None) is None, "fewer draws of noise than the authors'"
    return result


def received_by(case: Case) -> list[tuple[str, int, Arrays]]:
    """List the stages of a client's case, with the number of the round and what the client then begins with."""
    if "received 2" in case.inputs.states:
        return [("round1", 1, case.inputs.start), ("round2", 2, case.inputs.states["received 2"])]
    return [("after", case.hyper.get("round", 1), case.inputs.start)]


def build_client(case: Case, experiment: Experiment, folder: Path, server_round: int) -> FederatedClient:
    """Build the client with the case's images as its data."""
    run_plan = plan(experiment)
    task = task_with(case, experiment.net, case.inputs.arrays["x"], case.inputs.arrays["y"])
    store = ClientStore(folder, "golden", 0)
    return run_plan.client.client_class(ClientContext(run_plan.client, task, 0, server_round, None, store))


def put(client: FederatedClient, start: Arrays) -> None:
    """Give the client its private tensors; there is no message that does."""
    state = client.model.state_dict()
    assert state.keys() == start.keys()
    for name in client.private_names:
        state[name].copy_(torch.tensor(start[name]))


def task_with(case: Case, net: str, x: np.ndarray, y: np.ndarray) -> Task:
    """Make a task of which all training inputs are the first client's and, without labels, the server's."""
    constants = case.card["inputs"]
    dataset = Dataset(
        name="golden",
        train_x=x,
        train_y=y,
        test_x=x[:1],
        test_y=y[:1],
        classes=10,
        mean=(constants["mean"],) * x.shape[1],
        std=(constants["std"],) * x.shape[1],
        source="drawn",
        md5_ok=None,
    )
    everything, one, none = np.arange(len(x)), np.arange(1), np.arange(0)
    return Task(dataset, Split((everything, none), (one, one), (none, none), everything, none, none), NetworkPlan(net))


def in_turn(arrays: Sequence[np.ndarray] | np.ndarray) -> Iterator[Tensor]:
    """Yield the arrays as tensors."""
    return (torch.tensor(array) for array in arrays)


# --- one server ---


def serve(case: Case, experiment: Experiment, patch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """Play two rounds of one server, with the case's uploads."""
    run_plan = plan(experiment)
    strategy = run_plan.strategy(run_plan.client.settings)
    strategy.ctx = rounds.place(experiment)
    result, broadcast = {}, tensors(case.inputs.start)
    for now in (1, 2):
        replace_draws(case, now, patch)
        states = [case.inputs.states[f"client {client} round {now}"] for client in (0, 1)]
        before = averaged(states, case.hyper["examples"])
        if experiment.method == "fedgen":  # the generator goes on from its own last round
            generator = {name: value.numpy().copy() for name, value in broadcast.items() if name.startswith("gen")}
            before = {**case.inputs.start, **generator}
        uploads = updates(case, [select_shared(tensors(state), run_plan.client.method.uploads) for state in states])
        broadcast = strategy.aggregate_round(pack(broadcast), iter(uploads), now)
        after = {name: value.numpy().copy() for name, value in broadcast.items()}
        result[f"round{now}"] = Outcome(after, before, {})
    return result


def replace_draws(case: Case, now: int, patch: pytest.MonkeyPatch) -> None:
    """Give the server the case's noise and labels of the round, or the case's images in their order."""
    arrays = case.inputs.arrays
    if f"x {now}" in arrays:
        x = arrays[f"x {now}"].reshape(-1, *arrays[f"x {now}"].shape[2:])
        task = task_with(case, "lenet5", x, np.zeros(len(x), dtype=np.int64))
        patch.setattr(ServerContext, "task", task)
        patch.setattr(torch, "randperm", lambda count, generator: torch.arange(count))
        return
    for module in (flfw.strategies.fedcg, flfw.strategies.fedgen):
        patch.setattr(module, "labelled_noise", labelled(arrays[f"z {now}"], arrays[f"y {now}"]))


def labelled(z: np.ndarray, y: np.ndarray) -> Callable[..., Iterator[tuple[Tensor, Tensor]]]:
    """Return a function in the place of `labelled_noise` that yields these batches."""
    return lambda *numbers: zip(in_turn(z), in_turn(y), strict=True)


def averaged(states: Sequence[Arrays], examples: Sequence[int]) -> Arrays:
    """Average tensors, weighted by examples."""
    each = {name: np.stack([state[name] for state in states]) for name in states[0]}
    return {name: np.average(values, axis=0, weights=examples) for name, values in each.items()}


# --- a mean ---


def mean_of(case: Case) -> Outcome:
    """Take the weighted mean of the case's clients."""
    states = [tensors(case.inputs.states[f"client {client}"]) for client in range(3)]
    mean = weighted_mean(updates(case, states))
    return Outcome({name: value.numpy() for name, value in mean.items()}, case.inputs.start, {})


def updates(case: Case, states: Sequence[Mapping[str, Tensor]]) -> list[Update]:
    """Make the clients' messages."""
    pairs = zip(case.hyper["examples"], states, strict=True)
    return [Update(client, examples, dict(state)) for client, (examples, state) in enumerate(pairs)]


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Copy arrays to tensors."""
    return {name: torch.tensor(array) for name, array in arrays.items()}
