"""Private metrics: their sensitivity by hand, their noise by real clients, what they cost, and who refuses what."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from math import inf, isinf, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from scipy.stats import chi2
from torch import Tensor

import sim
from flfw.client.context import ClientContext
from flfw.data.splits.partition import Split
from flfw.deploy.policy import Policy
from flfw.dp import private_metrics
from flfw.dp.budget import PRIVATE_METRICS
from flfw.dp.message_cost import EVALUATE, PROBE, TRAIN, cost
from flfw.dp.private_metrics import ROWS, PrivatelyReporting, encoded, held_by_each, loss_bound, most_held, released
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import RunAccountant
from flfw.dp.site_ledger import MessageEntry
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.nets.training.gaussian import GaussianNoise, SecureNoise, SeededNoise
from flfw.plans.run_plan import RunPlan, plan, without_auto
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.claims import claim
from flfw.privacy.mechanism import GaussianEvent, Mechanism
from flfw.runs import run
from flfw.server.strategy import FederatedStrategy
from tests.dp import test_site_ledger as site
from tests.dp.test_releases import epsilon_of_clients
from tests.dp.test_run_accountant import DELTA, UNEVEN, apart, asked, claims
from tests.support.resumed_runs import kill_in_round, killed
from tests.support.small_runs import result_of

PRIVATE: dict[str, Any] = {"metrics": "private"}
RUN = "--net linear --engine inproc --clients 2 --rounds 2 --local-epochs 1 --attack none --metrics private"


class Silent(GaussianNoise):
    """No noise."""

    def add(self, values: Any, std: float, scales: Any = None) -> dict[str, Tensor]:
        return dict(values)

    def add_to_update(self, start: Any, change: Any, bound: float, std: float) -> dict[str, Tensor]:
        raise NotImplementedError("metrics are not moved")


# --- sensitivity ---


def norm_of(vectors: Mapping[str, Tensor]) -> float:
    return sqrt(sum(float(vector.square().sum()) for vector in vectors.values()))


def change(parts: Mapping[str, Tensor], part: str, example: list[float], clipped: Any = "example") -> float:
    """L2 norm of what one example more in a part changes."""
    more = {**parts, part: torch.cat([parts[part], torch.tensor([example], dtype=torch.float64)])}
    after, before = encoded(more, clipped), encoded(parts, clipped)
    return norm_of({name: after[name] - before[name] for name in before})


def parts_of(n: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(n)
    return {
        name: torch.rand(n, width, generator=rng, dtype=torch.float64)
        for name, width in (("train", 1), ("test", 2), ("validation", 1))
    }


def test_an_example_changes_all_sums_together_by_one() -> None:
    """By hand: right before and wrong after is (1, -1, 1) / sqrt(3), in the test part alone."""
    parts = parts_of(4)
    more = {**parts, "test": torch.cat([parts["test"], torch.tensor([[1.0, 0.0]], dtype=torch.float64)])}
    after, before = encoded(more, "example"), encoded(parts, "example")
    assert (after["test"] - before["test"]).tolist() == pytest.approx([1 / sqrt(3), -1 / sqrt(3), 1 / sqrt(3)])
    assert torch.equal(after["train"], before["train"]) and torch.equal(after["validation"], before["validation"])
    for size in (0, 1, 50):  # tiny and empty parts, too
        for corner in ([0.0, 0.0], [0.0, 1.0], [1.0, 1.0]):
            assert change(parts_of(size), "test", corner) == pytest.approx(1.0)
        for value in (0.0, 1.0):
            assert change(parts_of(size), "train", [value]) == pytest.approx(1.0)
        assert change(parts_of(size), "train", [0.5]) == pytest.approx(1 / sqrt(2))  # a mean loss moves only the count


def test_a_client_changes_all_means_together_by_one() -> None:
    """Four means: all 1 is (1, 1, 1, 1) / 2, of length 1; no size is in it."""
    for value, size in ((0.0, 3), (1.0, 3), (1.0, 500)):
        parts = {name: torch.full_like(part, value) for name, part in parts_of(size).items()}
        assert norm_of(encoded(parts, "client")) == pytest.approx(1.0)
    assert norm_of(encoded(parts_of(7), "client")) <= 1
    assert norm_of(encoded(parts_of(0), "client")) == 0
    assert encoded(parts_of(9), "client")["test"].shape == (2,)


def test_without_noise_the_means_are_the_means() -> None:
    parts = parts_of(37)
    for clipped, count in (("example", 37), ("client", 1)):
        result = released(parts, clipped, 1.0, Silent())  # type: ignore[arg-type]
        for name, part in parts.items():
            assert result[name].means == pytest.approx([float(sum(row) / 37) for row in part.T])
            assert result[name].examples == count


def test_whatever_the_noise_means_and_numbers_are_in_range() -> None:
    for clipped in ("example", "client"):
        for size in (0, 1, 3):
            for _ in range(50):
                for means, number in released(parts_of(size), clipped, 100.0, SecureNoise()).values():  # type: ignore[arg-type]
                    assert number >= 1 and all(0 <= mean <= 1 for mean in means)


def test_the_shares_of_noise_are_independent_between_entries_and_of_the_multiplier() -> None:
    rng = torch.Generator().manual_seed(0)
    noisy = [SeededNoise(rng).add(encoded(parts_of(5), "example"), 3.0) for _ in range(2000)]
    moved = torch.stack([torch.cat(list(one.values())) for one in noisy])
    spread = moved - torch.cat(list(encoded(parts_of(5), "example").values()))
    covariance = spread.T @ spread / len(spread)
    assert torch.allclose(covariance, 9.0 * torch.eye(7, dtype=torch.float64), atol=1.2)


def test_how_often_an_example_counts() -> None:
    """Example 1 is in two clients' training data; 7 is twice in one test part (2^2) and once in a validation part."""

    def indices(*numbers: int) -> np.ndarray:
        return np.array(numbers, dtype=np.int64)

    none = indices()
    twice = Split((indices(0, 1), indices(1, 2)), (indices(5), indices(6)), (none, none), none, none, none)
    assert most_held(twice) == 2 and max(held_by_each(twice)) == 3
    more = replace(twice, test=(indices(5, 7, 7), indices(6)), validation=(none, indices(7)))
    assert most_held(more) == 5 and max(held_by_each(more)) == 5
    assert most_held(UNEVEN) == 1


# --- the noise of a real client ---


def resolved_for(method: str = "dp_fedavg", *assignments: str, **changes: Any) -> RunPlan:
    chosen: dict[str, Any] = {"net": "linear", "clients": 2, "local_epochs": 1, "batch_size": 500, **PRIVATE}
    source = () if method == "fedavg" else ("noise_source=secure",)
    experiment = Experiment(method=method, attack=("none",), set=(*source, *assignments), **{**chosen, **changes})
    return plan(without_auto(replace(experiment, engine="inproc")))


@cache
def initial(run_plan: RunPlan) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    return {name: value.numpy().copy() for name, value in run_plan.client.build_model().state_dict().items()}


def client_of(run_plan: RunPlan, fewer: Mapping[str, int] | None = None, server_round: int = 1) -> PrivatelyReporting:
    """Client 0 with so many of its examples of a part left out."""
    task = run_plan.task.load(None)
    for part, count in (fewer or {}).items():
        mine = getattr(task.split, part)
        task = replace(task, split=replace(task.split, **{part: (mine[0][: len(mine[0]) - count], *mine[1:])}))
    ctx = ClientContext(run_plan.client, task, 0, server_round, None, None)
    client = run_plan.client_class(ctx)
    assert isinstance(client, PrivatelyReporting)
    return client


def is_scale(numbers: np.ndarray, std: float) -> bool:
    """Chi-square test at level 1e-6 that numbers have this deviation."""
    statistic = ((numbers - numbers.mean()) ** 2).sum() / std**2
    low, high = chi2.ppf((5e-7, 1 - 5e-7), len(numbers) - 1)
    return bool(low < statistic < high)


@pytest.mark.slow
@pytest.mark.usefixtures("held_keys")
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_clients_numbers_have_the_noise_that_is_counted_and_no_other(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of examples have a deviation of z sqrt(m + 1), with one mean beside them: 4 sqrt(2)."""
    monkeypatch.setattr(private_metrics, "NOISE_MULTIPLIER", 4.0)
    run_plan = resolved_for(epsilon_budget=0.0)
    client, received = client_of(run_plan), initial(run_plan)
    size = len(client.indices("train" if kind == "train" else "test"))

    def answer() -> dict[str, Any]:
        return client.fit_named(received, 0)[1] if kind == "train" else client.evaluate_named(received, 0)

    counts = np.array([answer()["num-examples"] for _ in range(400)], dtype=float)
    assert counts.min() > 1  # nothing was cut
    assert abs(counts.mean() - size) < 5 * 4 * sqrt(2 / 400)
    right = 4 * sqrt(2)
    assert is_scale(counts, right)
    assert not is_scale(counts, right * 2 / 3) and not is_scale(counts, right * 3 / 2)


def test_seeded_numbers_repeat_and_secure_ones_do_not() -> None:
    seeded = resolved_for("dp_fedavg", "noise_source=seed")
    seeded = seeded.replaced(set=("noise_source=seed",))
    once, again = (client_of(seeded).fit_named(initial(seeded), 0)[1] for _ in range(2))
    assert once == again != client_of(seeded, server_round=2).fit_named(initial(seeded), 0)[1]
    secure = resolved_for()
    once, again = (client_of(secure).fit_named(initial(secure), 0)[1] for _ in range(2))
    assert once != again


def test_near_to_no_noise_the_numbers_are_the_true_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the numbers of metrics=all, and a loss by an explicit loop."""
    monkeypatch.setattr(private_metrics, "NOISE_MULTIPLIER", 1e-3)
    run_plan = resolved_for("fed_cdp")
    client, bare = client_of(run_plan), client_of(run_plan.replaced(metrics="all"))
    received = initial(run_plan)
    sent, numbers = client.fit_named(received, 0)
    assert list(numbers) == ["acc_global", "acc_local", "loss", "num-examples"]
    assert numbers["num-examples"] == len(client.indices("train"))
    bare.load_received(received, 0)
    assert numbers["acc_global"] == pytest.approx(bare.accuracy("test"), abs=2e-4)
    bare.load_received({name: value.numpy() for name, value in sent.items()}, 0)
    assert numbers["acc_local"] == pytest.approx(bare.accuracy("test"), abs=2e-4)
    bound, total = 2 * log(10), 0.0
    x, y = bare.ctx.task.examples("train", client.indices("train"))
    with torch.no_grad():
        for row, label in zip(bare.model.eval()(bare.ctx.task.inputs.normalise(x)), y, strict=True):
            total += min(bound, float(row.exp().sum().log() - row[label]))
    assert numbers["loss"] == pytest.approx(total / len(y), abs=2e-4)
    evaluated = client.evaluate_named(received, 0)
    assert evaluated == {"acc_global": evaluated["acc_global"], "num-examples": len(client.indices("test"))}


LEFT_OUT = {"a training example": {"train": 1}, "a test example": {"test": 1}, "half of a part": {"test": 40}}


def answers(run_plan: RunPlan, fewer: Mapping[str, int], tries: int) -> np.ndarray:
    """Numbers of so many train and evaluate answers together: (tries, numbers)."""
    client, received = client_of(run_plan, fewer), initial(run_plan)

    def both() -> list[float]:
        trained, evaluated = client.fit_named(received, 0)[1], client.evaluate_named(received, 0)
        return [*map(float, trained.values()), *map(float, evaluated.values())]

    return np.array([both() for _ in range(tries)])


def share_told(with_it: np.ndarray, without: np.ndarray) -> float:
    """Share of the second halves told by a linear discriminant that has learnt from the first halves."""
    half = len(with_it) // 2
    learnt = np.concatenate([with_it[:half] - with_it[:half].mean(0), without[:half] - without[:half].mean(0)])
    apart = with_it[:half].mean(0) - without[:half].mean(0)
    direction = np.linalg.pinv(np.cov(learnt.T)) @ apart
    middle = (with_it[:half].mean(0) + without[:half].mean(0)) @ direction / 2
    return float(np.mean([*(with_it[half:] @ direction > middle), *(without[half:] @ direction <= middle)]))


@pytest.mark.slow
@pytest.mark.usefixtures("held_keys")
@pytest.mark.parametrize("what", ["a training example", "a test example"])
def test_neighbours_are_not_told_by_what_clients_report(what: str) -> None:
    """At chance in 300 answers, by a discriminant that learnt from as many; half of a part is told, so it can learn."""
    run_plan = resolved_for("fed_cdp", "noise_multiplier=100")
    with_it, without = (answers(run_plan, fewer, 300) for fewer in ({}, LEFT_OUT[what]))
    assert 0.4 < share_told(with_it, without) < 0.6
    assert len(np.unique(with_it, axis=0)) == 300  # and no answer repeats
    assert share_told(with_it, answers(run_plan, LEFT_OUT["half of a part"], 300)) > 0.6
    bare = run_plan.replaced(metrics="all")
    sizes = [client_of(bare, fewer).evaluate_named(initial(bare), 0)["num-examples"] for fewer in ({}, {"test": 1})]
    assert sizes[0] == sizes[1] + 1


def scores_of(client: PrivatelyReporting) -> Tensor:
    return client.measured("test", lambda scores, x, y: scores[:, 0])


@pytest.mark.parametrize(("net", "side"), [("linear", 0), ("mlp", 0), ("cnn3x3", 12), ("lenet5", 32)])
def test_no_example_changes_a_digit_of_what_is_measured_on_others(net: str, side: int) -> None:
    """In batches of another size it could: weights made for it would turn one example into many."""
    run_plan = resolved_for("fed_cdp", net=net, image_size=side)
    client = client_of(run_plan)
    client.load_received(initial(run_plan), 0)
    task, mine, whole = client.ctx.task, client.indices("test"), scores_of(client)
    pixels = np.array(task.dataset.test_x)
    pixels[mine[3]] = 255 - pixels[mine[3]]
    client.ctx = replace(client.ctx, task=replace(task, dataset=replace(task.dataset, test_x=pixels)))
    others = scores_of(client)
    client.ctx = replace(
        client.ctx, task=replace(task, split=replace(task.split, test=(mine[:-1], *task.split.test[1:])))
    )
    assert torch.equal(scores_of(client), whole[:-1])  # and the last batch is as large without it
    keep = [index for index in range(len(mine)) if index != 3]
    assert torch.equal(whole[keep], others[keep]) and not torch.equal(whole[3], others[3])
    assert len(mine) % ROWS != 0


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 1e38])
def test_weights_of_a_server_that_break_the_scores_break_no_bound(broken: float) -> None:
    """A loss that is no number counts as the largest, and each example as one."""
    run_plan = resolved_for("fed_cdp")
    client = client_of(run_plan)
    received = {name: np.full_like(value, broken) for name, value in initial(run_plan).items()}
    client.load_received(received, 0)
    losses, right = client.losses(), client.right("test")
    assert losses.shape == (len(client.indices("train")), 1) and right.shape == (len(client.indices("test")), 1)
    assert bool(((losses >= 0) & (losses <= 1)).all()) and set(right.flatten().tolist()) <= {0.0, 1.0}
    assert 0 <= client.evaluate_named(received, 0)["acc_global"] <= 1


@pytest.mark.parametrize("left", [0, 1])
def test_tiny_parts_are_reported_as_others_are(left: int) -> None:
    """Neither a missing name nor a number tells that there is nothing."""
    run_plan = resolved_for("fed_cdp", patience=2)
    size = len(client_of(run_plan).indices("test"))
    client = client_of(run_plan, {"test": size - left})
    assert len(client.indices("validation")) == 0
    assert set(client.fit_named(initial(run_plan), 0)[1]) == set(PRIVATE_METRICS)
    assert client.evaluate_named(initial(run_plan), 0)["num-examples"] >= 1
    assert set(client_of(run_plan.replaced(patience=0)).fit_named(initial(run_plan), 0)[1]) == {*PRIVATE_METRICS} - {
        "acc_validation"
    }


def test_where_whole_updates_are_clipped_no_size_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_metrics, "NOISE_MULTIPLIER", 1e-3)
    run_plan = resolved_for("fed_sdp")
    trained, evaluated = client_of(run_plan), client_of(run_plan)
    numbers, again = trained.fit_named(initial(run_plan), 0)[1], evaluated.evaluate_named(initial(run_plan), 0)
    assert numbers["num-examples"] == again["num-examples"] == 1
    assert numbers["acc_global"] == pytest.approx(again["acc_global"], abs=0.02)


# --- claims ---


def gaussian(*parts: GaussianEvent) -> float:
    return compute_epsilon(parts, DELTA).epsilon


def test_the_claim_is_of_the_methods_steps_and_the_answers_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds of two passes; each of 3 layers is clipped; five answers of training, and an evaluation."""
    steps, answered = GaussianEvent(6 / sqrt(3), 1.0, 10), GaussianEvent(10.0, 1.0, 6)
    bare, private = (claims(asked("fed_cdp", "noise_source=secure", metrics=one)) for one in ("none", "private"))
    for adversary in ("server", "another client", "outsider"):
        assert bare["example", adversary].epsilon == gaussian(steps)
        assert private["example", adversary].epsilon == gaussian(steps, answered) > gaussian(steps)
    with monkeypatch.context() as changed:
        changed.setattr(private_metrics, "NOISE_MULTIPLIER", 100.0)
        noisier = claims(asked("fed_cdp", "noise_source=secure", metrics="private"))
    assert noisier["example", "server"].epsilon == gaussian(steps, GaussianEvent(100.0, 1.0, 6))
    sentences = " ".join(private["example", "server"].assumptions)
    assert "with Gaussian noise of 10 times what one example can change, in 6 answers, which are counted" in sentences
    assert "ignores" not in sentences and "not shown" not in sentences and "to an L2 norm of 1." not in sentences


@pytest.mark.slow
def test_answers_get_no_credit_for_sampling() -> None:
    """Poisson batches of 10 of 20 or 25: the method's steps are sampled, the answers hold all examples."""
    private = claims(asked("fed_cdp", "noise_source=secure", "batches=poisson", metrics="private"))
    of_each = (GaussianEvent(6 / sqrt(3), 0.5, 5 * 2 * 2), GaussianEvent(6 / sqrt(3), 0.4, 5 * 2 * 3))
    expected = max(gaussian(steps, GaussianEvent(10.0, 1.0, 6)) for steps in of_each)
    assert private["example", "server"].epsilon == expected


def test_copies_patients_and_clients_pay_for_the_answers_too() -> None:
    """A patient of 3 moves an answer by 3; a client by at most all its examples; a copy is another answer."""
    chosen = asked("fed_cdp", "noise_source=secure", metrics="private", patient_examples="3")
    private = claims(chosen)
    maximum = min(3, 10)  # of a patient in one batch
    patient = gaussian(GaussianEvent(6 / sqrt(3) / maximum, 1.0, 10), GaussianEvent(10.0 / 3, 1.0, 6))
    assert private["patient", "server"].epsilon <= patient
    assert private["patient", "server"].epsilon > private["example", "server"].epsilon
    split = replace(apart(25, 20), test=(np.arange(30), np.arange(30)))
    shared = claims(chosen, split)
    assert shared["example", "server"].epsilon == gaussian(
        GaussianEvent(6 / sqrt(3), 1.0, 10), GaussianEvent(10.0, 1.0, 12)
    )
    assert shared["client", "server"].epsilon > private["client", "server"].epsilon


def test_whole_updates_and_their_numbers_are_counted_together() -> None:
    steps, answered = GaussianEvent(6.0, 1.0, 5), GaussianEvent(10.0, 1.0, 6)
    private = claims(asked("fed_sdp", "grouping=flat", "noise_source=secure", metrics="private"))
    assert private["client", "server"].epsilon == gaussian(steps, answered)
    twice = (GaussianEvent(part.noise_multiplier / 2, 1.0, part.steps) for part in (steps, answered))
    assert private["example", "outsider"].epsilon == gaussian(*twice)
    sentences = " ".join(private["client", "server"].assumptions)
    assert (
        "Clients report a loss and accuracies with Gaussian noise of 10 times what one client can change" in sentences
    )


def test_a_federation_claims_against_its_server_with_private_numbers() -> None:
    chosen = asked("fed_cdp", "noise_source=secure", federation=Path("lab"), metrics="private")
    assert claims(chosen)["example", "server"].epsilon == gaussian(
        GaussianEvent(6 / sqrt(3), 1.0, 10), GaussianEvent(10.0, 1.0, 6)
    )
    assert isinf(claims(replace(chosen, metrics="all"))["example", "server"].epsilon)
    assert isinf(claims(replace(chosen, set=("noise_source=seed",)))["example", "server"].epsilon)


def test_an_end_by_private_accuracies_needs_no_caveat() -> None:
    chosen = asked("fed_cdp", "noise_source=secure", patience=2)
    assert any("When training ends" in one for one in claims(chosen)["example", "server"].assumptions)
    private = claims(replace(chosen, metrics="private"))["example", "server"]
    assert not any("When training ends" in one for one in private.assumptions) and private.epsilon < inf


def test_a_claim_is_told_of_private_numbers_or_there_are_none() -> None:
    mechanism = Mechanism(8.0, 10)
    with pytest.raises(InputError, match="reported with metrics=private alone, got metrics=private"):
        claim(mechanism, "example", "server", DELTA, 1, metrics="private")
    with pytest.raises(InputError, match="reported with metrics=private alone, got metrics=none"):
        claim(mechanism, "example", "server", DELTA, 1, metrics="none", reported=mechanism)


# --- targets, budgets, restarts ---


def test_a_target_is_met_by_steps_and_answers_together() -> None:
    chosen = asked("fed_cdp", "noise_source=secure", metrics="private", target_epsilon=2.0)
    run_plan = resolve_noise(plan(chosen), UNEVEN)[0]
    private = {(one.unit, one.adversary): one for one in RunAccountant(run_plan.client, UNEVEN).claims()}
    assert 1.998 < private["example", "server"].epsilon <= 2.0
    alone = resolve_noise(plan(replace(chosen, metrics="none")), UNEVEN)[0]
    assert run_plan.client.settings.noise_multiplier > alone.client.settings.noise_multiplier
    with pytest.raises(InputError, match=r"target-epsilon > 0\.\d+, which the private metrics take"):
        resolve_noise(plan(replace(chosen, target_epsilon=0.5)), UNEVEN)


def test_a_budget_has_the_answers_in_it() -> None:
    """Three rounds: 6 passes, and 4 answers; a fourth would be beyond."""
    three, four = (gaussian(GaussianEvent(6 / sqrt(3), 1.0, 2 * t), GaussianEvent(10.0, 1.0, t + 1)) for t in (3, 4))
    chosen = asked("fed_cdp", "noise_source=secure", metrics="private", epsilon_budget=(three + four) / 2)
    assert resolve_noise(plan(chosen), UNEVEN)[0].experiment.rounds == 3


def private_run(small: Experiment, **changes: Any) -> Experiment:
    chosen = {"method": "fed_sdp", "net": "mlp", "split": "sampled", "rounds": 2, "metrics": "private", **changes}
    settings = ("sampled.train=20", "noise_multiplier=6", "grouping=flat", "noise_source=secure")
    return dataclasses.replace(small, **chosen, set=settings)


def killed_in_evaluation(experiment: Experiment, resumed: bool = False) -> Path:
    """A run whose server dies after the final evaluation was answered, before it is kept."""
    whole = FederatedStrategy.evaluate_all

    def dying(self: FederatedStrategy, *words: Any) -> Any:
        whole(self, *words)
        raise RunError("killed for the test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FederatedStrategy, "evaluate_all", dying)
        with pytest.raises(RunError, match="killed for the test"):
            run.resume(experiment) if resumed else run.run(experiment)
    assert experiment.out is not None
    return experiment.out


@pytest.mark.slow
def test_an_evaluation_that_is_asked_for_again_counts(small: Experiment) -> None:
    folder = killed_in_evaluation(private_run(small))
    assert sim.main(["--resume", str(folder)]) == 0
    assert result_of(folder)["provenance"]["requested_rounds"] == [1, 2, 3, 3]
    counted = gaussian(GaussianEvent(6.0, 1.0, 3), GaussianEvent(10.0, 1.0, 4))  # as one more round
    assert epsilon_of_clients(folder) == counted > gaussian(GaussianEvent(6.0, 1.0, 2), GaussianEvent(10.0, 1.0, 4))


@pytest.mark.slow
def test_a_budget_does_not_allow_for_another_evaluation(small: Experiment) -> None:
    two, three = (gaussian(GaussianEvent(6.0, 1.0, t), GaussianEvent(10.0, 1.0, t + 1)) for t in (2, 3))
    folder = killed_in_evaluation(private_run(small, epsilon_budget=(two + three) / 2))
    assert sim.main(["--resume", str(folder)]) == 0
    result = result_of(folder)
    assert result["provenance"]["requested_rounds"] == [1, 2, 3] and epsilon_of_clients(folder) == two
    assert (result["final"]["acc_global"], result["final"]["per_client"]) == (None, [])
    assert any("No final evaluation: asked for again" in note for note in result["notes"])
    assert 0 <= result["final"]["acc_central"] <= 1


def budget_of(rounds: int) -> float:
    """A budget that so many rounds and one evaluation keep, and one round more does not."""
    kept, beyond = (gaussian(GaussianEvent(6.0, 1.0, t), GaussianEvent(10.0, 1.0, t + 1)) for t in (rounds, rounds + 1))
    return (kept + beyond) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("killed_in", "asked_for"), [(2, [1, 2, 2, 2, 3, 4]), (3, [1, 2, 3, 3, 3, 3])])
def test_what_restarts_left_of_a_budget_is_claimed_and_no_more(
    small: Experiment, killed_in: int, asked_for: list[int]
) -> None:
    """Five rounds were asked for, and then an evaluation, which is no sixth round."""
    folder = killed(private_run(small, rounds=9, epsilon_budget=budget_of(5), audit_rounds="0"), killed_in, 2)
    if killed_in == 3:  # and a third time, so that round 3 never ends
        with pytest.MonkeyPatch.context() as patch:
            kill_in_round(patch, killed_in)
            with pytest.raises(RunError, match="killed for the test"):
                run.resume(run.stored(folder))
    assert sim.main(["--resume", str(folder)]) == 0
    assert result_of(folder)["provenance"]["requested_rounds"] == asked_for
    assert (
        epsilon_of_clients(folder) == gaussian(GaussianEvent(6.0, 1.0, 5), GaussianEvent(10.0, 1.0, 6)) <= budget_of(5)
    )


@pytest.mark.slow
def test_an_evaluation_that_a_budget_forbids_a_second_time_stays_within_it(small: Experiment) -> None:
    """Round 2 is asked for three times, and the server dies in the evaluation: five rounds and one evaluation."""
    folder = killed(private_run(small, rounds=9, epsilon_budget=budget_of(5), audit_rounds="0"), 2, 2)
    killed_in_evaluation(run.stored(folder), resumed=True)
    assert sim.main(["--resume", str(folder)]) == 0
    assert (
        result_of(folder)["provenance"]["requested_rounds"] == [1, 2, 2, 2, 3, 4]
        and result_of(folder)["final"]["per_client"] == []
    )
    assert (
        epsilon_of_clients(folder) == gaussian(GaussianEvent(6.0, 1.0, 5), GaussianEvent(10.0, 1.0, 6)) <= budget_of(5)
    )


# --- whole runs ---


@pytest.mark.parametrize("method", ["fed_cdp", "dp_fedavg", "fed_sdp"])
def test_a_run_shows_noisy_numbers_and_says_so(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert sim.main([*RUN.split(), "--method", method, "--out", str(folder)]) == 0
    result, printed = json.loads((folder / "result.json").read_text()), capsys.readouterr().out
    assert "as received, by clients' numbers with noise" in printed and "on the server's own test data" in printed
    final = result["final"]
    assert 0 <= final["acc_global"] <= 1 and 0 <= final["acc_central"] <= 1 and final["acc_local"] is None
    assert [set(row) for row in final["per_client"]] == [{"client", "acc_global", "num-examples"}] * 2
    assert any("have noise (metrics=private, a noise multiplier of 10)" in note for note in result["notes"])
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {"round", "client", "upload_bytes", "acc_global", "acc_local", "loss", "num-examples"}
    assert all(0 <= float(row["acc_local"]) <= 1 and 0 <= float(row["loss"]) <= loss_bound(10) for row in rows)
    page = (folder / "report.html").read_text()
    assert "Probes of the audit are outside the count" in page  # and accuracies are not
    assert "final accuracy on the server’s own test data" in page and "final accuracy after" not in page
    assert "What clients report here has noise" in page and "None" not in page and "NaN" not in page
    against = {e["adversary"]: e["epsilon"] for e in result["privacy"] if e["unit"] == "example"}
    alone = {epsilon for adversary, epsilon in against.items() if adversary != "aggregate"}
    assert len(alone) == 1 and 0 < against["aggregate"] <= against["server"]


def test_a_weighted_mean_uses_the_noisy_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    words = [*RUN.split(), "--method", "dp_fedavg", "--out", str(tmp_path / "run")]
    from flfw.dp.strategy import EitherUnitStrategy

    whole = EitherUnitStrategy.aggregate

    def noting(self: EitherUnitStrategy, updates: Any) -> Any:
        listed = list(updates)
        seen.extend((update.partition, update.examples) for update in listed)
        return whole(self, listed)

    monkeypatch.setattr(EitherUnitStrategy, "aggregate", noting)
    assert sim.main(words) == 0
    with (tmp_path / "run" / "clients.csv").open() as file:
        reported = [(int(row["client"]), int(row["num-examples"])) for row in csv.DictReader(file)]
    assert seen == reported and len({count for _, count in seen}) > 1


REFUSED = {
    "--method fedavg": "a method whose clients add noise for --metrics private, got method=fedavg",
    "--method fednova": "fednova",
    "--method centaur": "settings with which something can be claimed for --metrics private. The head learns",
    "--method fed_cdp --set bound=median": "something can be claimed for --metrics private. The bound is the median",
    "--method dp_fedavg --set unit=client": "noise at the clients for --metrics private; the server adds it",
    "--method fed_sdp --set noised_by=server": "noise at the clients for --metrics private; the server adds it",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_who_protects_nothing_has_no_private_numbers(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = RUN if "centaur" not in text else RUN.replace("--net linear", "--net mlp")
    assert sim.main([*net.split(), *text.split(), "--out", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err
    assert message in errors and len(errors.strip().splitlines()) == 1 and not (tmp_path / "run").exists()


# --- a site ---

BUDGET, ONE = site.BUDGET, site.ONE


def test_a_site_counts_the_numbers_of_each_message() -> None:
    run_plan = resolved_for("fed_cdp")
    for kind in (TRAIN, EVALUATE):
        sent, counted = cost(run_plan.client, kind, {}, 25)
        assert (sent is None) == (kind == EVALUATE)
        assert counted is not None and counted.phase() == GaussianEvent(10.0, 1.0, 1)
    assert cost(run_plan.client, PROBE, {"control": "target", "batch": 4, "steps": 3}, 25)[1] is None
    assert cost(run_plan.replaced(metrics="none").client, TRAIN, {}, 25)[1] is None
    entry = replace(ONE, metrics=counted)
    assert site.mu_of([entry] * 4) == pytest.approx(sqrt(4 * (1 + 1 / 100)), rel=1e-6)
    asked_often = replace(ONE, mechanism=None, metrics=entry.metrics, kind=EVALUATE)
    assert site.mu_of([asked_often] * 400) == pytest.approx(2.0, rel=1e-6)


def test_a_unit_counts_as_often_as_it_is_in_the_numbers() -> None:
    """A site of 8 examples, 5 of them for training; a patient of 3; an example twice."""
    entry = replace(ONE, mechanism=None, metrics=Mechanism(1.0, 1), examples=5, held=8)
    expected = {"example": 1, "patient": 3, "client": 8}
    for unit, copies in expected.items():
        budget = replace(BUDGET, epsilon=1e4, unit=unit, patient_examples=3)  # type: ignore[arg-type]
        assert site.mu_of([entry], budget) == pytest.approx(copies, rel=1e-4)
    assert site.mu_of([replace(entry, repeated=2)]) == pytest.approx(2.0, rel=1e-6)


def test_lines_of_a_ledger_without_numbers_are_read() -> None:
    row = {**ONE.row, "before": "x"}
    assert MessageEntry.from_row(row) == ONE
    older = {name: value for name, value in row.items() if name not in ("metrics", "held")}
    assert MessageEntry.from_row(older) == ONE
    entry = replace(ONE, mechanism=None, metrics=Mechanism(2.0, 1), held=9)
    assert MessageEntry.from_row(json.loads(json.dumps(entry.row))) == entry
    with pytest.raises(InputError, match="a site's ledger"):
        MessageEntry.from_row({name: value for name, value in row.items() if name != "mechanism"})


def test_lines_with_the_fields_of_the_earlier_count_cost_what_they_did() -> None:
    """Coins that nobody sees gave credit, and do; a line with another value than sites wrote is refused, never free."""
    coins, bare = Mechanism(1.0, 6, sampling_rate=0.5, poisson=True), Mechanism(1.0, 6)
    for made, hidden, known in ((coins, True, True), (bare, True, True), (bare, False, True), (coins, False, False)):
        retired = {**dataclasses.asdict(made), "secret_sampling": hidden, "moving": False, "void": ""}
        with nullcontext() if known else pytest.raises(InputError, match="a site's ledger"):
            read = MessageEntry.from_row({**dataclasses.asdict(ONE), "mechanism": retired})
            assert read == replace(ONE, mechanism=made)


def test_a_line_has_the_numbers_of_others_as_ever_and_is_refused_with_any_but_of_none() -> None:
    end = {"max_copies": 1, "bands": 1, "bins": 0, "noise_divisor": 1, "min_summed_updates": 1, "colluding": 0}
    assert list(ONE.row["mechanism"].items())[11:] == list(end.items())
    for name in ("max_copies", "min_summed_updates", "colluding"):
        with pytest.raises(InputError, match="a site's ledger"):
            MessageEntry.from_row({**ONE.row, "mechanism": ONE.row["mechanism"] | {name: 3}})


AROUND = {
    "no noise at all": ("fedavg", (), "fedavg adds no noise that can be counted"),
    "the seed": ("fed_cdp", ("noise_source=seed",), "the server can repeat the noise with noise_source=seed"),
    "the server's own noise": ("dp_fedavg", ("unit=client",), "the server is to add the noise of dp_fedavg"),
    "a private head": ("centaur", (), "the head learns from the same examples without noise"),
}


@pytest.mark.parametrize(("method", "assignments", "message"), AROUND.values(), ids=AROUND.keys())
def test_a_site_refuses_an_evaluation_whose_numbers_it_cannot_count(
    method: str, assignments: tuple[str, ...], message: str
) -> None:
    run_plan = resolved_for(method, net="mlp").replaced(
        set=assignments or ("noise_source=secure",) * (method != "fedavg")
    )
    with pytest.raises(site.BudgetExceededError, match=f"^this site's budget: {message}"):
        cost(run_plan.client, EVALUATE, {}, 25)


SMALL = {**site.SMALL, **PRIVATE}


def test_each_message_of_a_private_run_is_a_line_that_costs(tmp_path: Path) -> None:
    site.run(tmp_path, "a", run_plan=site.asked("fed_cdp", **SMALL))
    first = site.rows(tmp_path)
    assert [(row["kind"], row["mechanism"] is None, row["metrics"]["noise_multiplier"]) for row in first] == [
        (TRAIN, False, 10.0), (TRAIN, False, 10.0), (EVALUATE, True, 10.0)
    ]  # fmt: skip
    assert first[0]["held"] > first[0]["examples"] > 500 and first[0]["repeated"] == 1


def test_a_server_that_evaluates_again_and_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is another release, however often the same is asked; beyond the budget nothing is measured."""
    monkeypatch.setattr(private_metrics, "NOISE_MULTIPLIER", 2.0)
    run_plan = site.asked("fed_cdp", **SMALL)
    full = site.epsilon_of([replace(ONE, mechanism=Mechanism(2.0, 8))], BUDGET)  # two rounds of 2 steps cost less
    budget = replace(BUDGET, epsilon=full)
    site.run(tmp_path, "a", budget, run_plan)
    spent, chosen = len(site.rows(tmp_path)), replace(run_plan.experiment, out=tmp_path / "a", engine="inproc")
    grid = InProcessGrid(
        site.apps.client,
        1,
        chosen.to_run_config(),
        [{"state": str(tmp_path), **budget.to_node_config(tmp_path / "lines.jsonl")}],
    )
    (node,) = grid.get_node_ids()
    content = {"round": 3, "state_version": 0, "code": site.apps.code_hash(), "experiment": "b", "deadline": 2e9}
    arrays = ArrayRecord({name: torch.from_numpy(value) for name, value in initial(run_plan).items()})
    answered, reasons = 0, []
    for _ in range(12):
        record = RecordDict({"arrays": arrays, "config": ConfigRecord(content)})
        (reply,) = grid.send_and_receive([Message(record, dst_node_id=node, message_type="evaluate")])
        if reply.has_error():
            reasons.append(reply.error.reason)
        else:
            answered += 1
    assert 0 < answered < 12 and len(site.rows(tmp_path)) == spent + answered
    assert len(reasons) == 12 - answered and all("this site's budget: epsilon" in reason for reason in reasons)


POLICY = Policy(allowed_apps=("a" * 64,), allowed_uploads=("*",), max_upload_mb=1.0, epsilon=2.0, metrics="private")


def test_a_sites_policy_says_private_and_means_it() -> None:
    config = dict(Experiment().to_run_config())
    assert [one for one in ("all", "private", "none") if POLICY.run_rejection({**config, "metrics": one}) is None] == [
        "private", "none"
    ]  # fmt: skip
    line = POLICY.run_rejection({**config, "metrics": "all"})
    assert line == "this site's policy accepts at most metrics=private, the run has metrics=all"
    with pytest.raises(InputError, match="an epsilon with metrics=private, whose noise nothing else bounds"):
        replace(POLICY, epsilon=inf)
    assert 'metrics = "private"' in POLICY.text()


def answer_of(metrics: Any) -> Message:
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), dst_node_id=1, message_type="train")


def test_no_other_number_leaves_a_site_that_says_private() -> None:
    noisy = dict.fromkeys(PRIVATE_METRICS, 0.5)
    assert POLICY.reply_rejection(answer_of(noisy), "train", 10) is None
    refused = POLICY.reply_rejection(answer_of({**noisy, "seconds": 1.0}), "train", 10)
    assert refused == "this site's policy lets no number leave that has no noise, such as seconds"
