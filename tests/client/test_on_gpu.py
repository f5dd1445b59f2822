"""Clients with a share of a GPU, which is pretended: they send what they send from the processor, to the bit."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flfw import plugins
from flfw.client.federated_client import FederatedClient
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from tests.support import joint_clients
from tests.support.method_rounds import METHODS, PRETRAINED, by_method, initial_tensors, make_client
from tests.support.pretend_gpu import Pretended, pretended_gpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and it would not be pretended")

SMALL = Experiment(
    dataset="digits",
    net="mlp",
    split="iid",
    clients=2,
    local_epochs=1,
    batch_size=400,
    lr=0.1,
    attack=("none",),
    engine="inproc",
)
TRAINED_HERE = [method for method in METHODS if method not in PRETRAINED]
NOT_TRACED = {"dcs2"}
"""Defences that list their operations, which needs a real GPU or none."""


def client(experiment: Experiment, folder: Path, server_round: int = 1, probe: tuple[int, ...] = ()) -> FederatedClient:
    """Build the first client, with the experiment's defence."""
    ctx = dataclasses.replace(make_client(experiment, 0, folder, server_round).ctx, probe=probe)
    run_plan = plan(experiment)
    return run_plan.client_class(dataclasses.replace(ctx, defence=run_plan.client.defences.of_client(0)))


def two_rounds(experiment: Experiment, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train in a first round, and evaluate in a second: what was sent, and the metrics of both."""
    received = initial_tensors(experiment)
    first = client(experiment, folder)
    sent, metrics = first.fit_named(received, 0)
    moved = {type(value.detach()) for value in first.model.parameters()}
    assert moved == {Pretended if experiment.gpus_per_client else Tensor}
    later = client(experiment, folder, 2).evaluate_named(received, 1 if first.private_state() else 0)
    return sent, {**metrics, **{f"later {name}": value for name, value in later.items()}, "seconds": 0}


def probed(experiment: Experiment, folder: Path) -> dict[str, Tensor]:
    """Answer probes of one step and of three, and show an observer on the client the gradient of one example."""
    received, answers = initial_tensors(experiment), {}
    for steps in (1, 3):
        requested = client(experiment, folder, probe=(1,))
        requested.load_received(received, 0)
        x, y = requested.stored(requested.indices("train")[:4])
        reply = requested.gradient(x, y) if steps == 1 else requested.stepped(x, y, steps)
        answers |= {f"{steps} steps: {name}": value for name, value in reply.items()}
    observed = requested.observed(x[:1], y[:1], requested.generator("probe"))
    return answers | {f"observed: {name}": value for name, value in observed.items()}


def assert_same(here: dict[str, Tensor], there: dict[str, Tensor]) -> None:
    """Expect the same numbers, which all have left the GPU."""
    assert here.keys() == there.keys()
    for name, value in there.items():
        assert type(value.detach()) is Tensor and torch.equal(value, here[name]), name


def on_gpu(experiment: Experiment) -> Experiment:
    """Give each client a GPU."""
    return dataclasses.replace(experiment, gpus_per_client=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", TRAINED_HERE)
def test_rounds_on_a_gpu_are_those_on_the_processor(method: str, tmp_path: Path) -> None:
    experiment = plan(by_method(SMALL, method)).experiment
    sent, metrics = two_rounds(experiment, tmp_path / "here")
    with pretended_gpu():
        sent_there, metrics_there = two_rounds(on_gpu(experiment), tmp_path / "there")
    assert_same(sent, sent_there)
    assert metrics == metrics_there


@pytest.mark.slow
@pytest.mark.parametrize("method", [method for method in TRAINED_HERE if method != "local_only"])
def test_probes_on_a_gpu_are_answered_as_on_the_processor(method: str, tmp_path: Path) -> None:
    experiment = plan(by_method(SMALL, method)).experiment
    here = probed(experiment, tmp_path / "here")
    with pretended_gpu():
        assert_same(here, probed(on_gpu(experiment), tmp_path / "there"))


@pytest.mark.slow
@pytest.mark.parametrize("defence", [name for name in plugins.names(plugins.DEFENCE) if name not in NOT_TRACED])
def test_a_defence_on_a_gpu_is_the_one_on_the_processor(defence: str, tmp_path: Path) -> None:
    few = {"net": "lenet", "clients": 50}  # of about 30 examples each
    experiment = plan(dataclasses.replace(SMALL, method="fedavg", defence=defence, **few)).experiment
    (here, metrics), probes = two_rounds(experiment, tmp_path / "here"), probed(experiment, tmp_path / "here")
    assert "later acc_protected" in metrics  # for which the model is installed again
    with pretended_gpu():
        there, metrics_there = two_rounds(on_gpu(experiment), tmp_path / "there")
        assert_same(here, there)
        assert metrics == metrics_there
        assert_same(probes, probed(on_gpu(experiment), tmp_path / "there"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedprox", "dp_fedavg", "hyperfl"])
def test_clients_take_joint_steps_on_a_gpu(method: str, tmp_path: Path) -> None:
    few = {"net": "lenet", "set": ("hidden=8", "embedding=4")} if method == "hyperfl" else {}
    experiment = joint_clients.asked(method=method, local_epochs=1, **few)
    here = joint_clients.trained(experiment, tmp_path / "here", together=True)
    with pretended_gpu():
        there = joint_clients.trained(on_gpu(experiment), tmp_path / "there", together=True)
        there = [({name: value.cpu() for name, value in held.items()}, metrics) for held, metrics in there]
    for (held, _), (held_there, _) in zip(here, there, strict=True):
        assert_same(held, held_there)


def test_what_a_gpu_refuses_is_refused() -> None:
    with pretended_gpu():
        there = torch.ones(2).to("cuda")
        assert (str(there.device), str(torch.zeros(2, device="cuda").device)) == ("cuda:0", "cuda:0")
        assert (there + there).cpu().tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match="found cuda:0 and cpu"):
            _ = there + torch.ones(2)
        with pytest.raises(RuntimeError, match="generator"):
            torch.randn(2, generator=torch.Generator(), device="cuda")
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()
