"""Networks in which one example changes the gradients of others: no bound on a single gradient covers that."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.client.context import ClientContext
from flfw.dp.client import DPClient
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.net import mixes_examples
from flfw.nets.training.per_example import PerExample
from flfw.plans.combinations import check_clients
from flfw.plans.run_plan import RunPlan, plan, without_auto
from flfw.rng import initialising
from tests.support.odd_nets import Running

ODD = "tests.support.odd_nets"


def resolved(net: str, method: str, *settings: str, **more: Any) -> RunPlan:
    fields: dict[str, Any] = {"net": net, "method": method, "set": settings, "attack": ("none",), "engine": "inproc"}
    fields |= more
    return plan(without_auto(Experiment(dataset="digits", clients=2, rounds=1, **fields)))


def checked(net: str, method: str, *settings: str, **more: Any) -> None:
    check_clients(resolved(net, method, *settings, **more).client)


@pytest.mark.parametrize("method", ["dp_fedavg", "fed_cdp", "centaur", "ppsgd"])
@pytest.mark.parametrize(
    "net", ["centred_inputs", "centred_in_eights", "centred_if_unlike", "centred", "running", "remembering"]
)
def test_a_network_that_mixes_examples_is_refused_where_single_ones_are_clipped(net: str, method: str) -> None:
    with pytest.raises(InputError, match=f"scores from that example alone, for method={method}, which clips single"):
        checked(f"{ODD}:{net}", method)


def test_it_may_train_where_whole_updates_are_clipped_or_nothing_is() -> None:
    checked(f"{ODD}:centred_inputs", "dp_fedavg", "unit=client")
    checked(f"{ODD}:centred_inputs", "fedavg")
    checked(f"{ODD}:recurrent", "dp_fedavg", "unit=client")
    with pytest.raises(InputError, match=r"LSTM at extractor\.1; not from tensors to one tensor; dp_fedavg with unit="):
        checked(f"{ODD}:recurrent", "fed_cdp")


def test_in_evaluation_only_private_metrics_are_in_the_way() -> None:
    checked(f"{ODD}:centred_at_rest", "dp_fedavg")
    with pytest.raises(InputError, match="from that example alone"):
        checked(f"{ODD}:centred_at_rest", "dp_fedavg", "noise_source=secure", metrics="private")


@pytest.mark.parametrize("net", ["lengthwise", "dropping"])
def test_a_network_that_computes_each_by_itself_passes(net: str) -> None:
    checked(f"{ODD}:{net}", "dp_fedavg")


@pytest.mark.parametrize("net", ["mlp", "lenet5", "cnn2", "linear"])
def test_own_networks_mix_nothing(net: str) -> None:
    with initialising(0, "model"):
        assert not mixes_examples(nets.build(net, (3, 32, 32), 10), torch.rand(5, 3, 32, 32))
    assert mixes_examples(nets.build("convnet32", (3, 32, 32), 10), torch.rand(5, 3, 32, 32))  # BatchNorm


def test_an_example_that_depends_on_those_before_it_alone_is_seen_in_the_first_batch() -> None:
    with initialising(0, "model"):
        model, x = nn.Sequential(nn.Linear(4, 4), Running(), nn.Linear(4, 3)), torch.rand(5, 4)
    with pytest.raises(InputError, match="Linear at 0; the loss of one example depends on what it makes of another"):
        PerExample(model).clipped_sum(lambda: cross_entropy(model(x), torch.arange(5) % 3, reduction="none"), 1.0)


@pytest.mark.parametrize(("source", "repeats"), [("seed", True), ("secure", False)])
def test_nobody_can_repeat_what_dropout_draws_beside_secure_noise(source: str, repeats: bool) -> None:
    """By known draws one example less shifts those of all behind it: a clipped sum moved by twice the bound."""
    plan = resolved(f"{ODD}:dropping", "dp_fedavg", f"noise_source={source}", "batches=poisson")
    task = plan.task.load(None)
    client = plan.client_class(ClientContext(plan.client, task, 0, 1, None, None))
    assert isinstance(client, DPClient)
    x, y = task.examples("train", task.split.train[0][:20])
    sums = []
    for _ in range(2):
        with initialising(0, "what a server knows"):
            before = torch.get_rng_state()
            sums.append(client.clipped_sum(x, y, 0.01).sums["classifier.weight"])
            assert repeats or torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*sums) == repeats
