"""DP-FTRL: rounds against a loop with whole matrices, the noise's scale, turns, resumption, and what is claimed."""

import dataclasses
import json
from collections.abc import Mapping
from itertools import pairwise
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from scipy.optimize import brentq
from scipy.stats import chi2, norm
from torch import Tensor

import sim
from flfw.dp.noisy_mean import correlated
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack
from flfw.nets.net import Tensors
from flfw.nets.training.gaussian import MARGIN, GaussianNoise, SecureNoise, grid_step
from flfw.plans.run_plan import plan
from flfw.privacy.banded import optimised_coefficients, root_coefficients, running_deviations
from flfw.rng import torch_generator
from flfw.server.aggregation import Update
from flfw.server.strategy import FederatedStrategy
from flfw.strategies.dp_ftrl import DPFTRL, DPFTRLSettings
from tests.support import rounds
from tests.support.method_rounds import initial_tensors, make_client
from tests.support.planned import checked
from tests.support.resumed_runs import cut_short

BANDS = 3


@pytest.fixture
def asked(small: Experiment) -> Experiment:
    """Six clients of 20 digits, two in each of three turns; seven rounds of a pass."""
    changes: dict[str, Any] = {"net": "mlp", "split": "sampled", "clients": 6, "rounds": 7, "batch_size": 10, "lr": 0.3}
    return dataclasses.replace(small, method="dp_ftrl", set=("sampled.train=20", f"bands={BANDS}"), **changes)


def of(experiment: Experiment, *assignments: str, **changes: Any) -> Experiment:
    return dataclasses.replace(experiment, set=(*experiment.set, *assignments), **changes)


def strategy_of(experiment: Experiment) -> FederatedStrategy:
    """The server half, which knows its clients."""
    settings = plan(experiment).client.settings
    strategy = DPFTRL(settings, sample=experiment.sample, sampling=experiment.sampling, seed=experiment.seed)
    strategy.ctx = rounds.place(experiment)
    strategy.client_directory.nodes = {partition: partition + 1 for partition in range(experiment.clients)}
    return strategy


def flat(tensors: Mapping[str, Tensor]) -> np.ndarray:
    return torch.cat([value.double().flatten() for value in tensors.values()]).numpy()


def independent(experiment: Experiment, sizes: Mapping[str, torch.Size], server_round: int, std: float) -> Any:
    """The z of a round, drawn anew from the seed."""
    rng, total = torch_generator(experiment.seed, "server noise", server_round), sum(s.numel() for s in sizes.values())
    return torch.empty(total).normal_(0.0, std, generator=rng).double().numpy()


# --- the rounds ---


@pytest.mark.parametrize("coefficients", ["optimised", "root"])
def test_rounds_equal_a_loop(asked: Experiment, tmp_path: Path, coefficients: str) -> None:
    """W_t = W_1 + server_lr / K times the running sums of x + C^-1 z, with C a whole matrix."""
    chosen = ("noise_multiplier=0.5", "clip=0.4", "server_lr=0.7", f"coefficients={coefficients}")
    experiment = of(asked, *chosen)
    strategy, start = strategy_of(experiment), initial_tensors(experiment)
    model, sums, noise, models = {n: torch.tensor(v) for n, v in start.items()}, [], [], []
    for now in range(1, 8):
        sent, updates, total = {n: v.numpy().copy() for n, v in model.items()}, [], 0.0
        for partition in ((now - 1) % BANDS, (now - 1) % BANDS + BANDS):
            tensors, metrics = make_client(experiment, partition, tmp_path, now).fit_named(sent, version=0)
            updates.append(Update(partition, metrics["num-examples"], {n: v.clone() for n, v in tensors.items()}))
            change = flat(updates[-1].tensors) - flat(model)
            assert np.linalg.norm(change) == pytest.approx(0.4, rel=1e-4)  # the bound bites
            total = total + change
        sums.append(total)
        noise.append(independent(experiment, {n: v.shape for n, v in model.items()}, now, 0.5 * 0.4))
        model = strategy.aggregate_round(pack(model), iter(updates), now)
        models.append(flat(model))
    column = root_coefficients(BANDS) if coefficients == "root" else np.array(optimised_coefficients(BANDS, 7))
    whole = np.sum([c * np.eye(7, k=-ago) for ago, c in enumerate(column)], axis=0)
    added = np.linalg.inv(whole) @ np.stack(noise)
    expected = flat({n: torch.tensor(v) for n, v in start.items()}) + 0.7 / 2 * np.cumsum(np.stack(sums) + added, 0)
    assert np.abs(np.stack(models) - expected).max() < 1e-5
    plain = np.cumsum(np.stack(noise), 0)[-1]
    assert np.linalg.norm(np.cumsum(added, 0)[-1] - plain) > 0.2 * np.linalg.norm(plain)  # not independent noise


def test_one_band_is_the_servers_noise_of_fed_sdp(asked: Experiment, tmp_path: Path) -> None:
    chosen = dataclasses.replace(asked, set=("sampled.train=20", "momentum=0", "weight_decay=0", "grouping=flat"))
    results = []
    for method, more in (("dp_ftrl", ("bands=1",)), ("fed_sdp", ("noised_by=server",))):
        experiment = of(dataclasses.replace(chosen, method=method), "noise_multiplier=0.5", "clip=0.4", *more)
        sent, cls = initial_tensors(experiment), plan(experiment).strategy
        clients = [make_client(experiment, p, tmp_path / method) for p in range(6)]
        updates = [Update(p, 20, client.fit_named(sent, version=0)[0]) for p, client in enumerate(clients)]
        strategy = cls(plan(experiment).client.settings, seed=experiment.seed)
        strategy.ctx, strategy.client_directory.nodes = rounds.place(experiment), dict.fromkeys(range(6), 1)
        results.append(
            flat(strategy.aggregate_round(pack({n: torch.tensor(v) for n, v in sent.items()}), iter(updates), 1))
        )
    assert np.abs(results[0] - results[1]).max() < 1e-6


def fits(noise: Mapping[str, Tensor], std: float) -> float:
    """Compute the two-sided p-value of the noise's sum of squares."""
    values = flat(noise)
    squares = float(np.square(values).sum()) / std**2
    return 2 * float(min(chi2.cdf(squares, len(values)), chi2.sf(squares, len(values))))


@pytest.mark.parametrize("source", ["seed", "secure"])
@pytest.mark.parametrize("bands", [1, 4])
def test_the_noise_of_the_models_has_the_scale_that_the_error_says(asked: Experiment, source: str, bands: int) -> None:
    """Twelve rounds of noise alone: chi-square tests accept the deviation of each model, and not 2/3 or 3/2 of it."""
    experiment = of(asked, "noise_multiplier=2", "clip=0.5", f"bands={bands}", f"noise_source={source}", rounds=12)
    strategy, model = strategy_of(experiment), {"a": torch.zeros(30, 50), "b": torch.zeros(1500)}
    stds = running_deviations(np.array(optimised_coefficients(bands, 12)), 12) * 2 * 0.5 * bands / 6
    for now in range(1, 13):
        model = strategy.aggregate_round(pack(model), iter(()), now)
        at = stds[now - 1] * (1 + MARGIN * (source == "secure"))
        assert fits(model, at) > 1e-12
        assert fits(model, at * 2 / 3) < 1e-12 and fits(model, at * 3 / 2) < 1e-12
    if bands > 1:
        assert fits(model, sqrt(12) * 2 * 0.5 * bands / 6) < 1e-12  # independent noise would be larger


def test_a_server_clips_what_a_client_did_not(asked: Experiment) -> None:
    strategy = strategy_of(of(asked, "noise_multiplier=0", "clip=0.5", sample=2))
    sent = {"w": torch.zeros(4)}
    came = torch.tensor([3.0, 0.0, 0.0, 4.0]), torch.full((4,), torch.nan)
    result = strategy.aggregate_round(
        pack(sent), (Update(3 * index, 1, {"w": value}) for index, value in enumerate(came)), 1
    )
    assert result["w"].tolist() == pytest.approx([0.15 * (1 + MARGIN), 0, 0, 0.2 * (1 + MARGIN)])


# --- what leaves is computed from noisy sums on a grid, and from nothing else ---


@final
class Recorded(GaussianNoise):
    """Noise that is remembered with its sums; or sums that were remembered, whatever they are of."""

    def __init__(self, given: list[Tensors] | None = None) -> None:
        self.given, self.sums = given, []

    def add(self, values: Mapping[str, Tensor], std: float, scales: Any = None) -> Tensors:
        """Return noisy sums."""
        result = self.given[len(self.sums)] if self.given else SecureNoise().add(values, std)
        self.sums.append({name: value.clone() for name, value in result.items()})
        return result

    def add_to_update(self, start: Any, change: Any, bound: float, std: float) -> Tensors:
        """Refuse: no client adds noise here."""
        raise NotImplementedError


def played(many: list[Tensors], noise: GaussianNoise) -> list[np.ndarray]:
    past: Tensors = {}
    result = []
    for sums in many:
        released, past = correlated(sums, past, optimised_coefficients(4, 9), 3.0, noise)
        result.append(flat(released))
    return result


def test_the_released_sums_hold_no_digit_of_the_data() -> None:
    rng = torch.Generator().manual_seed(0)
    one, other = ([{"w": torch.randn(40, generator=rng, dtype=torch.float64)} for _ in range(9)] for _ in range(2))
    noise = Recorded()
    released = played(one, noise)
    step = grid_step(3.0 * (1 + MARGIN))
    assert all(bool((sums["w"] / step == (sums["w"] / step).round()).all()) for sums in noise.sums)
    again = played(other, Recorded(noise.sums))  # other data which, by other noise, gave the same noisy sums
    assert all(np.array_equal(a, b) for a, b in zip(released, again, strict=True))
    difference = np.concatenate(released) - np.concatenate([flat(sums) for sums in one])
    assert np.abs(difference).max() > 1


def test_a_servers_past_is_of_the_last_rounds_and_is_not_sent(asked: Experiment) -> None:
    strategy, model = strategy_of(asked), {"w": torch.zeros(5)}
    kept = []
    for now in range(1, 6):
        update = Update((now - 1) % BANDS, 1, {"w": torch.full((5,), 0.1 * now)})
        assert set(strategy.aggregate_round(pack(model), iter([update]), now)) == {"w"}
        kept.append({name: value.clone() for name, value in strategy.state.items()})
    assert [sorted(one) for one in kept[:3]] == [
        ["released.1.w", "sum.1.w"],
        *[["released.1.w", "released.2.w", "sum.1.w", "sum.2.w"]] * 2,
    ]
    assert torch.allclose(kept[4]["sum.2.w"], kept[3]["sum.1.w"], atol=0) and kept[4]["sum.1.w"].dtype == torch.float64


# --- turns ---


@pytest.mark.parametrize("sample", [0, 1, 2])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_clients_rounds_are_far_apart_and_counted(asked: Experiment, sample: int, sampling: Any) -> None:
    experiment = of(asked, clients=8, sample=sample, sampling=sampling, rounds=20, seed=3)
    strategy, arrays = strategy_of(experiment), pack({"w": torch.zeros(1)})
    grid = InProcessGrid(ClientApp(), 8, {})
    taken: dict[int, list[int]] = {}
    for now in range(1, 21):
        for message in strategy.configure_train(now, arrays, ConfigRecord(), grid):
            config: Any = message.content.config_records["config"]
            taken.setdefault(config["client"], []).append(now)
    assert all(b - a >= BANDS for many in taken.values() for a, b in pairwise(many))
    mechanism = RunAccountant(plan(experiment).client, plan(experiment).task.load(None).split).mechanism
    assert mechanism is not None and not mechanism.amplified
    assert mechanism.max_participations == max(map(len, taken.values())) <= 7
    if not sample:
        assert {len(many) for many in taken.values()} == {6, 7} and len(taken) == 8


def test_a_client_answers_in_its_own_turn_alone(asked: Experiment, tmp_path: Path) -> None:
    sent = initial_tensors(asked)
    for partition in range(6):
        for now in range(1, 8):
            client = make_client(asked, partition, tmp_path / f"{partition}-{now}", now)
            if (now - 1) % BANDS == partition % BANDS:
                assert client.fit_named(sent, version=0)[1]["num-examples"] == 20
            else:
                with pytest.raises(InputError, match=rf"client {partition} in a round of its own turn, one in 3, got"):
                    client.fit_named(sent, version=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"clients": 2},
            "Expected clients >= 3 for method=dp_ftrl, whose clients take turns of 3 rounds, got clients=2",
        ),
        ({"sample": 3}, "Expected sample <= 2 for method=dp_ftrl, whose clients take turns of 3 rounds, got sample=3"),
        ({"set": ("bands=0",)}, "Expected bands >= 1, got bands=0."),
        ({"set": ("server_lr=0",)}, "Expected 0 < server_lr < inf, got server_lr=0.0."),
        ({"set": ("clip=inf",)}, "Expected 0 < clip < inf, got clip=inf."),
        ({"net": "resnet18"}, "Expected layers without buffers, got TolerantBatchNorm with"),
    ],
)
def test_what_is_refused(asked: Experiment, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        checked(plan(dataclasses.replace(asked, **changes)))
    assert str(refusal.value).startswith(message)
    checked(plan(asked))


# --- what is claimed ---


def exact(multiplier: float, delta: float = 1e-5) -> float:
    """Epsilon of one Gaussian mechanism: Balle and Wang, ICML 2018, theorem 8."""

    def excess(epsilon: float) -> float:
        low, high = 1 / (2 * multiplier) - epsilon * multiplier, -1 / (2 * multiplier) - epsilon * multiplier
        return float(norm.cdf(low) - exp(epsilon) * norm.cdf(high)) - delta

    epsilon: Any = brentq(excess, 0, 100)
    return float(epsilon)


def test_epsilon_is_that_of_one_gaussian_with_k_rounds(asked: Experiment) -> None:
    """Client 0 takes part in rounds 1, 4 and 7 of 7; an example exchanges an update for another: twice as much."""
    experiment = of(asked, "noise_multiplier=2", "clip=0.1", "noise_source=secure")
    split = plan(experiment).task.load(None).split
    accountant = RunAccountant(plan(experiment).client, split)
    claims = {(one.unit, one.adversary): one for one in accountant.claims()}
    for adversary in ("another client", "outsider"):
        assert claims["client", adversary].epsilon == pytest.approx(exact(2 / sqrt(3)), rel=1e-6)
        assert claims["example", adversary].epsilon == pytest.approx(exact(2 / sqrt(3) / 2), rel=1e-6)
        assumptions = " ".join(claims["client", adversary].assumptions)
        assert "One client takes part in at most 3 of 7 steps." in assumptions
        assert "the steps of one client are at least 3 apart" in assumptions
        assert (
            "The last 2 of them lie without noise in the server's checkpoint, which it keeps to itself." in assumptions
        )
    assert claims["client", "server"].epsilon == claims["example", "server"].epsilon == inf
    layers = RunAccountant(plan(of(experiment, "grouping=layer")).client, split)
    assert layers.claims()[-1].epsilon == pytest.approx(exact(2 / sqrt(3 * 3)), rel=1e-6)


def test_a_round_that_is_asked_for_again_is_one_more(asked: Experiment) -> None:
    """Its client's change of the second release has the same length at most, and other rounds' are not nearer."""
    experiment = of(asked, "noise_multiplier=2", "noise_source=secure")
    split = plan(experiment).task.load(None).split
    for again in (1, 4):
        claims = RunAccountant(plan(experiment).client, split, again).claims()
        (one,) = (claim for claim in claims if (claim.unit, claim.adversary) == ("client", "outsider"))
        assert one.epsilon == pytest.approx(exact(2 / sqrt(3 + again)), rel=1e-6)


def test_a_target_and_a_budget_are_met(asked: Experiment) -> None:
    split = plan(asked).task.load(None).split
    settled, _ = resolve_noise(plan(dataclasses.replace(asked, target_epsilon=3.0)), split)
    sigma = settled.client.settings.noise_multiplier
    assert 2.999 <= exact(sigma / sqrt(3)) <= 3.0
    fewer, notes = resolve_noise(plan(of(asked, "noise_multiplier=2", epsilon_budget=exact(2 / sqrt(2)) + 1e-6)), split)
    assert fewer.experiment.rounds == 6 and "ends after round 6 of 7" in notes[-1]  # before client 0's third


def test_defaults_have_noise_and_bands() -> None:
    chosen = DPFTRLSettings()
    assert chosen.noise_multiplier >= 1 and chosen.bands > 1
    assert DPFTRL.disabled_settings(chosen).noise_multiplier == 0
    assert 0 < DPFTRL.weakest_settings(chosen).noise_multiplier < 1e-5


# --- runs ---


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    flags = "--method dp_ftrl --net mlp --split sampled --clients 6 --rounds 5 --local-epochs 1 --batch-size 10"
    flags += f" --lr 0.3 --attack none --engine inproc --set sampled.train=20 bands={BANDS}"
    assert sim.main([*flags.split(), "--out", str(tmp_path / "whole")]) == 0
    for after_round in (1, 3):
        command = sim.parse(flags.split())
        folder = cut_short(dataclasses.replace(command.experiment, out=tmp_path / f"cut-{after_round}"), after_round)
        (kept,) = (folder / "checkpoint").glob("round-*.safetensors")
        assert any(name.startswith("server/sum.1.") for name in load_file(kept))
        assert sim.main(["--resume", str(folder)]) == 0
        results = [json.loads((run / "result.json").read_text()) for run in (tmp_path / "whole", folder)]
        assert results[0]["final"] == results[1]["final"] and results[0]["privacy"] == results[1]["privacy"]
        ends = [load_file(next((run / "checkpoint").glob("round-*"))) for run in (tmp_path / "whole", folder)]
        assert ends[0].keys() == ends[1].keys() and all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    result = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert [row["clients"] for row in result["rounds"]] == [2] * 5


def test_secure_noise_goes_on_where_it_was(asked: Experiment, tmp_path: Path) -> None:
    """After a restart the noise of the rounds before is still taken back: the whole of it is that of a whole run."""
    experiment = of(asked, "noise_multiplier=2", "clip=0.5", "noise_source=secure", rounds=12)
    model, strategy = {"a": torch.zeros(3000)}, strategy_of(experiment)
    for now in range(1, 13):
        model = strategy.aggregate_round(pack(model), iter(()), now)
        later = strategy_of(experiment)  # a new process after every round
        later.restore(strategy.snapshot(now, pack(model), None), [])
        strategy = later
    std = running_deviations(np.array(optimised_coefficients(BANDS, 12)), 12)[-1] * 2 * 0.5 / 2
    assert fits(model, std * (1 + MARGIN)) > 1e-12
    assert fits(model, sqrt(12) * 2 * 0.5 / 2) < 1e-12  # independent noise would be larger
