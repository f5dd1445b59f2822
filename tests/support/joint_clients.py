"""Clients with unlike numbers of examples that train alone, or together, and what is compared then."""

import dataclasses
from pathlib import Path
from typing import Any

from torch import Tensor

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.phases import run_phases_together
from flfw.client.store import ClientStore
from flfw.experiment import Experiment
from flfw.messages.sharing import select_shared
from flfw.messages.wire import pack, views
from flfw.plans.run_plan import plan
from tests.support.rounds import fresh

SIZES = (13, 30, 7, 21)
"""Examples of the clients: in batches of 10 they take 2, 3, 1 and 3 steps an epoch, most with a short last batch."""


def asked(**changes: Any) -> Experiment:
    """Ask for two epochs of a small network on the digits."""
    few: dict[str, Any] = {"method": "fedavg", "net": "mlp", "split": "iid", "attack": ("none",), "engine": "inproc"}
    few |= {"clients": len(SIZES), "local_epochs": 2, "batch_size": 10, "lr": 0.1}
    return plan(Experiment(**{**few, **changes})).experiment


def clients(experiment: Experiment, folder: Path, server_round: int = 1) -> list[FederatedClient]:
    """Build the clients of a round, with their stores below a folder."""
    run_plan, task = plan(experiment), plan(experiment).task.load(None)
    train = tuple(mine[:size] for mine, size in zip(task.split.train, SIZES, strict=True))
    task = dataclasses.replace(task, split=dataclasses.replace(task.split, train=train))
    return [
        run_plan.client_class(
            ClientContext(
                plan=run_plan.client,
                task=task,
                partition=partition,
                round=server_round,
                defence=run_plan.client.defences.of_client(partition),
                store=ClientStore(folder, "test", partition),
            )
        )
        for partition in range(len(SIZES))
    ]


def trained(
    experiment: Experiment, folder: Path, *, together: bool, rounds: int = 1
) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Train all clients for some rounds on the same broadcast; return what they hold, and the last metrics."""
    model = fresh(experiment)
    cls = plan(experiment).client.method
    downloads = cls.shared(model, plan(experiment).client.settings).downloads
    received = views(pack(select_shared(model.state_dict(), downloads)))
    results: list[Any] = []
    workers: list[FederatedClient] = []
    for now in range(1, rounds + 1):
        workers = clients(experiment, folder, now)
        if together:
            results = list(run_phases_together(workers, [worker.round(received, now - 1) for worker in workers]))
        else:
            results = [worker.fit_named(received, now - 1) for worker in workers]
    assert not [result for result in results if isinstance(result, Exception)]
    tensors = [{**worker.private_state(), **worker.model.state_dict()} for worker in workers]
    sent = [{f"sent {name}": value for name, value in one[0].items()} for one in results]
    return [
        ({name: value.detach().clone() for name, value in {**h, **s}.items()}, metrics)
        for h, s, (_, metrics) in zip(tensors, sent, results, strict=True)
    ]


def apart(experiment: Experiment, folder: Path, rounds: int = 1) -> float:
    """Return the largest distance of a client's tensor trained together from alone, over its change; with metrics."""
    alone = trained(experiment, folder / "alone", together=False, rounds=rounds)
    joint = trained(experiment, folder / "joint", together=True, rounds=rounds)
    start = {name: value.detach() for name, value in fresh(experiment).state_dict().items()}
    worst = 0.0
    for (one, metrics), (other, beside) in zip(alone, joint, strict=True):
        assert one.keys() == other.keys() and metrics.keys() == beside.keys()
        for name, value in one.items():
            first = start.get(name.removeprefix("sent "))
            change = float((value - first).norm()) if first is not None else float(value.norm())
            worst = max(worst, float((other[name] - value).norm()) / (change or 1.0))
        names = metrics.keys() - {"seconds"}
        worst = max([worst, *(abs(float(metrics[n]) - float(beside[n])) for n in names)])
    return worst
