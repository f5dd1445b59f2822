"""Canaries in a run: fair coins, scores against loops, honest noise below its claim and less noise above it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

import sim
from flfw.client.context import ClientContext
from flfw.data.canaries import Canaries, draw, relabelled, without_left_out
from flfw.data.files.dataset import Dataset
from flfw.data.splits.partition import Split
from flfw.dp.canary_audit import GUESSED, CanaryScorer, _detected, beside_the_claims, claimed_shift, lower
from flfw.dp.client import DPClient
from flfw.dp.noise_residual import ClippedGradients
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.training.clipping import Bound
from flfw.nets.training.per_example import ClippedSum
from flfw.plans.run_plan import plan, without_auto
from flfw.privacy.accountants import epsilon
from flfw.privacy.lower_bound import correct_guesses, gaussian_lower_bound, gaussian_rejects, p_value
from flfw.privacy.mechanism import Mechanism, Others
from flfw.rng import numpy_generator
from flfw.server.aggregation import Update
from flfw.server.checkpoint import Checkpoints, Snapshot
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task

NONE = np.zeros(0, np.int64)


def shared_out(*train: list[int]) -> Split:
    """A split of these training examples, with nothing else."""
    chosen = tuple(np.array(indices, dtype=np.int64) for indices in train)
    return Split(chosen, (NONE,) * len(chosen), (NONE,) * len(chosen), NONE, NONE, NONE)


# --- who is a canary ---


def test_coins_are_fair_and_know_nothing_of_the_canary() -> None:
    """Over 20,000 coins a share of a half stands within 0.0142, four deviations; so does each part of them, in its."""
    split = shared_out(*(list(range(start, start + 5000)) for start in range(0, 20000, 5000)))
    labels = numpy_generator(0, "test labels").integers(0, 10, 20000)
    result = draw(split, labels, 10, 20000, seed=3)
    parts_of_them = [np.full(20000, True), *(result.holders == k for k in range(4)), *(labels == c for c in range(10))]
    parts_of_them += [result.labels == c for c in range(10)]
    for part in parts_of_them:
        assert abs(result.included[part].mean() - 0.5) < 2 / sqrt(part.sum())
    assert abs((result.included[1:] == result.included[:-1]).mean() - 0.5) < 2 / sqrt(20000)
    other = draw(split, labels, 10, 20000, seed=4)
    assert abs((result.included == other.included).mean() - 0.5) < 2 / sqrt(20000)
    assert (result.labels != labels[result.indices]).all() and (result.labels < 10).all() and (result.labels >= 0).all()


def test_canaries_are_spread_over_the_clients_and_are_held_once() -> None:
    """Of examples 4 and 5 two clients have a copy: a coin would not decide whether they are trained on."""
    split = shared_out([0, 1, 2, 3, 4, 5], [4, 5, 6, 7], [5, 8, 9, 10, 11, 12])
    result = draw(split, np.zeros(13, np.int64), 3, 7, seed=0)
    assert list(result.indices) == sorted(set(result.indices)) and not {4, 5} & set(result.indices)
    assert all(index in split.train[holder] for index, holder in zip(result.indices, result.holders, strict=True))
    assert list(np.bincount(result.holders)) == [3, 2, 2]  # turn by turn
    with pytest.raises(
        InputError, match="Expected at most 11 canaries, the examples that exactly one client holds, got"
    ):
        draw(split, np.zeros(13, np.int64), 3, 12, seed=0)


def test_only_those_left_out_are_missing_and_only_canaries_are_relabelled() -> None:
    split = shared_out([5, 3, 1], [0, 2, 4, 6])
    chosen = Canaries(np.array([1, 4, 5]), np.array([0, 1, 0]), np.array([7, 8, 9]), np.array([True, False, False]))
    left = without_left_out(split, chosen)
    assert [list(given) for given in left.train] == [[3, 1], [0, 2, 6]]
    assert left.test is split.test and left.public is split.public
    labels = np.arange(7)
    assert list(relabelled(labels, chosen)) == [0, 7, 2, 3, 8, 9, 6] and list(labels) == list(range(7))
    with pytest.raises(InputError, match="Expected fewer canaries, so that client 0 has training data, got left=0"):
        without_left_out(shared_out([1], [0]), replace(chosen, included=np.full(3, False)))


def test_a_task_is_what_it_was_but_for_its_canaries(small: Experiment) -> None:
    plain, planted = plan(small).task.load(None), plan(replace(small, canaries=60)).task.load(None)
    assert plain.canaries is None and planted.canaries is not None
    chosen = planted.canaries
    left_out = set(chosen.indices[~chosen.included])
    assert 10 < len(left_out) < 50
    for before, after in zip(plain.split.train, planted.split.train, strict=True):
        assert list(after) == [index for index in before if index not in left_out]
    assert all(np.array_equal(a, b) for a, b in zip(plain.split.test, planted.split.test, strict=True))
    changed = np.flatnonzero(plain.dataset.train_y != planted.dataset.train_y)
    assert list(changed) == list(chosen.indices)
    assert plain.dataset.digest == planted.dataset.digest and plain.dataset.train_x is planted.dataset.train_x
    again = plan(replace(small, canaries=60)).task.load(None)
    assert again.canaries is not None and np.array_equal(again.canaries.included, chosen.included)
    victims = [planted.victims(client, slot, 5, 0) for client in range(3) for slot in range(3)]
    assert not set(np.concatenate(victims)) & set(chosen.indices)


# --- what updates tell ---


def test_the_linear_estimate_is_that_of_the_whole_space() -> None:
    """It is a G C^-1 y with C = a^2/4 G^T G + s^2 I over the numbers of a model, inverted as such."""
    rng = torch.Generator().manual_seed(0)
    rows, y = torch.randn(3, 7, generator=rng), torch.randn(7, generator=rng)
    inside = 0.5**2 / 4 * rows.T @ rows + 0.3**2 * torch.eye(7)
    assert torch.allclose(
        _detected(rows, y, 0.5, 0.3), (0.5 * rows @ torch.linalg.solve(inside, y)).double(), rtol=1e-4
    )


def test_of_more_canaries_than_numbers_and_of_a_run_that_diverged_something_is_told() -> None:
    rows = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    result = _detected(rows, rows[0] - rows[1], 0.5, 0.0)
    assert bool(result.isfinite().all()) and result[0] > 0 > result[1]
    assert not _detected(rows, torch.full((3,), torch.nan), 0.5, 0.0).any()
    assert not _detected(rows * 1e30, rows[0], 0.5, 0.0).any()


@pytest.mark.parametrize(("grouping", "clip"), [("layer", 0.3), ("flat", 0.3), ("flat", 100.0)])
def test_gradients_are_clipped_as_the_method_clips(small: Experiment, grouping: str, clip: float) -> None:
    fields = (f"grouping={grouping}", f"clip={clip}")
    experiment = without_auto(replace(small, method="dp_fedavg", net="mlp", canaries=20, set=fields))
    task = plan(experiment).task.load(None)
    listener = CanaryScorer(plan(experiment).client, task)
    model = listener.model
    sent = {name: value.detach() for name, value in model.state_dict().items()}
    assert task.canaries is not None
    indices = task.canaries.indices[:5]
    result = torch.cat(list(listener.gradients.rows(sent, indices, 2)))
    x, y = task.examples("train", indices)
    layers = ["extractor.1", "extractor.3", "classifier"]
    groups = [[layer] for layer in layers] if grouping == "layer" else [layers]
    for row, one, label in zip(result, task.inputs.normalise(x), y, strict=True):
        loss = cross_entropy(model(one[None]), label[None])
        slopes = dict(zip(sent, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        for group in groups:
            members = [name for name in sent if name.startswith(tuple(group))]
            norm = torch.cat([slopes[name].flatten() for name in members]).norm()
            slopes |= {name: slopes[name] * min(1.0, clip / float(norm)) for name in members}
        assert torch.allclose(row, torch.cat([slope.flatten() for slope in slopes.values()]), atol=1e-6)


# A world in which the canaries' gradients hardly meet: an example is one bright pixel of its own.


def test_the_gradient_of_a_language_model_is_that_of_all_its_places(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"line {number} of a text. " for number in range(12)))
    requested = Experiment(method="fedavg", dataset=f"text:{tmp_path / 'text.txt'}@6", net="gpt_next", clients=2)
    experiment = without_auto(replace(requested, split="iid", canaries=2))
    task = plan(experiment).task.load(None)
    model = task.build_net()
    gradients = ClippedGradients(task, model, plan(experiment).client.settings)
    assert task.canaries is not None
    places = task.canaries.indices
    (rows,) = gradients.rows(model.state_dict(), places, 2)
    x, y = task.examples("train", places)
    for row, text, last in zip(rows, x, y, strict=True):
        scores = model(text[None])[0]  # (256, 6)
        following = [*(255 * text[1:]).round().long().tolist(), int(last)]
        loss = torch.stack([scores[:, k].logsumexp(0) - scores[token, k] for k, token in enumerate(following)]).mean()
        grad = torch.autograd.grad(loss, [model.get_parameter(name) for name in gradients.names])
        torch.testing.assert_close(row, torch.cat([one.flatten() for one in grad]), rtol=1e-3, atol=1e-6)


def of_single_pixels(clients: int, pixels: int, seed: int) -> Task:
    """Each client has as many examples as pixels, all of them canaries."""
    x = np.tile(np.eye(pixels, dtype=np.uint8) * 255, (clients, 1)).reshape(-1, 1, 1, pixels)
    y = np.arange(len(x)) % 2
    dataset = Dataset("pixels", x, y, x[:1], y[:1], 2, (0.0,), (0.1,), "made up", None)
    given = tuple(np.arange(len(x)).reshape(clients, pixels))
    split = Split(given, (np.zeros(1, np.int64),) * clients, (NONE,) * clients, NONE, NONE, NONE)
    chosen = draw(split, y, 2, len(x), seed)
    dataset = replace(dataset, train_y=relabelled(y, chosen))
    return Task(dataset, without_left_out(split, chosen), NetworkPlan("linear"), "none", chosen)


class Honest(DPClient):
    """Does as it says."""


class TwoThirds(DPClient):
    """Adds noise at two thirds of its scale."""

    def noisy_sum(self, x: Tensor, y: Tensor, sum_noise_multiplier: float) -> tuple[Tensor, dict[str, Tensor]]:
        return super().noisy_sum(x, y, sum_noise_multiplier * 2 / 3)


class OfTheMean(DPClient):
    """Takes the noise of a sum for that of a mean, and divides once too often."""

    def noisy_sum(self, x: Tensor, y: Tensor, sum_noise_multiplier: float) -> tuple[Tensor, dict[str, Tensor]]:
        return super().noisy_sum(x, y, sum_noise_multiplier / len(y))


class Unclipped(DPClient):
    """Forgets to clip; the norms here are about seven times the bound."""

    def clipped_sum(self, x: Tensor, y: Tensor, bound: Bound) -> ClippedSum:
        return super().clipped_sum(x, y, inf)


def heard(client: type[DPClient], clients: int, pixels: int, multiplier: float, seed: int = 0) -> dict[str, Any]:
    """The lower bound after one round of one step, which claims one Gaussian mechanism of mu = 1 / multiplier."""
    task = of_single_pixels(clients, pixels, seed)
    fields = (f"noise_multiplier={multiplier}", "clip=1", "momentum=0", "weight_decay=0")
    experiment = Experiment(
        method="dp_fedavg", net="linear", split="iid", clients=clients, rounds=1, local_epochs=1, batch_size=pixels,
        lr=1.0, seed=seed, canaries=clients * pixels, set=fields,
    )  # fmt: skip
    listener = CanaryScorer(plan(experiment).client, task)
    for partition in range(clients):
        worker = client(ClientContext(plan(experiment).client, task, partition, 1, None, None))
        sent = {name: value.clone() for name, value in worker.model.state_dict().items()}
        update, _ = worker.fit_named({name: value.numpy() for name, value in sent.items()}, 0)
        listener(sent, Update(partition, 1, update))
    assert task.canaries is not None
    return lower(listener.scores.numpy(), task.canaries, experiment.delta)


def test_without_noise_every_guess_is_right() -> None:
    result = heard(Honest, 2, 300, 0.0)
    assert result["correct"] == result["guesses"] >= 60 and result["gaussian"]["mu"] > 1
    assert result["canaries"] == 600 and result["confidence"] == 0.95


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
def test_honest_noise_stays_below_its_claim(multiplier: float) -> None:
    many = [heard(Honest, 5, 200, multiplier, seed) for seed in range(3)]
    assert max(result["epsilon"] for result in many) < epsilon(Mechanism(multiplier, 1), 1e-5)
    assert max(result["gaussian"]["mu"] for result in many) < 1 / multiplier
    if multiplier < 3:  # and is no empty bound either
        assert min(result["gaussian"]["mu"] for result in many) > 0.3 / multiplier


@pytest.mark.parametrize("wrong", [OfTheMean, Unclipped])
def test_gross_errors_are_caught_by_a_thousand_canaries(wrong: type[DPClient]) -> None:
    result = heard(wrong, 5, 200, 2.0)
    assert result["epsilon"] > epsilon(Mechanism(2.0, 1), 1e-5)
    assert result["gaussian"]["mu"] > 1 / 2


def found_over_one(client: type[DPClient], clients: int, runs: int) -> int:
    """In how many runs, with 200 canaries at each client, the mean difference shows more than the mu 1 claimed."""
    return sum(heard(client, clients, 200, 1.0, seed)["mean_difference"]["mu"] > 1 for seed in range(runs))


@pytest.mark.slow
def test_two_thirds_of_the_noise_are_caught_by_a_thousand_canaries_and_honest_noise_is_not() -> None:
    assert found_over_one(TwoThirds, 5, 4) == 4
    assert found_over_one(Honest, 5, 4) <= 1


@pytest.mark.slow
def test_two_thirds_of_the_noise_are_caught_in_19_of_20_runs_and_honest_noise_in_5_percent_of_200() -> None:
    assert found_over_one(TwoThirds, 5, 20) >= 19
    assert found_over_one(Honest, 5, 200) <= 10


def test_what_is_caught_is_said_once_for_each_bound_that_shows_it() -> None:
    result = heard(TwoThirds, 5, 200, 1.0)
    assert result["epsilon"] < result["gaussian"]["epsilon"] < result["mean_difference"]["epsilon"]
    assert result["gaussian"]["mu"] < 1 < result["mean_difference"]["mu"] < result["mean_difference"]["estimate"]
    assert "independent" in result["mean_difference"]["assumption"]
    mechanism = Mechanism(1.0, 1)
    claim = {"unit": "example", "adversary": "server", "accounting": "exact", "epsilon": epsilon(mechanism, 1e-5)}
    notes = beside_the_claims([claim], result, Experiment().delta, Experiment().rounds, claimed_shift(mechanism))[1]
    assert [note.startswith("THE CLAIM IS VIOLATED: a Gaussian mechanism of mu 1 ") for note in notes] == [False, True]
    assert "from mean scores that are 1." in notes[1] and "right ones of" not in notes[1]


# --- the statistics of a Gaussian claim ---


@pytest.mark.parametrize(("m", "r", "v"), [(5, 5, 4), (8, 4, 4), (6, 5, 3)])
def test_without_a_shift_the_level_is_that_of_a_linear_programme(m: int, r: int, v: int) -> None:
    """At mu = 0 the theorem's constraints on p_0 ... p_r are linear: the largest P(W >= v) that they allow."""
    from scipy.optimize import linprog

    rows = [[(i if i >= c else 0) - (r - i if i >= c - 1 else 0) for i in range(r + 1)] for c in range(1, r + 1)]
    best = linprog([-float(i >= v) for i in range(r + 1)], rows, [0.0] * r, [[1.0] * (r + 1)], [1.0])
    assert gaussian_rejects(m, r, v, 0.0, -best.fun * 1.001) and not gaussian_rejects(m, r, v, 0.0, -best.fun * 0.999)


@pytest.mark.parametrize(("m", "r", "v", "mu"), [(7, 6, 6, 0.3), (9, 6, 5, 0.1)])
def test_rejection_is_the_theorems_loop(m: int, r: int, v: int, mu: float) -> None:
    """The least probabilities that satisfy every constraint, built downwards from p_v = level, in its own words."""
    from scipy.stats import norm

    def total(level: float) -> float:
        p = [0.0] * (r + 1)
        p[v] = level
        for c in range(v, 0, -1):
            right = sum(i * p[i] for i in range(c, r + 1)) / m
            wrong = sum((r - i) * p[i] for i in range(c, r + 1)) / m
            p[c - 1] = max(0.0, (float(norm.cdf(norm.ppf(right) - mu)) - wrong) * m / (r - c + 1))
        return sum(p)

    levels = np.linspace(0.02, 0.98, 97)
    allowed = [total(level) <= 1 for level in levels]
    assert True in allowed and False in allowed
    assert allowed == [not gaussian_rejects(m, r, v, mu, level) for level in levels]


def of_a_gaussian(seed: int, m: int, mu: float) -> tuple[np.ndarray, np.ndarray]:
    rng = numpy_generator(seed, "test of canaries in a run")
    included = rng.random(m) < 0.5
    return rng.normal(included * mu, 1.0), included


def test_a_true_shift_is_rarely_rejected_and_a_far_smaller_one_is() -> None:
    runs = [of_a_gaussian(seed, 2000, 1.0) for seed in range(100)]
    right = [correct_guesses(*run, 100) for run in runs]
    assert np.mean([gaussian_rejects(2000, 100, v, 1.0) for v in right]) <= 0.05
    assert np.mean([gaussian_rejects(2000, 100, v, 0.3) for v in right]) >= 0.95


def test_a_gaussian_bound_rises_with_what_was_right() -> None:
    bounds = [gaussian_lower_bound(1000, 100, v) for v in (50, 65, 80, 95, 100)]
    assert bounds == sorted(set(bounds)) and bounds[0] == 0
    assert gaussian_lower_bound(1000, 100, 95, confidence=0.5) > bounds[3] > gaussian_lower_bound(1000, 100, 95, 0.99)
    assert not gaussian_rejects(10, 10, 10, inf)


def test_a_p_value_is_a_probability() -> None:
    assert p_value(10, 10, 5, 0.0, delta=0.5) == 1


# --- what a result says ---


def test_the_shift_that_is_claimed() -> None:
    assert claimed_shift(Mechanism(3.0, 36)) == pytest.approx(2.0)
    assert claimed_shift(Mechanism(3.0, 36, max_participations=9)) == pytest.approx(1.0)
    assert claimed_shift(Mechanism(3.0, 9, groups=4)) == pytest.approx(2.0)
    assert claimed_shift(Mechanism(3.0, 9), Others(max_copies=4)) == pytest.approx(2.0)
    others = (
        None,
        Mechanism(3.0, 36, sampling_rate=0.1, poisson=True),
        Mechanism(0.0, 1),
        Mechanism(3.0, 1, clipping_norm=inf),
        Mechanism(3.0, 1, clipped="client"),
    )
    assert [claimed_shift(other) for other in others] == [None] * 5


def test_a_bound_stands_beside_what_it_is_about_and_a_violation_is_said() -> None:
    result = {"epsilon": 2.0, "canaries": 8, "guesses": 6, "correct": 6, "gaussian": {"mu": 0.0, "epsilon": 0.0}}
    result["mean_difference"] = {"mu": 0.0, "estimate": None, "epsilon": 0.0}
    details = {"unit": "example", "adversary": "server", "accounting": "exact", "epsilon": 2.5}
    others = [
        details | {"unit": "client"},
        details | {"adversary": "outsider"},
        details | {"accounting": "as published"},
    ]
    entries, notes = beside_the_claims([details, *others], result, Experiment().delta, Experiment().rounds, None)
    assert entries == [details | {"lower_bound": result}, *others] and len(notes) == 1
    notes = beside_the_claims([details | {"epsilon": 1.5}], result, Experiment().delta, Experiment().rounds, None)[1]
    assert notes[1].startswith("THE CLAIM IS VIOLATED: epsilon 1.5 is claimed, and it is at least 2, with 95% conf")
    assert (
        len(beside_the_claims([details | {"epsilon": "inf"}], result, Experiment().delta, Experiment().rounds, None)[1])
        == 1
    )


def test_guesses_are_fixed_by_their_number_alone() -> None:
    scores, included = of_a_gaussian(0, 1001, 3.0)
    chosen = Canaries(np.arange(1001), np.zeros(1001), np.zeros(1001), included)
    tried = {2 * int(np.ceil(share * 1001 / 2)) for share in GUESSED}
    assert lower(scores, chosen, 1e-5)["guesses"] in tried
    assert lower(np.zeros(1001), replace(chosen, included=np.arange(1001) % 2 > 0), 1e-5)["epsilon"] == 0
    one = lower(np.zeros(1), Canaries(NONE, NONE, NONE, np.full(1, True)), 1e-5)
    assert (one["epsilon"], one["guesses"], one["gaussian"]["mu"]) == (0.0, 0, 0.0)
    assert (one["mean_difference"]["mu"], one["mean_difference"]["estimate"]) == (0.0, None)


RUN = (
    "--method {} --dataset digits --net linear --split iid --clients 3 --rounds 3 --local-epochs 1 --batch-size 500 "
    "--lr 0.1 --engine inproc --attack none --expert canaries=300"
)
NOISY = "dp_fedavg --set noise_multiplier=1 clip=1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert sim.main([*RUN.format(NOISY).split(), "--out", str(folder)]) == 0
    yield folder


def privacy(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text())["privacy"]


def scores(folder: Path) -> Tensor:
    (last,) = (folder / "checkpoint").glob("round-*.safetensors")
    return load_file(last)["canaries/scores"]


@pytest.mark.slow
def test_a_result_has_the_lower_bound_beside_the_upper(whole: Path) -> None:
    (with_bound,) = (entry for entry in privacy(whole) if "lower_bound" in entry)
    assert (with_bound["unit"], with_bound["adversary"]) == ("example", "server")
    assert {"epsilon", "confidence", "canaries", "guesses", "correct", "delta"} < set(with_bound["lower_bound"])
    assert set(with_bound["lower_bound"]["mean_difference"]) == {"mu", "estimate", "epsilon", "assumption"}
    noise = with_bound["lower_bound"]["residual"]
    assert noise["low"] < 1 < noise["high"] and noise["low"] < noise["scale"] < noise["high"] and noise["p"] > 1e-3
    assert with_bound["lower_bound"]["canaries"] == 300
    assert 0 < with_bound["lower_bound"]["epsilon"] < with_bound["epsilon"]
    notes = json.loads((whole / "result.json").read_text())["notes"]
    assert any(note.startswith("300 training examples were canaries") for note in notes)


def test_a_run_that_claims_nothing_has_a_row_of_its_own(tmp_path: Path) -> None:
    assert sim.main([*RUN.format("fedavg").split(), "--out", str(tmp_path / "run")]) == 0
    (entry,) = privacy(tmp_path / "run")
    assert (entry["unit"], entry["adversary"], entry["epsilon"]) == ("example", "server", "inf")
    assert entry["assumptions"] and entry["lower_bound"]["epsilon"] > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 2])
def test_a_run_that_was_cut_short_finds_the_same(whole: Path, tmp_path: Path, after: int) -> None:
    save = Checkpoints.save

    def stopping(self: Checkpoints, snapshot: Snapshot, rows: dict[str, Any]) -> None:
        save(self, snapshot, rows)
        if snapshot.round == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", stopping)
        assert sim.main([*RUN.format(NOISY).split(), "--out", str(tmp_path / "run")]) != 0
    assert not (tmp_path / "run" / "result.json").exists()
    assert sim.main(["--resume", str(tmp_path / "run")]) == 0
    assert privacy(tmp_path / "run") == privacy(whole)
    assert torch.equal(scores(tmp_path / "run"), scores(whole))


CLIPS = (
    "Expected a method that clips the gradients of single examples, or nothing, for --expert canaries; got method={},"
)
SENDS = (
    "Expected a method that sends the whole model to every client and gets it all back for --expert "
    "canaries; got method="
)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("fed_sdp", CLIPS.format("fed_sdp")),
        ("dp_fedavg --set unit=client", CLIPS.format("dp_fedavg")),
        *((name, f"{SENDS}{name}.") for name in ("fedper", "local_only", "centaur", "ppsgd")),
        (
            "fedavg --expert canaries=1501",
            "Expected at most 1500 canaries, the examples that exactly one client holds, got",
        ),
        ("fedavg --expert canaries=-1", "Expected canaries >= 0, got canaries=-1."),
    ],
)
def test_what_cannot_be_listened_to_is_refused(
    method: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = RUN.replace("linear", "mlp").replace(
        " --expert canaries=300", " --expert canaries=300" * ("--expert canaries" not in method)
    )
    assert sim.main([*flags.format(method).split(), "--out", str(tmp_path / "run")]) == 2
    text = capsys.readouterr().err
    assert text.startswith(f"sim.py: {message}") and text.count("\n") == 1
    assert not (tmp_path / "run").exists()
