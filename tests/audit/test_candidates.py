"""Candidates held against messages, and results exchanged between them: counts by hand, and chance where it acts."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flfw.attacks.ig import IG, IGSettings
from flfw.audit.measures.exchange import Fitting, exchange
from flfw.audit.reconstruction.control_runs import candidate_test, disjoint_candidates
from flfw.errors import InputError
from flfw.files.outcomes import outcome
from flfw.nets import Tensors
from flfw.recording.observation import Reconstruction
from flfw.rng import numpy_generator, torch_generator
from flfw.runs import run
from flfw.task.defence import Defence
from tests.inversion.test_invertible_defences import defended, digits
from tests.support.known_answers import base
from tests.support.pictures import save as save_picture

# --- which candidates ---


def test_no_example_is_a_candidate_twice_and_classes_fit() -> None:
    pool = np.array([*[0] * 40, *[1] * 25, *[2] * 9])
    messages = [np.array(y) for y in ([0], [0, 1], [2, 2, 0], [1], [0, 1])]
    drawn = disjoint_candidates(messages, pool, numpy_generator(0, "draw"))
    # Class 0 is asked for four times: 10 each; class 1 three times: 8 each; class 2 twice by one message: 4 each.
    assert [len(indices) for indices in drawn] == [10, 8, 4, 8, 8]
    for classes, indices in zip(messages, drawn, strict=True):
        assert (pool[indices] == classes).all()
    assert max(Counter(np.concatenate([indices.ravel() for indices in drawn]).tolist()).values()) == 1


def test_at_most_so_many_candidates_and_none_where_a_class_has_too_few() -> None:
    drawn = disjoint_candidates([np.array([0]), np.array([1])], np.zeros(300, int), numpy_generator(0, "draw"))
    assert [len(indices) for indices in drawn] == [99, 0]
    alone = disjoint_candidates([np.array([0, 0])], np.zeros(3, int), numpy_generator(0, "draw"), maximum=5)
    assert [len(indices) for indices in alone] == [1]


# --- the test ---


def test_ties_and_values_that_are_no_numbers_do_not_point_to_the_truth() -> None:
    rows = [[0.5, 0.5, 1.0], [0.2, 0.5, 1.0], [float("nan"), 1.0, 2.0], [0.1, float("nan"), 2.0]]
    result = candidate_test([2] * 4, lambda message: rows[message])
    assert result is not None and (result.count, result.compared) == (1, 4)
    assert result.p == pytest.approx(1 - (2 / 3) ** 4)


def test_p_is_the_binomial_tail_and_messages_without_candidates_or_values_are_left_out() -> None:
    first = {0: 0.0, 1: 0.0, 2: 2.0, 4: 2.0}
    explain = lambda message: [first[message], 1.0, 1.0, 1.0] if message in first else None  # noqa: E731
    result = candidate_test([3, 3, 3, 0, 3, 3], explain)
    assert result is not None and (result.count, result.compared) == (2, 4)
    assert result.p == pytest.approx(1 - 0.75**4 - 4 * 0.25 * 0.75**3)
    assert result.chance == pytest.approx(0.25)
    assert candidate_test([0, 0], explain) is None and candidate_test([3], lambda message: None) is None


@pytest.mark.slow
def test_without_knowledge_the_false_alarms_stay_below_the_level() -> None:
    draw = numpy_generator(0, "chance")
    p = [result.p for _ in range(2000) if (result := candidate_test([19] * 8, lambda m: draw.random(20).tolist()))]
    assert len(p) == 2000
    for level in (0.01, 0.05, 0.1):
        assert np.mean(np.array(p) <= level) <= level + 3 * (level / 2000) ** 0.5


def test_copies_of_the_truth_come_first_with_it_and_count_in_what_chance_gives() -> None:
    alike = lambda message: np.array([0, 0, 1, 2])  # noqa: E731
    result = candidate_test([3] * 8, lambda message: [0.5, 0.5 + 1e-9, 1.0, 2.0], alike)
    assert result is not None and (result.count, result.compared) == (8, 8)
    assert result.chance == pytest.approx(0.5) and result.p == pytest.approx(0.5**8)
    behind = candidate_test([3] * 8, lambda message: [1.0, 1.0, 0.5, 2.0], alike)
    assert behind is not None and behind.count == 0
    # Nothing else is held.
    assert candidate_test([3] * 8, lambda message: [0.5] * 4, lambda message: np.zeros(4)) is None


def test_with_copies_the_false_alarms_of_who_prefers_popular_data_stay_below_the_level() -> None:
    """Half of a client's 40 examples are one picture, which is said to explain every message best."""
    draw, data = numpy_generator(0, "copies"), np.array([*[0] * 20, *range(1, 21)])
    p = []
    for _ in range(500):
        drawn = [draw.permutation(data)[:20] for _ in range(8)]
        values = lambda message, drawn=drawn: drawn[message].astype(float).tolist()  # noqa: E731
        if result := candidate_test([19] * 8, values, lambda message, drawn=drawn: drawn[message]):
            p.append(result.p)
    assert len(p) == 500
    for level in (0.01, 0.05, 0.1):
        assert np.mean(np.array(p) <= level) <= level + 3 * (level / 500) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("std", "verdict"), [(0.3, "identified"), (1e4, "undecided")])
def test_messages_point_to_their_data_where_clients_have_copies_of_them(
    tmp_path: Path, std: float, verdict: str
) -> None:
    rng = numpy_generator(0, "pictures")
    for label, i in np.ndindex(2, 10):
        pixels = rng.integers(0, 256, (2, 8, 8)).astype(np.uint8)
        for copy in range(12):
            save_picture(tmp_path / "all" / "train" / f"class-{label}" / f"{i}-{copy}.png", pixels[0])
        save_picture(tmp_path / "all" / "test" / f"class-{label}" / f"{i}.png", pixels[1])
    settings = (f"dp_gaussian.std={std}", "ig.iterations=20")
    game = {"images": 8, "attack": ("ig",), "defence": "dp_gaussian", "set": settings, "net": "mlp"}
    out = run.run(base(tmp_path / "run", dataset=f"folder:{tmp_path / 'all'}", audit_rounds="0", **game))
    (entry,) = [one for one in json.loads((out / "result.json").read_text())["audit"] if one["adaptive"]]
    assert outcome(entry) == verdict
    assert entry["candidate_test"]["null"] > 1.5 / 20  # of some 19 candidates, some are copies


def test_data_without_public_examples_are_refused_before_training(tmp_path: Path) -> None:
    rng = numpy_generator(0, "pictures")
    for label, i in np.ndindex(2, 12):
        pixels = rng.integers(0, 256, (8, 8)).astype(np.uint8)
        for part in ("train", "test"):
            save_picture(tmp_path / "same" / part / f"class-{label}" / f"{i}.png", pixels)
    with pytest.raises(InputError, match=r"no training examples, .* got none among 24 of folder:.*; add others"):
        run.run(base(tmp_path / "run", attack=("analytic",), dataset=f"folder:{tmp_path / 'same'}"))
    assert not (tmp_path / "run").exists()


class Half(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value * (torch.arange(value.numel()).view_as(value) % 2) for name, value in update.items()}


@pytest.mark.parametrize(("net", "informed"), [("mlp", False), ("lenet", False), ("lenet", True)])
def test_the_distance_at_a_guess_is_that_of_its_gradient(net: str, informed: bool) -> None:
    """Against a loop of plain autograd: of who is told, every second entry of each tensor is compared."""
    x, y = digits(100, 1, 8)
    (observation,), (knowledge,) = defended(net, Half(), [(x, y)], informed, 8)
    guesses = [x, *torch.rand(40, *x.shape, generator=torch_generator(0, "guesses"))]
    fits = IG(IGSettings(iterations=10)).objective(
        observation, knowledge, [Reconstruction(g, labels=y) for g in guesses], torch_generator(0, "objective")
    )
    assert fits is not None and (fits[0].distance == pytest.approx(0, abs=1e-5)) is informed
    model: nn.Module = knowledge.model.model
    model.load_state_dict(knowledge.model.known)
    for guess, fit in zip(guesses, fits, strict=True):
        model.zero_grad()
        cross_entropy(model(knowledge.model.inputs.normalise(guess)), y).backward()
        gradient = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        gradient = Half().update(gradient, torch_generator(0, "unused")) if informed else gradient
        sent = torch.cat([observation.sent[name].flatten() for name in gradient])
        mine = torch.cat([value.flatten() for value in gradient.values()])
        cosine = torch.cosine_similarity(sent, mine, dim=0)
        assert fit.distance == pytest.approx(1 - float(cosine), abs=2e-5)
        assert fit.objective >= fit.distance


# --- results exchanged between messages ---


def scored(recovers: Callable[[int, int], bool], close: Callable[[int, int], float]) -> Callable[[int, int], Fitting]:
    return lambda truth, result: Fitting(int(recovers(truth, result)), close(truth, result), close(truth, result))


def test_one_lucky_hit_among_alike_data_is_explained_by_chance() -> None:
    recovers = [0, 2, 3, 4, 5, 6, 7, 1]  # each result one example, and only the first one its own
    fit = scored(lambda truth, result: recovers[result] == truth, lambda truth, result: 25.0)
    outcome = exchange(8, fit, numpy_generator(0, "exchange"))
    assert outcome.p > 0.01 and outcome.beyond == 45.0


def test_two_alike_examples_do_not_hide_that_all_leak() -> None:
    fit = scored(lambda truth, result: truth == result or {truth, result} == {0, 1}, lambda truth, result: 30.0)
    assert exchange(8, fit, numpy_generator(0, "exchange")).p <= 0.01


def test_few_messages_cannot_exclude_luck_but_an_exact_result_is_none() -> None:
    fit = scored(lambda truth, result: True, lambda truth, result: 90.0 if truth == result else 30.0)
    outcome = exchange(3, fit, numpy_generator(0, "exchange"))
    assert outcome.p > 0.01 and outcome.beyond == 50.0  # 90 dB lie beyond
    assert exchange(1, fit, numpy_generator(0, "exchange")).p == 0.0


def test_guesses_without_knowledge_pass_as_rarely_as_said() -> None:
    draw = numpy_generator(0, "levels")
    wrong = 0
    for _ in range(300):
        truth, guess = draw.integers(0, 12, 8), draw.integers(0, 12, 8)

        def fit(i: int, j: int, truth: np.ndarray = truth, guess: np.ndarray = guess) -> Fitting:
            gap = -float(abs(truth[i] - guess[j]))
            return Fitting(int(gap == 0), gap, gap)

        hit = any(fit(i, i).recovered for i in range(8))
        wrong += hit and exchange(8, fit, draw).p <= 0.01
    assert wrong <= 300 * 0.02
