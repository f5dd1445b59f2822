"""Automatic clipping: the sum and the rounds of clients against loops, its sensitivity, its noise, its refusals."""

import dataclasses
from math import inf, sqrt
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.dp.noise_residual import ClippedGradients
from flfw.dp.run_accountant import RunAccountant
from flfw.dp.settings import DPUnitSettings, clipped_change
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.training.clipping import Grouping
from flfw.nets.training.per_example import ClippedSum, PerExample
from flfw.plans.run_plan import plan
from flfw.rng import initialising, torch_generator
from tests.support.method_rounds import assert_equal, initial_tensors, make_client, of, plain_net
from tests.support.refusals import assert_refused

AUTOMATIC = "clipping=automatic"
SHAPES = {"mlp": (12,), "cnn3x3": (1, 28, 28), "lenet": (3, 32, 32)}


def normalised(change: dict[str, Tensor], bound: float, grouping: str) -> dict[str, Tensor]:
    """The paper's rule, group by group: g C / (|g| + 0.01)."""
    groups: dict[str, list[str]] = {}
    for name in change:
        groups.setdefault({"layer": name.rpartition(".")[0], "tensor": name, "flat": ""}[grouping], []).append(name)
    result = {}
    for members in groups.values():
        norm = sqrt(sum(float(change[name].double().square().sum()) for name in members))
        result |= {name: change[name] * bound / (norm + 0.01) for name in members}
    return result


def one_by_one(model: nn.Module, x: Tensor, y: Tensor, bound: float, grouping: str) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for j in range(len(x)):
        loss = cross_entropy(model(x[j : j + 1]), y[j : j + 1])
        gradient = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        for name, value in normalised(gradient, bound, grouping).items():
            sums[name] += value
    return sums


def example(experiment: Experiment, partition: int = 0) -> tuple[Tensor, Tensor]:
    task = plan(experiment).task.load(None)
    x, y = task.examples("train", task.split.train[partition])
    return task.inputs.normalise(x), y


def summed(tested: PerExample, model: nn.Module, x: Tensor, y: Tensor, bound: float) -> ClippedSum:
    return tested.clipped_sum(lambda: cross_entropy(model(x), y, reduction="none"), bound)


@pytest.fixture
def tiny(small: Experiment) -> Experiment:
    """Three clients of 20 digits each, in batches of 8, two passes of a small dense network."""
    changes = {"net": "mlp", "split": "sampled", "local_epochs": 2, "batch_size": 8, "lr": 0.3}
    return dataclasses.replace(small, **changes, set=("sampled.train=20",))


# --- the sum ---


def test_by_hand() -> None:
    """One output w x + b with loss w x + b: the gradient is (x, 1), of norm 5 for x = (4, sqrt 8), and 1 for 0."""
    model = nn.Linear(2, 1).double()
    x = torch.tensor([[4.0, 8.0**0.5], [0.0, 0.0]], dtype=torch.float64)
    result = PerExample(model, clipping="automatic").clipped_sum(lambda: model(x)[:, 0], 2.505)
    assert result.norms.tolist() == [[pytest.approx(5.0)], [pytest.approx(1.0)]]
    assert result.scales.tolist() == [[pytest.approx(0.5)], [pytest.approx(2.505 / 1.01)]]
    assert result.sums["bias"].tolist() == [pytest.approx(0.5 + 2.505 / 1.01)]


@pytest.mark.parametrize("grouping", ["layer", "tensor", "flat"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_sum_equals_a_loop(name: str, grouping: Grouping) -> None:
    with initialising(0, "model"):
        model = nets.build(name, SHAPES[name], 10)
    x, y = torch.rand(5, *SHAPES[name], generator=torch_generator(0, "x")), torch.arange(5)
    tested = PerExample(model, grouping=grouping, clipping="automatic")
    assert_equal(summed(tested, model, x, y, 0.7).sums, one_by_one(model, x, y, 0.7, grouping), 1e-5)


def test_one_example_changes_the_sum_by_less_than_the_bound() -> None:
    """Vanishing, usual and long gradients: all but the first come close to C, and none reaches it."""
    model = nn.Linear(3, 2).double()
    lengths = (1e-6, 1e-2, 1.0, 1e3, 1e6, 1e12)
    x = torch.tensor(lengths, dtype=torch.float64)[:, None] * torch.ones(6, 3, dtype=torch.float64) / sqrt(3)
    tested = PerExample(model, ["weight"], clipping="automatic")

    def total(some: Tensor) -> Tensor:
        return tested.clipped_sum(lambda: model(some)[:, 0], 2.0).sums["weight"]

    for j, length in enumerate(lengths):
        others = torch.cat([x[:j], x[j + 1 :]])
        reached = float((total(x) - total(others)).norm())
        assert reached == pytest.approx(2 * length / (length + 0.01), rel=1e-5)
        assert reached <= 2 * (1 + 1e-12)


def test_a_change_of_a_client_is_scaled_by_the_same_rule() -> None:
    change = {"a.w": torch.tensor([3.0]), "a.b": torch.tensor([4.0]), "b.w": torch.tensor([0.03])}
    result = clipped_change(change, 2.0, "layer", "automatic")
    assert_equal(result, normalised(change, 2.0, "layer"), 1e-6)
    assert float(result["b.w"]) == pytest.approx(1.5)
    lost = clipped_change({**change, "a.b": torch.tensor([inf])}, 2.0, "layer", "automatic")
    assert [float(value) for value in lost.values()] == pytest.approx([0.0, 0.0, 1.5])
    assert not clipped_change({"a.w": torch.zeros(2)}, 2.0, "layer", "automatic")["a.w"].any()


# --- clients ---


@pytest.mark.parametrize(("method", "grouping"), [("fed_cdp", "layer"), ("dp_fedavg", "flat")])
def test_a_round_of_steps_equals_a_loop(tiny: Experiment, tmp_path: Path, method: str, grouping: str) -> None:
    experiment = of(tiny, method, "noise_multiplier=0", "clip=0.3", AUTOMATIC)
    settings = plan(experiment).client.settings
    net, (x, y) = plain_net(experiment), example(experiment)
    kept = {"momentum": settings.momentum, "weight_decay": settings.weight_decay}
    optimiser = torch.optim.SGD(net.parameters(), lr=experiment.lr, **kept)
    rng = torch_generator(experiment.seed, "batches", 1, 0)
    for _ in range(experiment.local_epochs):
        for chosen in torch.randperm(len(y), generator=rng).split(8):
            step = one_by_one(net, x[chosen], y[chosen], 0.3, grouping)
            for name, parameter in net.named_parameters():
                parameter.grad = step[name] / len(chosen)
            optimiser.step()
    sent, _ = make_client(experiment, 0, tmp_path).fit_named(initial_tensors(experiment), version=0)
    assert_equal(sent, net.state_dict(), 1e-5)


@pytest.mark.parametrize(("method", "unit"), [("fed_sdp", "noised_by=server"), ("dp_fedavg", "unit=client")])
def test_an_update_is_scaled_as_a_whole(tiny: Experiment, tmp_path: Path, method: str, unit: str) -> None:
    experiment = of(tiny, method, "noise_multiplier=0", "grouping=flat", "clip=0.2", unit, AUTOMATIC)
    free = of(tiny, method, "noise_multiplier=0", "grouping=flat", "clip=1e9", unit)
    before = {name: torch.tensor(value) for name, value in initial_tensors(experiment).items()}
    changes = []
    for number, requested in enumerate((experiment, free)):
        sent, _ = make_client(requested, 0, tmp_path / str(number)).fit_named(initial_tensors(requested), version=0)
        changes.append({name: sent[name] - before[name] for name in before})
    assert_equal(changes[0], normalised(changes[1], 0.2, "flat"), 1e-5)


def test_the_noise_has_the_scale_of_the_bound(tiny: Experiment, tmp_path: Path) -> None:
    """One step of 20 examples: -20 times what noise changes has deviation 3 C, and not 2/3 or 3/2 of it."""
    sent = []
    for number, sigma in enumerate((3, 3, 0)):
        chosen = of(tiny, "fed_cdp", f"noise_multiplier={sigma}", "clip=0.5", AUTOMATIC)
        chosen = dataclasses.replace(chosen, batch_size=20, local_epochs=1, lr=1.0)
        client = make_client(chosen, 0, tmp_path / str(number))
        sent.append(client.fit_named(initial_tensors(chosen), version=0)[0])
    assert all(torch.equal(sent[0][name], value) for name, value in sent[1].items())  # by the seed
    noise = torch.cat([-20 * (sent[0][name] - value).double().flatten() for name, value in sent[2].items()])
    square, freedom = float(noise.square().sum()), len(noise)
    tails = [2 * min(chi2.cdf(square / d**2, freedom), chi2.sf(square / d**2, freedom)) for d in (1.5, 1.0, 2.25)]
    assert tails[0] > 1e-3 and max(tails[1:]) < 1e-9


def test_the_audits_own_gradients_follow_the_rule(tiny: Experiment) -> None:
    experiment = of(tiny, "dp_fedavg", "clip=0.3", AUTOMATIC)
    net, task = plain_net(experiment), plan(experiment).task.load(None)
    gradients = ClippedGradients(task, net, DPUnitSettings(clip=0.3, clipping="automatic"))
    sent = {name: value.detach() for name, value in net.state_dict().items()}
    (rows,) = gradients.rows(sent, task.split.train[0], 100)
    expected = one_by_one(net, *example(experiment), 0.3, "flat")
    torch.testing.assert_close(rows.sum(0), gradients.row_of(expected), rtol=1e-4, atol=1e-6)
    assert bool((rows.norm(dim=1) < 0.3).all())


# --- settings ---


def test_without_clipping_nothing_is_scaled_up_and_the_mildest_setting_keeps_the_rule() -> None:
    settings = DPUnitSettings(clipping="automatic")
    assert settings.disabled().clipping == "abadi" and settings.disabled().clip > 1e6
    assert settings.weakest().clipping == "automatic" and settings.weakest().clip == settings.clip


@pytest.mark.parametrize(
    ("method", "assignments", "text"),
    [
        ("fed_cdp", ["bound=median"], "Expected a bound other than median with clipping=automatic, got bound=median."),
        ("dp_fedavg", ["clip=1e31"], "Expected 1e-30 <= clip <= 1e+30, got clip=1e+31."),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    method: str, assignments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(text, ["--method", method, "--set", AUTOMATIC, *assignments], tmp_path / "r", capsys)


def test_an_unknown_rule_and_an_infinite_bound_are_refused() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(InputError, match="clipping among abadi, automatic"):
        PerExample(model, clipping="none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"0 < bound <= 1e\+30"):
        PerExample(model, clipping="automatic").clipped_sum(lambda: model(torch.zeros(1, 2))[:, 0], inf)


@pytest.mark.slow
def test_both_rules_cost_the_same_epsilon(tiny: Experiment) -> None:
    each = [of(tiny, "dp_fedavg", "batches=poisson", f"clipping={rule}") for rule in ("abadi", "automatic")]
    claims = [RunAccountant(plan(one).client, plan(one).task.load(None).split).claims() for one in each]
    assert claims[0] == claims[1] and claims[0][0].epsilon < inf
