"""What a server may choose for a client, made so that the answer tells more than the site's ledger counts."""

import dataclasses
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import nn
from torch.nn.functional import cross_entropy

from flfw.dp.budget import EpsilonBudget
from flfw.engines import apps
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack, unpack
from flfw.nets.net import Tensors
from flfw.nets.training.gaussian import add_secure_gaussian
from flfw.nets.training.per_example import PerExample
from flfw.plans.run_plan import plan
from tests.support.method_rounds import initial_tensors, make_client

BUDGET = EpsilonBudget(1e4)
SIGMA, EXAMPLES, BATCH = 1000.0, 40, 4


@pytest.fixture
def site(small: Experiment) -> Experiment:
    """Ten Poisson batches of a site with 40 examples, in noise far above any gradient."""
    changes: dict[str, Any] = {"method": "fed_cdp", "net": "linear", "split": "sampled", "clients": 1, "lr": 1.0}
    changes |= {"batch_size": BATCH, "metrics": "none"}
    chosen = ("batches=poisson", "grouping=flat", f"noise_multiplier={SIGMA:g}", "clip=1", "noise_source=secure")
    return dataclasses.replace(small, **changes, set=(f"sampled.train={EXAMPLES}", *chosen))


def answered(experiment: Experiment, folder: Path, **config: Any) -> Tensors:
    """The change of the model by a site with a budget, for a train message with further scalars."""
    node = {"state": str(folder / "state"), **BUDGET.to_node_config(folder / "lines.jsonl")}
    grid = InProcessGrid(apps.client, 1, experiment.to_run_config(), [node])
    start = {name: torch.tensor(value) for name, value in initial_tensors(experiment).items()}
    scalars = {"round": 1, "client": 0, "state_version": 0, "experiment": "run1", "code": code_hash(), "deadline": 60.0}
    content = RecordDict({"arrays": pack(start), "config": ConfigRecord({**scalars, **config})})
    (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    assert not reply.has_error(), reply.error.reason
    return {name: value - start[name] for name, value in unpack(reply.content.array_records["arrays"]).items()}


@pytest.mark.parametrize("draws", ["batch", "example"])
@pytest.mark.parametrize("scalars", [{}, {"slot": 0, "batch": 1, "steps": 1}, {"slot": 0}])
def test_a_probes_numbers_in_a_train_message_change_no_noise(
    draws: str, scalars: dict[str, int], site: Experiment, tmp_path: Path
) -> None:
    """A probe's noise and divisor are those of its batch: in training they would tell how many coins fell."""
    experiment = dataclasses.replace(site, net="mlp", set=(*site.set, f"draws={draws}"))
    change = torch.cat([value.flatten() for value in answered(experiment, tmp_path, **scalars).values()])
    each = SIGMA * (sqrt(BATCH) if draws == "example" else 1) / BATCH
    assert float(change.std()) == pytest.approx(each * sqrt(EXAMPLES / BATCH), rel=0.06)  # 8970 entries: 0.75 %


def clipped_sum(x: torch.Tensor, bound: float) -> torch.Tensor:
    """The sum of the clipped gradients of equal scores."""
    model = nn.Linear(x.shape[1], 2)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    clipping = PerExample(model, grouping="flat")
    labels = torch.zeros(len(x), dtype=torch.long)
    sums = clipping.clipped_sum(lambda: cross_entropy(model(x), labels, reduction="none"), bound).sums
    return torch.cat([value.flatten() for value in sums.values()])


def test_a_bound_among_the_least_floats_would_bound_nothing() -> None:
    """Half of the least float32 in each of 4002 equal entries is rounded up to all of it: twice the bound."""
    bound = 0.5 * 2.0**-149 * sqrt(4002) * (1 + 1e-6)
    assert float(clipped_sum(torch.ones(1, 2000), bound).double().norm()) > 1.99 * bound
    assert float(clipped_sum(torch.ones(1, 2000), 1e-30).double().norm()) < 1.000001e-30


def test_sums_of_the_largest_bounds_would_overflow_for_one_example_more() -> None:
    """The client's failure tells it with certainty; at the largest bound allowed, ten million examples have room."""
    x = torch.zeros(13, 2000)
    x[:, 0] = 1e38
    sums = [clipped_sum(x[:examples], 4e37) for examples in (12, 13)]
    add_secure_gaussian({"sum": sums[0]}, 4e37)
    with pytest.raises(InputError, match="Expected finite values"):
        add_secure_gaussian({"sum": sums[1]}, 4e37)
    assert float(clipped_sum(x, 1e30).abs().max()) * 1e7 / 13 < torch.finfo(torch.float32).max


REFUSED = {
    "clip=1e-31": "Expected 1e-30 <= clip <= 1e+30, got clip=1e-31",
    "clip=1e31": "Expected 1e-30 <= clip <= 1e+30, got clip=1e+31",
    "last_clip=1e-31": "Expected 1e-30 <= last_clip <= 1e+30, got last_clip=1e-31",
    "noise_multiplier=1e300": "Expected noise_multiplier * clip <= 1e+34, which float32 holds, got",
    "noise_multiplier=1e5 clip=1e30": "Expected noise_multiplier * clip <= 1e+34, which float32 holds",
    "last_clip=1e31": "Expected 1e-30 <= last_clip <= 1e+30, got last_clip=1e+31",
}


@pytest.mark.parametrize(("assignment", "message"), REFUSED.items())
def test_bounds_that_float32_cannot_keep_are_refused(assignment: str, message: str, site: Experiment) -> None:
    with pytest.raises(InputError) as caught:
        plan(dataclasses.replace(site, set=(*site.set, *assignment.split())))
    assert str(caught.value).startswith(message)


def test_a_late_round_has_no_bound_below_the_least(site: Experiment) -> None:
    decaying = plan(dataclasses.replace(site, set=(*site.set, "bound=lr", "lr_decay=0.5"))).client.settings
    assert decaying.clip_at(3, 10) == 0.25
    assert decaying.clip_at(10**6, 10**6) == 1e-30


def test_an_evaluation_that_tells_nothing_reads_no_data(
    site: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs nothing of a budget, so that a server could ask for it at any weights and take the time."""
    client = make_client(site, 0, tmp_path)
    monkeypatch.setattr(client.ctx.task.__class__, "examples", None)
    assert client.evaluate_named(initial_tensors(site), 0) == {}
