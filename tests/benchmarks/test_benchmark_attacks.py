"""The comparison with breaching: the work both sides get is the same, and figures of it are what they say."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks import attacks, breaching_env, our_search, turns
from benchmarks.attack_victims import Victims, victims
from benchmarks.our_search import Ours, Trace, descent, errors, padded_variation
from benchmarks.their_search import Theirs, write
from flfw.data.files.cache import user_cache
from flfw.inversion.closed_form.linear import linear_inputs

# The tests' own cache is empty; breaching's environment lies in the user's, if anywhere.
BREACHING = user_cache() / f"breaching-{breaching_env.VERSION}"


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Victims:
    """LeNet's, of random images whatever the machine has."""
    monkeypatch.setenv("FLFW_DATA", str(tmp_path / "none"))
    return victims("lenet", 3)


# --- the work ---


def test_padded_variation_counts_the_step_to_zero_beyond_the_edge_and_divides_by_all_places() -> None:
    x = torch.tensor([[[1.0, 2.0], [3.0, 5.0]]])
    # down 2 + 3 + 3 + 5, right 1 + 2 + 2 + 5, over 4 places
    assert float(padded_variation(x)) == 23 / 4
    assert float(padded_variation(torch.stack([x, 0 * x]))) == 23 / 8


@pytest.mark.parametrize(("iterations", "drops"), [(24_000, [8998, 14_999, 21_015]), (1000, [374, 624, 875])])
def test_our_step_size_falls_where_theirs_does(iterations: int, drops: list[int]) -> None:
    rates = [descent(iterations).rate(done) for done in range(iterations)]
    assert [done for done in range(1, iterations) if rates[done] < rates[done - 1]] == drops
    assert rates[0] == 0.1 and rates[-1] == pytest.approx(1e-4)


def test_it_does_so_for_few_iterations_too() -> None:
    for iterations in range(3, 60):
        drops = (iterations // 2.667, iterations // 1.6, iterations // 1.142)
        theirs = [0.1 * 0.1 ** sum(done >= drop for drop in drops) for done in range(60)]
        assert [descent(iterations).rate(done) for done in range(60)] == theirs


def test_what_was_observed_is_the_gradient_of_the_image_under_the_label(three: Victims) -> None:
    x = three.inputs.normalise(three.truth[2])
    torch.nn.functional.cross_entropy(three.net(x), three.labels[2]).backward()
    for name, parameter in three.net.named_parameters():
        torch.testing.assert_close(three.observed[2][name], parameter.grad)
    features = linear_inputs(three.observed[2]["classifier.weight"], three.observed[2]["classifier.bias"], 1)
    torch.testing.assert_close(features, three.net.extractor(x).detach(), rtol=1e-3, atol=1e-4)


def test_first_guesses_lie_in_the_box_and_reach_its_edges(three: Victims) -> None:
    raw = three.start * three.inputs.std + three.inputs.mean
    assert float(raw.min()) == pytest.approx(0, abs=1e-6) and float(raw.max()) == pytest.approx(1, abs=1e-6)
    assert 0.5 < float(three.start.std()) < 1.1


def test_a_problem_is_written_with_every_field_and_tensor_of_the_other_side(three: Victims, tmp_path: Path) -> None:
    write(three, tmp_path, {"mode": "speed", "iterations": 7, "warmup": 2, "every": 0, "threads": 1})
    problem, tensors = json.loads((tmp_path / "problem.json").read_text()), load_file(tmp_path / "problem.safetensors")
    fields = (
        "mode config network shape classes mean std parameters buffers iterations lr signed decay tv box training "
        "threads warmup every scale device"
    )
    assert set(problem) == set(fields.split())
    assert problem["shape"] == [3, 32, 32] and problem["mean"] == pytest.approx([0.4914, 0.4822, 0.4465])
    assert problem["parameters"] == [name for name, _ in three.net.named_parameters()] and problem["buffers"] == []
    assert {name for name in tensors if name.startswith("weights.")} == {f"weights.{n}" for n in problem["parameters"]}
    assert torch.equal(tensors["observed.classifier.bias"][1], three.observed[1]["classifier.bias"])
    assert torch.equal(tensors["start"], three.start) and tensors["labels"].shape == (3, 1)


def test_the_mean_psnr_is_of_images_in_the_box(three: Victims) -> None:
    grey = three.inputs.normalise(torch.full((3, 1, 3, 32, 32), 0.5))
    truth = torch.full_like(three.truth, 0.5)
    truth[0] += 0.1  # 20 dB
    truth[1:] += 0.01  # 40 dB
    assert Victims(**{**vars(three), "truth": truth}).psnr(grey) == pytest.approx((20 + 40 + 40) / 3, abs=1e-2)
    outside = three.inputs.normalise(torch.full((3, 1, 3, 32, 32), 7.0))  # counts as 1
    assert Victims(**{**vars(three), "truth": truth * 0}).psnr(outside) == pytest.approx(0, abs=1e-6)


# --- our side ---


@pytest.mark.slow
def test_our_first_step_is_cosine_distance_and_padded_variation(three: Victims) -> None:
    gradients, objective, matched = Ours(three, compiled=False).first
    z = three.start[1].clone().requires_grad_()
    parameters = list(three.net.parameters())
    loss = torch.nn.functional.cross_entropy(three.net(z), three.labels[1])
    trial = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    seen = torch.cat([three.observed[1][name].flatten() for name, _ in three.net.named_parameters()])
    distance = 1 - trial @ seen / (trial.norm() * seen.norm())
    wanted = distance + 0.01 * padded_variation(z)
    (slope,) = torch.autograd.grad(wanted, z)
    assert float(matched[1]) == pytest.approx(float(distance.detach()), abs=1e-6)
    assert float(objective[1]) == pytest.approx(float(wanted.detach()), abs=1e-6)
    assert float((gradients["x"][1] - slope).norm() / slope.norm()) < 1e-4


@pytest.mark.slow
def test_a_trace_has_the_start_the_guesses_between_and_the_result(three: Victims) -> None:
    trace = Ours(three, compiled=False).trace(iterations=6, every=2)
    # 7 evaluations, of which those before 0, 2, 4 and 6 steps are kept, and the best
    assert len(trace.psnr) == len(trace.seconds) == 5
    assert trace.psnr[0] == three.psnr(three.start) and trace.seconds == sorted(trace.seconds)
    assert trace.until(-100.0) == trace.seconds[0] and trace.until(1000.0) is None


def test_a_trace_is_good_enough_when_it_first_is() -> None:
    assert Trace([8.0, 12.0, 11.0], [0.0, 2.5, 3.0]).until(12.0) == 2.5


def test_errors_are_absolute_of_the_objective_and_relative_of_the_gradient() -> None:
    class Stub:
        first = {"x": torch.tensor([[3.0, 4.0], [1.0, 0.0]])}, torch.tensor([0.5, 0.25]), torch.zeros(2)

    theirs: dict[str, Tensor] = {
        "objective": torch.tensor([0.5, 0.5]),
        "gradient": torch.tensor([[3.0, 3.0], [2.0, 0.0]]),
    }
    result = errors(cast(Any, Stub()), theirs)
    assert result["objective"].tolist() == [0.0, 0.25]
    torch.testing.assert_close(result["gradient"], torch.tensor([1 / 18**0.5, 0.5]))


# --- the figures ---


def test_a_ratio_is_the_median_of_the_turns() -> None:
    assert turns.ratio([1.0, 30.0, 4.0], [1.0, 3.0, 2.0]) == 2.0


def test_compiling_is_spread_over_the_iterations_of_all_images() -> None:
    assert attacks.amortised(rate=1000.0, compile_s=24.0, images=1) == 500.0
    assert attacks.amortised(rate=1000.0, compile_s=24.0, images=3) == 750.0


def test_who_does_not_get_there_is_no_sooner() -> None:
    assert attacks.sooner(12.0, 2.0, compile_s=4.0) == {"ratio": 6.0, "with_compile": 2.0}
    assert attacks.sooner(12.0, None, compile_s=4.0) == {"ratio": None, "with_compile": None}


def test_sides_take_turns() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    result = turns.in_turns({"a": lambda: side("a"), "b": lambda: side("b")}, 2)
    assert order == ["a", "b", "a", "b"] and result == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def test_numbers_are_rounded_to_four_digits_at_any_depth() -> None:
    assert turns.rounded({"a": {"b": 12.34567}, "c": 3, "d": None}) == {"a": {"b": 12.35}, "c": 3, "d": None}


class Apart:
    """A bench whose sides are so far apart, and that must not be timed."""

    def __init__(self, **gated: float) -> None:
        self._gated = gated

    def exact(self, case: attacks.AttackCase) -> tuple[dict[str, float], dict[str, float]]:
        return self._gated, {}


@pytest.mark.parametrize(
    ("gated", "named"),
    [
        ({"objective": 1.1e-6, "gradient": 0.0}, "lenet_1_objective=1.1e-06"),
        ({"objective": 0.0, "gradient": 1.1e-5}, "lenet_1_gradient=1.1e-05"),
        ({"objective": 0.0, "compiled_gradient": float("nan")}, "lenet_1_compiled_gradient=nan"),
    ],
)
def test_different_work_is_refused_and_not_timed(gated: dict[str, float], named: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        attacks.gate(cast(attacks.Bench, Apart(**gated)), {"lenet_1": attacks.AttackCase("lenet", 1, 1, 0, 1.0)})
    assert named in str(stopped.value.code)


@pytest.mark.nightly
def test_our_objective_is_breachings(three: Victims, tmp_path: Path) -> None:
    made_for = BREACHING / "made-for.txt"
    if not made_for.exists() or made_for.read_text() != "\n".join([sys.version, *breaching_env.packages()]):
        pytest.skip("breaching has no environment here; `python -m benchmarks.breaching_env` makes one")
    _, result = Theirs(BREACHING / "bin" / "python", 1)(three, tmp_path, "objective", 3)
    apart = errors(Ours(three, compiled=False), result)
    assert float(apart["objective"].max()) <= 1e-6 and float(apart["gradient"].max()) <= 1e-5
    informed, traced = Theirs(BREACHING / "bin" / "python", 1)(three, tmp_path, "attack", 4, every=2)
    assert informed["trace_iterations"] == [0, 2] and torch.equal(traced["trace"][:, 0], three.start)
    assert our_search.TV > 0, "else total variation is not compared"
