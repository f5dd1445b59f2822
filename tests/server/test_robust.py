"""Robust means: by hand, against small loops, among liars, and what a run refuses."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

import sim
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import torch_generator
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.robust import RobustMean, RobustName
from tests.support.planned import checked

RULES: tuple[RobustName, ...] = ("median", "trimmed_mean", "krum", "clipping")
SENT: Tensors = {"w": torch.zeros(2, 3), "b": torch.zeros(3), "seen": torch.tensor(10)}


def updates(values: Sequence[Tensors], examples: int = 1) -> list[Update]:
    return [Update(number, examples, tensors) for number, tensors in enumerate(values)]


def row(*values: float) -> list[Update]:
    """One update of one number for each value."""
    return updates([{"w": torch.tensor([float(value)])} for value in values])


def honest(count: int, seed: int = 0) -> list[Tensors]:
    rng = torch_generator(seed, "honest")
    noise = ({name: torch.randn(SENT[name].shape, generator=rng) for name in ("w", "b")} for _ in range(count))
    return [{"w": 1 + 0.1 * one["w"], "b": 1 + 0.1 * one["b"], "seen": torch.tensor(12)} for one in noise]


def combined(name: RobustName, given: Sequence[Update], liars: int = 0) -> Tensors:
    return RobustMean(name, liars)(given, SENT).tensors


# --- by hand ---


def test_by_hand() -> None:
    """Of 1, 2, 3, 4, 90 the median is 3; without both ends the mean is 3; with norms cut at 3 it is 12 / 5."""
    given, sent = row(1, 2, 3, 4, 90), {"w": torch.zeros(1)}
    assert RobustMean("median")(given, sent).tensors["w"].item() == 3
    assert RobustMean("trimmed_mean", 1)(given, sent).tensors["w"].item() == 3
    assert RobustMean("clipping")(given, sent).tensors["w"].item() == pytest.approx((1 + 2 + 3 + 3 + 3) / 5)
    # krum, f = 1: the two nearest others of 2 are 1 and 3, 1 + 1; of 3 they are 2 and 4, 1 + 1; the first one counts.
    assert RobustMean("krum", 1)(given, sent).tensors["w"].item() == 2
    assert RobustMean("median")(row(1, 2, 3, 90), sent).tensors["w"].item() == 2.5


# --- against other programs ---


@pytest.mark.parametrize("count", [5, 6])
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(count: int) -> None:
    values = honest(count, seed=1)
    whole = {name: np.stack([one[name].numpy() for one in values]) for name in ("w", "b")}
    for name, rows in whole.items():
        np.testing.assert_allclose(combined("median", updates(values))[name], np.median(rows, 0), rtol=1e-6)
        trimmed = combined("trimmed_mean", updates(values), 2)[name]
        np.testing.assert_allclose(trimmed, trim_mean(rows, 2 / count, 0), rtol=1e-6)


def test_krum_is_a_small_loop() -> None:
    values, liars = honest(9, seed=2), 3
    flat = [torch.cat([one["w"].flatten(), one["b"], one["seen"].flatten().float()]).double() for one in values]
    scores = []
    for i, one in enumerate(flat):
        distances = sorted(float((one - other).square().sum()) for j, other in enumerate(flat) if j != i)
        scores.append(sum(distances[: 9 - liars - 2]))
    chosen = combined("krum", updates(values), liars)
    assert all(torch.equal(chosen[name], values[scores.index(min(scores))][name]) for name in chosen)


def test_clipping_is_a_small_loop() -> None:
    values = honest(4, seed=3)
    changes = [{name: one[name].double() - SENT[name] for name in one} for one in values]
    norms = [sum(float(change[name].square().sum()) for name in ("w", "b")) ** 0.5 for change in changes]
    bound, result = sorted(norms)[1] / 2 + sorted(norms)[2] / 2, combined("clipping", updates(values))
    for name in ("w", "b"):
        scaled = [change[name] * min(1.0, bound / norm) for change, norm in zip(changes, norms, strict=True)]
        torch.testing.assert_close(result[name], (SENT[name] + sum(scaled) / 4).float())


# --- liars ---


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("lie", [-100.0, 1e30, 3e38])
def test_liars_move_the_mean_and_hardly_a_robust_one(name: RobustName, lie: float) -> None:
    """Two of nine: honest entries are near 1, and every robust mean too; clipped lies weigh 2 / 9 of a median norm."""
    lies = [{"w": torch.full((2, 3), lie), "b": torch.full((3,), lie), "seen": torch.tensor(12)}] * 2
    given = updates([*lies[:1], *honest(7), *lies[1:]])
    assert abs(float(weighted_mean(given)["w"].mean()) - 1) > 10
    result = combined(name, given, 2)
    for entry in ("w", "b"):
        off = float((result[entry] - 1).abs().max())
        assert off < (0.7 if name == "clipping" else 0.35), (name, off)
    assert result["seen"].dtype == torch.int64 and result["seen"].item() in (10, 11, 12)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("lie", "seen"), [(-1.0, 44), (-10.0, 44), (1.0, 2**62), (1.0, -(2**62))])
def test_counts_of_batches_hide_no_lie(name: RobustName, lie: float, seen: int) -> None:
    """Honest counts differ by hundreds and honest weights by 0.1; a distance of both would be one of counts."""
    counts = (5, 8, 40, 41, 80, 120, 300)
    given = [{**one, "seen": torch.tensor(count)} for one, count in zip(honest(7), counts, strict=True)]
    lies = [{"w": torch.full((2, 3), lie), "b": torch.full((3,), lie), "seen": torch.tensor(seen)}] * 2
    result, bare = combined(name, updates([*given, *lies]), 2), {"w": SENT["w"], "b": SENT["b"]}
    without = [{entry: one[entry] for entry in bare} for one in (*given, *lies)]
    for entry, value in RobustMean(name, 2)(updates(without), bare).tensors.items():
        assert torch.equal(result[entry], value) and float((value - 1).abs().max()) < 0.7
    assert 5 <= result["seen"].item() <= 300 and result["seen"].dtype == torch.int64
    assert list(result) == list(given[0])


@pytest.mark.parametrize("name", RULES)
def test_a_number_of_examples_that_is_a_lie_counts_for_nothing(name: RobustName) -> None:
    values = honest(5)
    plain, greedy = updates(values), [Update(0, 2**31, values[0]), *updates(values)[1:]]
    one, other = (combined(name, given, 1) for given in (plain, greedy))
    assert all(torch.equal(one[entry], other[entry]) for entry in one)


@pytest.mark.parametrize("name", RULES)
def test_equal_updates_are_their_own_mean_in_any_order(name: RobustName) -> None:
    values = honest(1) * 5
    torch.testing.assert_close(combined(name, updates(values), 1), values[0])
    mixed = updates(honest(6, seed=4))
    ordered, turned = combined(name, mixed, 1), combined(name, mixed[::-1], 1)
    torch.testing.assert_close(ordered, turned)


# --- in a run ---


def test_a_run_takes_the_median(tmp_path: Path) -> None:
    """It equals the median of the three updates that the same run's clients send."""
    from tests.support.method_rounds import initial_tensors, make_client

    flags = "--method fedavg --net linear --clients 3 --rounds 1 --local-epochs 1 --engine inproc --attack none"
    assert (
        sim.main([*flags.split(), "--split", "iid", "--expert", "robust=median", "--out", str(tmp_path / "run")]) == 0
    )
    experiment = Experiment(method="fedavg", net="linear", clients=3, rounds=1, local_epochs=1, split="iid")
    received, sent = initial_tensors(without_auto(experiment)), []
    for client in range(3):
        sent.append(make_client(without_auto(experiment), client, tmp_path / "state").fit_named(received, version=0)[0])
    from safetensors.torch import load_file

    (path,) = (tmp_path / "run" / "checkpoint").glob("round-00001-*.safetensors")
    model = load_file(path)
    for name in received:
        expected = torch.stack([one[name] for one in sent]).median(0).values
        torch.testing.assert_close(model[f"model/{name}"], expected, rtol=1e-6, atol=1e-7)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["config"]["robust"] == "median"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"method": "fedcg", "net": "lenet5", "robust": "median"}, "Expected a method whose server takes the mean"),
        ({"robust": "krum:4"}, "Expected 11 clients or more in a round"),
        ({"robust": "trimmed_mean:5"}, "Expected 11 clients or more in a round"),
        ({"robust": "median:2", "sample": 0, "clients": 3}, "Expected 5 clients or more"),
    ],
)
def test_what_cannot_hold_is_refused_before_a_run(fields: dict, line: str) -> None:
    experiment = Experiment(**{"method": "fedavg", "dataset": "digits", "net": "lenet", "split": "iid", **fields})
    with pytest.raises(InputError, match=line):
        checked(plan(without_auto(experiment)))


def test_liars_without_a_rule_are_refused() -> None:
    with pytest.raises(InputError, match="Expected a robust mean before :N, got robust=none:1"):
        Experiment(robust="none:1")
    with pytest.raises(InputError, match=r"^Got robust=krum:-1; did you mean krum\? Expected robust=none, "):
        Experiment(robust="krum:-1")
    with pytest.raises(InputError, match="Expected robust=trimmed_mean:N with N >= 1"):
        Experiment(robust="trimmed_mean")


def test_too_few_answers_end_the_round_in_one_line() -> None:
    with pytest.raises(RunError, match="Expected 5 updates or more for krum with 1 that lie, got 4"):
        combined("krum", updates(honest(4)), 1)
