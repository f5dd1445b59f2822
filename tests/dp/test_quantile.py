"""A bound that follows a quantile: a loop, Opacus' rule, both noises' scales, its price, resumption, refusals."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chi2
from torch import Tensor

import sim
from flfw.dp.budget import BudgetExceededError
from flfw.dp.client import DPClient
from flfw.dp.message_cost import TRAIN, cost
from flfw.dp.noisy_mean import quantile_mean
from flfw.dp.quantile import answer, update_multiplier, updated_factor
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import RunAccountant
from flfw.dp.settings import DPUnitSettings
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.training.clipping import CLIP_FACTOR
from flfw.nets.training.gaussian import SeededNoise
from flfw.plans.run_plan import plan
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.mechanism import GaussianEvent
from flfw.rng import torch_generator
from flfw.runs import run
from flfw.server.aggregation import Update
from tests.support.method_rounds import initial_tensors, make_client, of
from tests.support.refusals import assert_refused
from tests.support.resumed_runs import cut_short

MOVING = DPUnitSettings(unit="client", quantile=0.5, clip=1.0, noise_multiplier=0.0)


def noise(*numbers: int) -> SeededNoise:
    return SeededNoise(torch_generator(0, "noise", *numbers))


@pytest.fixture
def tiny(small: Experiment) -> Experiment:
    """Three clients of 20 digits each, in batches of 8, a small dense network."""
    changes = {"net": "mlp", "split": "sampled", "batch_size": 8, "lr": 0.3}
    return dataclasses.replace(small, **changes, set=("sampled.train=20",))


# --- by hand, and against another's ---


def test_the_bound_falls_where_too_many_are_within_it_and_rises_where_too_few() -> None:
    for share, expected in ((1.0, exp(-0.1)), (0.5, 1.0), (0.0, exp(0.1)), (7.0, exp(-1.3))):
        assert float(updated_factor(torch.ones(1), share, 0.5, 0.2)) == pytest.approx(expected)
    for share in (-1e30, 1e30):  # whatever the noise, the bound can be sent
        assert 0 < float(updated_factor(torch.ones(1), share, 0.5, 0.2)) < 1e13


def test_an_update_is_within_its_bound_or_not() -> None:
    assert [answer(norm, 2.0) for norm in (0.0, 2.0, 2.0001, float("inf"), float("nan"))] == [0.5, 0.5] + [-0.5] * 3


def test_the_rule_and_the_noise_are_those_of_opacus() -> None:
    from opacus.optimizers.adaclipoptimizer import AdaClipDPOptimizer

    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    limits = {"max_clipbound": 1e8, "min_clipbound": 1e-8, "expected_batch_size": 1}
    theirs = AdaClipDPOptimizer(
        plain,
        noise_multiplier=1.5,
        target_unclipped_quantile=0.3,
        clipbound_learning_rate=0.2,
        unclipped_num_std=3.0,
        max_grad_norm=2.0,  # type: ignore[arg-type]
        **limits,
    )
    theirs.max_grad_norm, theirs.sample_size, theirs.unclipped_num = torch.tensor(2.0), 8, torch.tensor(5.7)  # type: ignore[assignment]
    theirs.update_max_grad_norm()
    assert float(2 * updated_factor(torch.ones(1), 5.7 / 8, 0.3, 0.2)) == pytest.approx(float(theirs.max_grad_norm))
    stds: list[float] = []

    def noting(std: float, **others: Any) -> Tensor:
        stds.append(std)
        return torch.zeros(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opacus.optimizers.adaclipoptimizer._generate_noise", noting)
        theirs.max_grad_norm = 2.0
        theirs.params[0].summed_grad = torch.zeros(1)  # type: ignore[attr-defined]
        theirs.add_noise()
    assert stds == [pytest.approx(2 * update_multiplier(1.5, 3.0 / 1.5)), 3.0]


@pytest.mark.parametrize("ratio", [0.6, 1.0, 2.0, 10.0])
def test_both_noises_together_cost_what_the_stated_one_does(ratio: float) -> None:
    """The updates, and the count of numbers up to 1/2: two Gaussian mechanisms, by the accountant."""
    z = 1.3
    both = [GaussianEvent(update_multiplier(z, ratio), 1.0, 7), GaussianEvent(2 * ratio * z, 1.0, 7)]
    expected = compute_epsilon([GaussianEvent(z, 1.0, 7)], 1e-5, "prv").epsilon
    assert compute_epsilon(both, 1e-5, "prv").epsilon == pytest.approx(expected, rel=1e-6)
    unpaid = [GaussianEvent(z, 1.0, 7), both[1]]  # the count is not free
    assert compute_epsilon(unpaid, 1e-5, "prv").epsilon > 1.0005 * expected


# --- the server ---


def updates_of(lengths: Iterable[float], factor: float, sent: Mapping[str, Tensor]) -> list[Update]:
    """Clients whose updates have these norms, in two tensors; they clip and answer by the bound 1 times the factor."""
    updates = []
    for partition, length in enumerate(lengths):
        kept = min(length, factor)
        change = {"a.w": 0.6 * kept * torch.tensor([1.0, 0.0]), "b.w": 0.8 * kept * torch.tensor([0.0, 1.0])}
        tensors = {name: sent[name] + value for name, value in change.items()}
        updates.append(
            Update(partition, 1, {CLIP_FACTOR: torch.tensor([0.5 if length <= factor else -0.5]), **tensors})
        )
    return updates


@pytest.mark.slow
def test_the_mean_equals_a_loop_and_the_bound_comes_to_the_quantile() -> None:
    rng = np.random.default_rng(0)
    for quantile in (0.2, 0.5, 0.9):
        settings = dataclasses.replace(MOVING, quantile=quantile)
        sent: dict[str, Tensor] = {CLIP_FACTOR: torch.ones(1), "a.w": torch.zeros(2), "b.w": torch.zeros(2)}
        bound, lengths = 1.0, 0.05 * rng.lognormal(0.0, 1.0, 50)
        for _ in range(100):
            result = quantile_mean(updates_of(lengths, float(sent[CLIP_FACTOR]), sent), sent, 50, settings, noise())
            mean = sum(min(length, bound) for length in lengths) / 50
            assert float(result["a.w"][0] - sent["a.w"][0]) == pytest.approx(0.6 * mean, rel=1e-3)
            bound *= exp(-0.2 * (sum(length <= bound for length in lengths) / 50 - quantile))
            assert float(result[CLIP_FACTOR]) == pytest.approx(bound, rel=1e-4)
            sent = {name: result[name] for name in sent}
        assert np.mean(lengths <= bound) == pytest.approx(quantile, abs=0.03)


def test_a_client_counts_as_one_whatever_it_answers_and_is_clipped_to_the_bound_of_the_round() -> None:
    sent = {CLIP_FACTOR: torch.tensor([0.5]), "a.w": torch.zeros(2), "b.w": torch.zeros(2)}
    answers = {1e6: 0.5, -1e6: -0.5, 0.5: 0.5, 0.1: 0.1}
    for claimed, taken in answers.items():
        liar = Update(
            0, 1, {CLIP_FACTOR: torch.tensor([claimed]), "a.w": torch.tensor([30.0, 0.0]), "b.w": torch.zeros(2)}
        )
        result = quantile_mean([liar], sent, 1, MOVING, noise())
        assert float(result[CLIP_FACTOR]) == pytest.approx(0.5 * exp(-0.2 * taken))
        assert float(result["a.w"][0]) == pytest.approx(0.5, rel=2e-3)


def test_the_noise_of_updates_and_of_the_count_have_their_scales() -> None:
    """Nobody is in the rounds. z = 3, sigma_b = 6: updates 3 / sqrt(1 - 1/16) times C = 0.5, the count 6."""
    settings = dataclasses.replace(MOVING, noise_multiplier=3.0, quantile_noise=2.0, clip=2.0, quantile_lr=0.1)
    sent = {CLIP_FACTOR: torch.tensor([0.25]), "a.w": torch.zeros(40)}
    on_updates, on_counts, result = [], [], sent
    for at in range(400):
        result = quantile_mean([], sent, 5, settings, noise(at))
        on_updates.append(5 * result["a.w"].double())
        on_counts.append(-5 * log(float(result[CLIP_FACTOR]) / 0.25) / 0.1)  # m (b~ - q), and q is 1/2
    again = quantile_mean([], sent, 5, settings, noise(399))
    assert all(torch.equal(again[name], result[name]) for name in sent)
    for values, std in ((torch.cat(on_updates), 0.5 * 3 / sqrt(15 / 16)), (torch.tensor(on_counts), 6.0)):
        square = float(values.double().square().sum())
        at = [square / (std * size) ** 2 for size in (1.0, 2 / 3, 3 / 2)]
        tails = [2 * min(chi2.cdf(value, len(values)), chi2.sf(value, len(values))) for value in at]
        assert tails[0] > 1e-3 and max(tails[1:]) < 1e-9
    pairs = np.corrcoef([float(value[0]) for value in on_updates], on_counts)
    assert abs(pairs[0, 1]) < 4 / sqrt(400)


def test_secure_noise_is_another_one_each_time() -> None:
    settings = dataclasses.replace(MOVING, noise_multiplier=1.0, noise_source="secure")
    sent = {CLIP_FACTOR: torch.ones(1), "a.w": torch.zeros(2)}
    one, two = (quantile_mean([], sent, 5, settings, settings.noise(0, "server noise", 1)) for _ in range(2))
    assert float(one[CLIP_FACTOR]) != float(two[CLIP_FACTOR]) and not torch.equal(one["a.w"], two["a.w"])


# --- the clients ---


@pytest.mark.parametrize("method", ["dp_fedavg", "ppsgd", "centaur", "fed_sdp"])
def test_clients_clip_to_the_bound_they_are_sent_and_say_whether_it_bites(
    tiny: Experiment, tmp_path: Path, method: str
) -> None:
    by_server = ("noised_by=server", "grouping=flat") if method == "fed_sdp" else ("unit=client",)
    free = of(tiny, method, "clip=1e9", *by_server)
    before = initial_tensors(free)
    sent, _ = make_client(free, 0, tmp_path / "free").fit_named(before, version=0)
    change = {name: sent[name] - torch.tensor(before[name]) for name in sent}
    norm = sqrt(sum(float(value.double().square().sum()) for value in change.values()))
    for number, factor in enumerate((0.5, 0.99, 1.01, 3.0)):
        requested = of(tiny, method, f"clip={norm}", "quantile=0.5", *by_server)
        received = {**initial_tensors(requested), CLIP_FACTOR: np.array([factor], np.float32)}
        client = make_client(requested, 0, tmp_path / str(number))
        assert isinstance(client, DPClient)
        upload, _ = client.fit_named(received, version=0)
        assert set(upload) == set(received)
        assert upload[CLIP_FACTOR].tolist() == [0.5 if factor > 1 else -0.5]
        for name, value in change.items():
            kept = upload[name] - torch.tensor(received[name])
            torch.testing.assert_close(kept, min(1.0, factor) * value, rtol=1e-3, atol=1e-6)


def test_a_defence_does_not_touch_the_answer(tiny: Experiment, tmp_path: Path) -> None:
    requested = of(tiny, "dp_fedavg", "unit=client", "quantile=0.5", "clip=1e-3", "prune.ratio=0.99", defence="prune")
    client = make_client(requested, 0, tmp_path)
    client.ctx = dataclasses.replace(client.ctx, defence=plan(requested).client.defences.build())
    sent, _ = client.fit_named(initial_tensors(requested), version=0)
    assert sent[CLIP_FACTOR].tolist() == [-0.5]


def test_controls_without_clipping_and_with_faint_noise_do_what_they_say(tiny: Experiment, tmp_path: Path) -> None:
    settings = plan(of(tiny, "dp_fedavg", "unit=client", "quantile=0.5", "clip=1e-3")).client.settings
    assert settings.disabled().follows_quantile and settings.weakest().follows_quantile  # the entry is sent to them too
    assert settings.disabled().clip > 1e6 and settings.disabled().server_multiplier == 0
    assert 0 < settings.weakest().server_multiplier < 1e-5 and settings.weakest().clip == 1e-3


# --- a run ---

RUN = ("unit=client", "quantile=0.5", "clip=0.5", "noise_multiplier=0.5")


@pytest.mark.slow
def test_the_bound_survives_a_resumption_to_the_bit(tiny: Experiment, tmp_path: Path) -> None:
    given = of(tiny, "dp_fedavg", *RUN, rounds=3, sample=2, sampling="poisson", metrics="none")
    full = run.run(dataclasses.replace(given, out=tmp_path / "whole"))
    folder = cut_short(dataclasses.replace(given, out=tmp_path / "cut"), 2)
    assert sim.main(["--resume", str(folder)]) == 0
    models = [load_file(next((run / "checkpoint").glob("round-00003-*"))) for run in (full, folder)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert 0 < float(models[0][f"model/{CLIP_FACTOR}"]) != 1.0
    results = [json.loads((run / "result.json").read_text()) for run in (full, folder)]
    assert results[0]["final"] == results[1]["final"] and results[0]["privacy"] == results[1]["privacy"]


def test_the_claims_are_those_of_the_stated_noise_and_say_that_the_bound_moves(tiny: Experiment) -> None:
    requested = of(tiny, "dp_fedavg", *RUN)
    still = of(tiny, "dp_fedavg", "unit=client", "clip=0.5", "noise_multiplier=0.5")
    split = plan(requested).task.load(None).split
    claims, fixed = (RunAccountant(plan(one).client, split).claims() for one in (requested, still))
    assert [claim.epsilon for claim in claims] == [claim.epsilon for claim in fixed]
    outsider = next(claim for claim in claims if (claim.unit, claim.adversary) == ("client", "outsider"))
    words = "it then follows a count, with noise, of the updates within it."
    assert words in str(outsider.assumptions) and words not in str(fixed)


def test_a_target_finds_the_noise_of_both_together(tiny: Experiment) -> None:
    requested = of(tiny, "dp_fedavg", "unit=client", "quantile=0.5", "quantile_noise=0.7", target_epsilon=3.0)
    split = plan(requested).task.load(None).split
    settings = resolve_noise(plan(requested), split)[0].client.settings
    fixed = of(tiny, "dp_fedavg", "unit=client", target_epsilon=3.0)
    assert settings.noise_multiplier == resolve_noise(plan(fixed), split)[0].client.settings.noise_multiplier
    assert settings.server_multiplier > 1.4 * settings.noise_multiplier


def test_a_site_with_a_budget_refuses_what_the_server_is_to_noise(tiny: Experiment) -> None:
    sdp = ("noised_by=server", "grouping=flat", "quantile=0.5")
    for method, chosen in (("dp_fedavg", RUN), ("fed_sdp", sdp)):
        requested = of(tiny, method, *chosen, "noise_source=secure", metrics="none")
        with pytest.raises(BudgetExceededError, match="the server is to add the noise"):
            cost(plan(requested).client, TRAIN, {}, 20)


@pytest.mark.parametrize(
    ("method", "assignments", "text"),
    [
        ("dp_fedavg", ["quantile=0.5"], "Expected quantile=0 with unit=example"),
        ("ppsgd", ["quantile=0.5"], "Expected quantile=0 with unit=example"),
        ("fed_sdp", ["quantile=0.5", "grouping=flat"], "Expected quantile=0 with noised_by=client"),
        ("fed_sdp", ["quantile=0.5", "noised_by=server"], "Expected grouping=flat with quantile=0.5"),
        ("dp_fedavg", ["unit=client", "quantile=1"], "Expected 0 <= quantile < 1, got quantile=1.0."),
        ("dp_fedavg", ["unit=client", "quantile_noise=0.5"], "Expected 0.5 < quantile_noise < inf"),
        ("dp_fedavg", ["unit=client", "quantile_lr=0"], "Expected 0 < quantile_lr < inf"),
        ("fed_cdp", ["quantile=0.5"], "quantile"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    method: str, assignments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(text, ["--method", method, "--set", *assignments], tmp_path / "r", capsys)


def test_a_bound_that_no_noise_can_pay_for_is_refused() -> None:
    with pytest.raises(InputError, match=r"0\.5 < quantile_noise"):
        dataclasses.replace(MOVING, quantile_noise=0.5)
