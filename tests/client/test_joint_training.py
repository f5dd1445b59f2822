"""Clients that train together: the numbers of one by one but for rounding, in float64 within 1e-10."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flfw.client.gradient_client import StackedDescent
from flfw.client.phases import JointStepsFailed, TrainingPhase, run_phases_together
from flfw.clients.hyperfl import JointHypernetworks, joint_hypernetworks
from flfw.clients.sgd import SGDClient
from flfw.errors import InputError
from flfw.messages.wire import pack, views
from flfw.plans.run_plan import plan
from flfw.runs.launch import not_batchable_reason as kept_apart
from flfw.runs.launch import resolve_batched_clients
from tests.support import tiny_backbone
from tests.support.joint_clients import apart, asked, clients, trained
from tests.support.rounds import exactly, fresh

EXACT = 1e-10
SMALL = ("hidden=16", "embedding=8")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"set": ("momentum=0", "weight_decay=0")},
        {"set": ("lasting=true",)},
        {"set": ("optimiser=adam",), "lr": 0.001},
        {"method": "fedprox", "set": ("mu=1",)},
        {"method": "local_only", "set": ("lasting=true",)},
        {"method": "fedper"},
        {"method": "fednova", "set": ("mu=0.5",)},
        {"net": "lenet", "local_epochs": 1},
        pytest.param(
            {"net": "resnet18", "norm": "group", "local_epochs": 1, "batch_size": 25, "lr": 0.01},
            marks=pytest.mark.nightly,
        ),
        {"defence": "prune", "defended": "0,2"},
        {"example_order": "fixed"},
        {"method": "dp_fedavg"},
        {"method": "dp_fedavg", "set": ("batches=poisson", "clip=0.5", "grouping=layer", "clipping=automatic")},
        {"method": "dp_fedavg", "set": ("unit=client", "clip=0.5")},
        {"method": "fed_cdp", "net": "lenet", "set": ("draws=example",), "local_epochs": 1},
        {"method": "fed_cdp", "metrics": "private", "set": ("batches=balls", "compress=after")},
        {"method": "fed_cdp", "set": ("bound=median", "noise_multiplier=0.1", "batches=poisson")},
        {"method": "fed_sdp"},
        {"method": "hyperfl_lpm", "net": tiny_backbone.NAME, "set": (*SMALL, "TINY.adapter_norm=frozen")},
        {"method": "hyperfl", "net": "lenet", "set": SMALL},
        {"method": "hyperfl", "net": "lenet", "set": (*SMALL, "clip=0.01", "momentum=0.9", "keep_theta=true")},
        {"method": "hyperfl", "net": "mlp", "set": (*SMALL, "weight_decay=0", "head_init=torch")},
    ],
    ids=lambda changes: " ".join(f"{name}={value}" for name, value in changes.items()) or "plain",
)
def test_together_and_alone_are_the_same_but_for_rounding(changes: dict[str, Any], tmp_path: Path) -> None:
    experiment = asked(**changes)
    with exactly():
        assert apart(experiment, tmp_path, rounds=2) <= EXACT


def test_the_same_clients_together_give_the_same_bits(tmp_path: Path) -> None:
    (one, other) = (trained(asked(), tmp_path / name, together=True) for name in ("one", "other"))
    for (mine, _), (theirs, _) in zip(one, other, strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_steps_and_optimisers_of_finished_clients_stop(tmp_path: Path) -> None:
    experiment = asked(local_epochs=3)
    workers = clients(experiment, tmp_path)
    received = views(pack(fresh(experiment).state_dict()))
    run_phases_together(workers, [worker.round(received, 0) for worker in workers])
    assert [worker.steps_made for worker in workers] == [6, 9, 3, 9]


@pytest.mark.slow
def test_of_many_steps_each_client_does_its_own(tmp_path: Path) -> None:
    """Of 43 epochs the largest client has 129 steps: then old factors are added to a start of its own."""
    few, many = (asked(method="hyperfl", net="mlp", local_epochs=epochs, set=SMALL) for epochs in (42, 43))
    assert isinstance(joint_hypernetworks(clients(few, tmp_path)), JointHypernetworks)  # type: ignore[arg-type]
    assert joint_hypernetworks(clients(many, tmp_path)) is None  # type: ignore[arg-type]
    (one, other) = (trained(many, tmp_path / str(both), together=both) for both in (False, True))
    assert all(torch.equal(one[2][0][name], value) for name, value in other[2][0].items())


# --- failures ---


def test_a_client_that_fails_by_itself_fails_alone(tmp_path: Path) -> None:
    experiment = asked()
    received = views(pack(fresh(experiment).state_dict()))
    workers = clients(experiment, tmp_path)
    works = [worker.round(received, 0 if worker.ctx.partition != 1 else 7) for worker in workers]
    workers[1].private_names = ["extractor.1.weight"]  # then it looks for its state of round 7
    results = run_phases_together(workers, works)
    assert isinstance(results[1], Exception) and "Expected private state of round 7" in str(results[1])
    others = [results[index] for index in (0, 2, 3)]
    assert all(isinstance(result, tuple) for result in others)


class Stumbling:
    """Batches of which the second cannot be read."""

    def __init__(self, worker: SGDClient) -> None:
        self._batches = worker.batches

    def __call__(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        yield next(self._batches(rng))
        raise OSError("no second batch")


def test_where_joint_steps_fail_nobody_is_accused(tmp_path: Path) -> None:
    experiment = asked()
    received = views(pack(fresh(experiment).state_dict()))
    workers = clients(experiment, tmp_path)
    assert isinstance(workers[1], SGDClient)
    workers[1].batches = Stumbling(workers[1])  # type: ignore[method-assign]
    with pytest.raises(JointStepsFailed, match="no second batch"):
        run_phases_together(workers, [worker.round(received, 0) for worker in workers])


def test_clients_in_different_phases_are_not_joined(tmp_path: Path) -> None:
    workers = clients(asked(), tmp_path)

    def work(purpose: str) -> Iterator[TrainingPhase]:
        yield TrainingPhase(lambda: 0.0, StackedDescent, 1, purpose)

    works: Sequence[Any] = [work(f"purpose {index}") for index in range(len(workers))]
    with pytest.raises(JointStepsFailed, match="clients in different phases"):
        run_phases_together(workers, works)


# --- who opts in ---


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "centaur"}, "method=centaur, whose clients take local steps in a way of their own"),
        ({"method": "dp_fedavg", "set": ("physical_batch=5",)}, "whose physical batches divide a step"),
        ({"method": "scaffold"}, "method=scaffold, whose clients take local steps in a way of their own"),
        ({"method": "dssgd"}, "method=dssgd, whose clients take local steps in a way of their own"),
        ({"net": "resnet18"}, r"method=fedavg, whose network has running statistics \(extractor.bn1.running_mean\)"),
        ({"set": ("optimiser=adam", "lasting=true")}, "whose lasting Adam counts the steps of each client"),
        (
            {"method": "hyperfl", "set": ("step=dense",)},
            r"method=hyperfl, whose step B is in no factors \(step=dense, .*",
        ),
        ({"method": "hyperfl", "set": ("momentum=0.96",)}, "method=hyperfl, whose step B is in no factors"),
        ({"defence": "soteria"}, "defence=soteria, which acts at the step of local steps"),
        ({"engine": "flwr"}, "engine=flwr, which hands out one message at a time"),
        ({"engine": "flwr-sim"}, "engine=flwr-sim, which hands out one message at a time"),
        ({"federation": Path("fed")}, "--federation, whose sites are machines of their own"),
    ],
    ids=str,
)
def test_who_does_not_opt_in_is_refused_above_1_and_auto_says_so(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=f"^Expected --batched-clients 1 with .*{reason}.*, got batched_clients=3.$"):
        resolve_batched_clients(plan(asked(batched_clients="3", **changes)))
    run_plan, (note,) = resolve_batched_clients(plan(asked(batched_clients="auto", **changes)))
    assert run_plan.experiment.batched_clients == "1" and note.startswith("batched-clients=auto became 1: ")
    assert not resolve_batched_clients(plan(asked(**changes)))[1]


def test_auto_joins_dense_networks_on_a_cpu_and_no_convolutions() -> None:
    run_plan, notes = resolve_batched_clients(plan(asked(batched_clients="auto")))
    assert (run_plan.experiment.batched_clients, notes) == ("4", [])
    for method in ("fedavg", "hyperfl"):
        run_plan, notes = resolve_batched_clients(plan(asked(batched_clients="auto", method=method, net="cnn1")))
        assert run_plan.experiment.batched_clients == "1"
        assert notes == [
            "batched-clients=auto became 1: a method and a network whose joint steps take as long on a CPU."
        ]
    assert not kept_apart(plan(asked(net="cnn1")))
