"""A logical batch in physical ones: the same sum, one draw of noise, no more examples at once than were asked for."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from flfw.dp.message_cost import TRAIN, cost
from flfw.dp.run_accountant import RunAccountant
from flfw.experiment import Experiment
from flfw.nets.training.per_example import physical
from flfw.nets.training.per_example_layers import Formed
from flfw.plans.run_plan import plan
from tests.support.method_rounds import assert_equal, dp_client, initial_tensors, of
from tests.support.refusals import assert_refused


@pytest.fixture
def tiny(small: Experiment) -> Experiment:
    """Three clients of 20 digits each, in batches of 8 (the last one of 4)."""
    changes = {"net": "lenet", "split": "sampled", "local_epochs": 2, "batch_size": 8, "lr": 0.3}
    return dataclasses.replace(small, **changes, set=("sampled.train=20", "clip=0.3"))


def sent_by(experiment: Experiment, folder: Path) -> dict[str, Tensor]:
    return dp_client(experiment, 0, folder).fit_named(initial_tensors(experiment), version=0)[0]


@pytest.mark.parametrize("maximum", [1, 3, 8, 100])
@pytest.mark.parametrize("count", [0, 1, 8, 17])
def test_a_sum_in_parts_is_the_whole_sum(tiny: Experiment, tmp_path: Path, maximum: int, count: int) -> None:
    results = []
    for chosen in (0, maximum):
        client = dp_client(of(tiny, "fed_cdp", f"physical_batch={chosen}"), 0, tmp_path)
        results.append(client.clipped_sum(*client.examples("train", client.indices("train")[:count]), 0.3))
    whole, parts = results
    assert parts.norms.shape == whole.norms.shape == (count, len(client.per_example.groups))
    for name in ("norms", "scales", "losses"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-4, atol=1e-6)
    assert_equal(parts.sums, whole.sums, 1e-5)
    assert not count or bool((whole.scales < 1).any())


@pytest.mark.parametrize("batches", ["shuffled", "poisson"])
@pytest.mark.parametrize(
    ("method", "assignments"),
    [
        ("fed_cdp", ()),
        ("fed_cdp", ("bound=median",)),
        ("fed_cdp", ("clipping=automatic", "draws=example")),
        ("dp_fedavg", ("momentum=0.5",)),
        ("ppsgd", ()),
        ("centaur", ()),
    ],
)
def test_a_round_with_noise_is_the_same(
    tiny: Experiment, tmp_path: Path, method: str, assignments: tuple[str, ...], batches: str
) -> None:
    """The same noise, drawn once a logical batch: another draw would show, and so would another divisor."""
    given = of(tiny, method, "noise_multiplier=2", f"batches={batches}", *assignments)
    whole, parts = sent_by(given, tmp_path / "0"), sent_by(of(given, method, "physical_batch=3"), tmp_path / "3")
    assert_equal(parts, whole, 1e-4)


def test_the_noise_is_that_of_one_draw(tiny: Experiment, tmp_path: Path) -> None:
    """20 examples in parts of 3: the noise on the sum has deviation 3 C, and not 2/3, 3/2 or sqrt(7) times that."""
    step = of(tiny, "dp_fedavg", "physical_batch=3", batch_size=20, local_epochs=1, lr=1.0)
    noisy, bare = (
        sent_by(of(step, "dp_fedavg", f"noise_multiplier={sigma}", "weight_decay=0"), tmp_path / str(sigma))
        for sigma in (3, 0)
    )
    noise = torch.cat([20 * (noisy[name] - bare[name]).double().flatten() for name in bare])
    square, freedom = float(noise.square().sum()), len(noise)
    stds = [0.9 * factor for factor in (1.0, 2 / 3, 3 / 2, 7**0.5)]
    tails = [2 * min(chi2.cdf(square / d**2, freedom), chi2.sf(square / d**2, freedom)) for d in stds]
    assert tails[0] > 1e-3 and max(tails[1:]) < 1e-9


@pytest.mark.parametrize("batches", ["shuffled", "poisson"])
def test_no_more_examples_are_at_work_at_once(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: str
) -> None:
    """Neither in the network nor among the gradients that are in memory."""
    together: dict[str, list[int]] = {"network": [], "gradients": []}
    made = Formed.__init__

    def noting(self: Formed, values: Tensor, *others: Any) -> None:
        together["gradients"].append(len(values))
        made(self, values, *others)

    monkeypatch.setattr(Formed, "__init__", noting)
    for maximum, expected in ((0, 8 if batches == "shuffled" else 9), (3, 3)):
        for noted in together.values():
            noted.clear()
        requested = of(tiny, "fed_cdp", f"physical_batch={maximum}", f"batches={batches}")
        client = dp_client(requested, 0, tmp_path / str(maximum))
        client.load_received(initial_tensors(requested), 0)

        def entering(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            together["network"].append(len(inputs[0]))

        client.model.register_forward_pre_hook(entering)
        client.train()
        for noted in together.values():
            assert (max(noted) == 3) if maximum else (max(noted) >= expected)
        examples = 2 * 20
        drawn = sum(together["network"])
        assert drawn == examples if batches == "shuffled" else 0.4 * examples < drawn < 2 * examples


def test_the_claims_and_a_sites_count_are_the_same(tiny: Experiment) -> None:
    each = [
        of(tiny, "dp_fedavg", "batches=poisson", "noise_source=secure", f"physical_batch={maximum}", metrics="none")
        for maximum in (0, 3)
    ]
    split = plan(each[0]).task.load(None).split
    whole, parts = (RunAccountant(plan(one).client, split).claims() for one in each)
    assert whole == parts and np.isfinite(whole[0].epsilon)
    assert cost(plan(each[0]).client, TRAIN, {}, 20) == cost(plan(each[1]).client, TRAIN, {}, 20)


@pytest.mark.parametrize(
    ("method", "assignments", "text"),
    [
        ("fed_cdp", ["physical_batch=-1"], "Expected physical_batch >= 0, got physical_batch=-1."),
        ("dp_fedavg", ["physical_batch=3", "unit=client"], "Expected physical_batch=0 where no single gradients are"),
        ("fed_sdp", ["physical_batch=3"], "physical_batch"),
        ("fedavg", ["physical_batch=3"], "physical_batch"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    method: str, assignments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(text, ["--method", method, "--set", *assignments], tmp_path / "r", capsys)


@pytest.mark.parametrize("maximum", [0, 1, 2, 3, 4, 8])
def test_no_example_is_alone_in_a_part_where_others_are_not(maximum: int) -> None:
    """Else one example fewer in a batch would move another from a pair into a part of its own."""
    for count in range(30):
        sizes = [len(y) for _, y in physical(torch.zeros(count, 1), torch.zeros(count), maximum)]
        assert sum(sizes) == count and all(size <= (maximum or count) for size in sizes)
        assert len(sizes) <= 1 or min(sizes) > 1 or max(sizes) == 1
