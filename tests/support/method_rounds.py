"""One round of any method's clients without an engine, and what the loops written beside it are compared by."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from flfw import plugins
from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.store import ClientStore
from flfw.dp.client import DPClient
from flfw.experiment import Experiment
from flfw.files.tensor_names import matches
from flfw.nets import Net
from flfw.plans.run_plan import plan
from flfw.rng import initialising
from flfw.server.aggregation import Update
from flfw.server.distillation import ServerTraining
from flfw.server.strategy import FederatedStrategy
from tests.support import tiny_backbone

METHODS = plugins.names(plugins.METHOD)

# Methods whose server needs data of its own, as this split sets aside; clients have as many examples as by the other.
ASIDE = ("feddf",)

# As a method's networks are by default, they take seconds a round without showing more. With bands clients take turns.
NARROW = {
    "hyperfl": ("hidden=16", "embedding=8"),
    "hyperfl_lpm": ("hidden=16", "embedding=8", "TINY.adapter_norm=frozen"),
    "dp_ftrl": ("bands=1",),
    "pfedhn": ("hidden=8",),
    "pfedhn_pc": ("hidden=8",),
}

# Pretrained networks need files of weights, and seconds for each example.
PRETRAINED = {"hyperfl_lpm": tiny_backbone.NAME}

# On LeNet-5's maps the layers of FedCG's GAN take most of the time.
MAPPED = {"fedcg": f"{__name__}:mapped"}


def normed(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network with BatchNorm of both kinds, between layers with names that do not tell them apart."""
    size = 4 * ((shape[1] - 1) // 2) ** 2
    extractor = nn.Sequential(nn.Conv2d(shape[0], 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return Net(extractor, nn.Sequential(nn.Linear(size, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)))


def mapped(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network with feature maps of a few pixels in (0, 1)."""
    extractor = nn.Sequential(nn.Conv2d(shape[0], 4, 4, stride=4), nn.Sigmoid())
    side = (shape[1] - 4) // 4 + 1
    return Net(extractor, nn.Sequential(nn.Flatten(), nn.Linear(4 * side**2, classes)))


def by_method(experiment: Experiment, method: str, **changes: Any) -> Experiment:
    """Ask for the experiment by another method, on the network it names, with few steps and no wide layers."""
    cls = plugins.load_class(plugins.METHOD, method, FederatedStrategy)
    few = ("iterations=3",) if issubclass(cls.Settings, ServerTraining) else NARROW.get(method, ())
    if method in ASIDE:
        changes["split"], few = "sampled", (*few, "sampled.train=150")
    changes["set"] = (*few, *changes.get("set", ()))
    net = {**PRETRAINED, **MAPPED}.get(method) or cls.net or experiment.net
    train = cls.train if method in PRETRAINED else experiment.trainable
    return dataclasses.replace(experiment, method=method, net=net, trainable=train, **changes)


def make_client(experiment: Experiment, partition: int, folder: Path, server_round: int = 1) -> FederatedClient:
    """Build one client of a round."""
    task = plan(experiment).task.load(None)
    store = ClientStore(folder, "test", partition)
    ctx = ClientContext(plan(experiment).client, task, partition, server_round, None, store)
    return plan(experiment).client_class(ctx)


def of(experiment: Experiment, method: str, *assignments: str, **changes: Any) -> Experiment:
    """Ask for the experiment by another method, with further settings."""
    return dataclasses.replace(experiment, method=method, set=(*experiment.set, *assignments), **changes)


def dp_client(experiment: Experiment, partition: int, folder: Path, server_round: int = 1) -> DPClient:
    """Build one client of a round, which clips and may add noise."""
    client = make_client(experiment, partition, folder, server_round)
    assert isinstance(client, DPClient)
    return client


def initial_tensors(experiment: Experiment) -> dict[str, np.ndarray]:
    """Build what the server sends in the first round."""
    method, settings = plan(experiment).client.method, plan(experiment).client.settings
    with initialising(experiment.seed, "model"):
        model = method.build_model(plan(experiment).task.load(None).build_net(), settings)
    downloads = method.shared(model, settings).downloads
    return {n: v.numpy().copy() for n, v in model.state_dict().items() if matches(n, downloads)}


def one_round(experiment: Experiment, folder: Path) -> tuple[dict[str, Tensor], list[FederatedClient]]:
    """Run one round of all clients: the server's next tensors, and the clients as they are then."""
    strategy, settings = plan(experiment).strategy, plan(experiment).client.settings
    received, updates, clients = initial_tensors(experiment), [], []
    for partition in range(experiment.clients):
        client = make_client(experiment, partition, folder)
        sent, metrics = client.fit_named(received, version=0)
        updates.append(Update(partition, metrics["num-examples"], {n: v.clone() for n, v in sent.items()}))
        clients.append(client)
    return strategy(settings).aggregate(iter(updates)), clients


def plain_net(experiment: Experiment) -> Net:
    """Build the network as all begin with it."""
    with initialising(experiment.seed, "model"):
        return plan(experiment).task.load(None).build_net()


def weighted(states: list[dict[str, Tensor]], sizes: list[int]) -> dict[str, Tensor]:
    """Average states by their sizes."""
    total = sum(sizes)
    return {n: sum(s[n].double() * k / total for s, k in zip(states, sizes, strict=True)).float() for n in states[0]}  # type: ignore[union-attr]


def sizes(experiment: Experiment) -> list[int]:
    """Count the examples of each client."""
    return [len(chosen) for chosen in plan(experiment).task.load(None).split.train]


def assert_equal(result: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    """Compare tensors by name, within a tolerance that is relative above 1."""
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.abs().max()) + 1e-12
        assert float((result[name] - value).abs().max()) <= tolerance * max(scale, 1.0), name
