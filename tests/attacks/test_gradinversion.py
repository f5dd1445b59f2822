"""GradInversion: a batch behind BatchNorm in training, the statistics it uses, its labels, and its recipe."""

import dataclasses
import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flfw.adversary.attack import AttackCost, NotApplicableError
from flfw.attacks.gradinversion import GradInversion, GradInversionSettings, GroupConsistency
from flfw.audit.measures.recovery import assign
from flfw.inversion.client_models.batch_statistics import normalise_by_batch
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.matching import tensor_distances
from flfw.inversion.search import SearchResult
from flfw.nets.net import Net, tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.rng import initialising
from flfw.runs import run as whole
from tests.support.attackable import KnownNoise, digit_inputs, digits, generators, gradient, seen
from tests.support.small_runs import tiny


def shallow(shape: tuple[int, ...], classes: int) -> Net:
    """Build a wide, shallow network with BatchNorm, on which the search must succeed."""
    layers = [nn.Conv2d(shape[0], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
    return Net(nn.Sequential(*layers), nn.Linear(16 * (shape[1] // 2) ** 2, classes))


def normalised(seed: int = 1) -> Net:
    with initialising(seed, "net"):
        return shallow((1, 8, 8), 10)


def probed(*batches: tuple[Tensor, Tensor], by_batch: bool = True) -> tuple[list[Observation], list[Knowledge]]:
    inputs = digit_inputs(8)
    received = {name: value.clone() for name, value in tensors(normalised()).items()}
    victim = PlainVictim(normalised(9), received, ("*",), inputs)
    if by_batch:
        normalise_by_batch(victim)
    sent = [gradient(normalised(), inputs, x, y) for x, y in batches]
    observations = [seen(one, received, i) for i, one in enumerate(sent)]
    return observations, [Knowledge(victim, len(y), None) for _, y in batches]


def error(x: Tensor, samples: Tensor) -> float:
    """Root mean square error of images, each with its own."""
    return float((x - samples[assign(x.numpy(), samples.numpy())]).square().mean().sqrt())


FEW = GradInversionSettings(iterations=200, restarts=1)


@pytest.mark.slow
def test_it_finds_a_batch_in_training_mode_without_its_labels() -> None:
    x, y = digits(4, 2, side=8)
    (result,) = GradInversion(FEW).run(*probed((x, y)), generators(1))
    assert result.labels is not None and result.labels.tolist() == y.sort().values.tolist()
    assert error(x, result.samples) < 1e-3


@pytest.mark.nightly  # two searches
def test_who_normalises_by_the_running_statistics_does_not_find_it() -> None:
    x, y = digits(4, 2, side=8)
    (observation,), (knowledge,) = probed((x, y), by_batch=False)
    (result,) = GradInversion(FEW).run([observation], [knowledge], generators(1))
    assert error(x, result.samples) > 0.1
    (together,) = GradInversion(dataclasses.replace(FEW, restarts=2)).run(*probed((x, y)), generators(1))
    assert error(x, together.samples) < 1e-2


@pytest.mark.nightly  # three searches
def test_statistics_of_the_clients_batch_lead_nearer_than_none_or_those_of_other_data() -> None:
    """By the truth; the gradient determines these data, so that a longer search would do without."""
    x, y = digits(4, 4, side=8)
    observation, (knowledge,) = _after_a_step(x, y), probed((x, y))[1]
    knowledge = dataclasses.replace(knowledge, labels=y, weights=True, lr=0.1)
    errors = {}
    for name, settings in {"none": {"bn": 0.0}, "inferred": {}, "running": {"statistics": "running"}}.items():
        attack = GradInversion(dataclasses.replace(FEW, labels="given", **settings))
        (result,) = attack.run([observation], [knowledge], generators(1))
        errors[name] = error(x, result.samples)
    assert errors["inferred"] < 1e-3 < min(errors["none"], errors["running"]), errors


@pytest.mark.nightly  # three searches
def test_running_statistics_of_other_data_do_not_keep_it_from_a_batch() -> None:
    """The client is in evaluation mode, and its fresh running statistics of 0 and 1 are those of no data."""
    x, y = digits(4, 4, side=8)
    observations, known = _in_evaluation(x, y)
    errors: dict[int, float] = {}
    for restarts in (2, 1):
        attack = GradInversion(GradInversionSettings(200, restarts=restarts, labels="given"))
        (result,) = attack.run(observations, known, generators(1))
        errors[restarts] = error(x, result.samples)
    assert errors[2] < 1e-3 < 0.1 < errors[1], errors


def _in_evaluation(x: Tensor, y: Tensor) -> tuple[list[Observation], list[Knowledge]]:
    inputs, received = digit_inputs(8), {name: value.clone() for name, value in tensors(normalised()).items()}
    victim = PlainVictim(normalised(9), received, ("*",), inputs)
    sent = {name: value.detach() for name, value in victim.gradient(x, y, {}, {}).items()}
    return [seen(sent, received)], [Knowledge(victim, len(y), y)]


def test_the_starts_are_divided_only_where_the_statistics_may_be_those_of_other_data() -> None:
    x, y = digits(4, 2, side=8)
    _, (knowledge,) = probed((x, y))

    def parts(knowledge: Knowledge, operator: Operator | None = None, **settings: Any) -> list[tuple[int, bool]]:
        recipes = GradInversion(GradInversionSettings(**settings)).recipes(knowledge, operator)
        assert all(isinstance(one.together, GroupConsistency) for one in recipes)
        assert all(one.together.starts == one.restarts for one in recipes if isinstance(one.together, GroupConsistency))
        return [(one.restarts, one.model_prior is not None) for one in recipes]

    assert parts(knowledge) == [(2, True), (2, False)] and parts(knowledge, restarts=5) == [(3, True), (2, False)]
    assert parts(knowledge, restarts=1) == [(1, True)] and parts(knowledge, bn=0.0) == [(4, False)]
    step = dataclasses.replace(knowledge, weights=True, lr=0.1)
    assert parts(step) == [(4, True)] and parts(step, statistics="running") == [(2, True), (2, False)]
    assert parts(dataclasses.replace(step, steps=2)) == [(2, True), (2, False)]
    assert parts(knowledge, KnownNoise({})) == [(4, True)]
    private = {name: value for name, value in knowledge.model.known.items() if "running" not in name}
    hidden = dataclasses.replace(knowledge, model=PlainVictim(normalised(9), private, ("*",), digit_inputs(8)))
    assert parts(hidden) == [(4, True)]


@pytest.mark.parametrize(
    ("led", "free", "counts"), [(1.0, 0.4, 0.4), (1.0, 0.6, 1.0), (inf, 0.4, 0.4), (inf, inf, inf), (1.0, inf, 1.0)]
)
def test_a_search_without_the_statistics_counts_where_it_is_much_nearer(led: float, free: float, counts: float) -> None:
    results = [SearchResult(torch.zeros(1, 1, 8, 8), one, torch.zeros(1), 1) for one in (led, free)]
    assert GradInversion().counting(results).matching_loss == counts
    assert GradInversion().counting(results[:1]).matching_loss == led


def _after_a_step(x: Tensor, y: Tensor, lr: float = 0.1) -> Observation:
    """What a client uploads after one step of plain SGD, its running statistics among it."""
    inputs, client = digit_inputs(8), normalised().train()
    received = {name: value.clone() for name, value in tensors(client).items()}
    sent = gradient(client, inputs, x, y)
    after = {n: v.clone() for n, v in client.state_dict().items()}
    return seen({**after, **{name: received[name] - lr * value for name, value in sent.items()}}, received)


def test_an_upload_of_one_step_reveals_the_batchs_statistics() -> None:
    x, y = digits(0, 4, side=8)
    _, (knowledge,) = probed((x, y))
    observation = _after_a_step(x, y)
    weights = dataclasses.replace(knowledge, weights=True, lr=0.1)
    with torch.no_grad():
        first = normalised().extractor.get_submodule("0")(digit_inputs(8).normalise(x))
    inferred = GradInversion().prior_constants(observation, weights)
    torch.testing.assert_close(inferred["batch_norm.mean.extractor.1"], first.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    variance = first.transpose(0, 1).flatten(1).var(1)
    torch.testing.assert_close(inferred["batch_norm.variance.extractor.1"], variance, rtol=1e-4, atol=1e-5)
    running = GradInversion(GradInversionSettings(statistics="running")).prior_constants(observation, weights)
    assert running.keys() == inferred.keys() and not bool(running["batch_norm.mean.extractor.1"].any())
    for other in ({"steps": 2}, {"weights": False}, {"operator": KnownNoise({})}):
        less = GradInversion().prior_constants(observation, dataclasses.replace(weights, **other))
        assert not bool(less["batch_norm.mean.extractor.1"].any())


def test_known_noise_is_counted_in_deviations() -> None:
    one, zero = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    attack = GradInversion()
    assert float(attack.recipe(None).distance(one, zero)) == pytest.approx(2**0.5)
    assert attack.recipe(None).distance is tensor_distances
    noisy = attack.recipe(KnownNoise({}))
    assert float(noisy.distance(one, zero)) == pytest.approx(2 / (2 * 0.25))
    assert noisy.model_prior is not None
    assert GradInversion(GradInversionSettings(bn=0)).recipe(None).model_prior is None


@pytest.mark.slow
def test_labels_that_repeat_are_counted_and_refused_as_unique_ones() -> None:
    x, y = digits(0, 4, side=8)
    y = torch.tensor([3, 3, 5, 7])
    observations, known = probed((x, y))
    (result,) = GradInversion(GradInversionSettings(2, restarts=1)).run(observations, known, generators(1))
    assert result.labels is not None and result.labels.tolist() == [3, 3, 5, 7]
    with pytest.raises(NotApplicableError, match="unique needs 4 labels that all differ"):
        GradInversion(GradInversionSettings(2, restarts=1, labels="unique")).run(observations, known, generators(1))


def test_its_objective_at_the_truth_holds_the_statistics_but_the_distance_does_not() -> None:
    x, y = digits(4, 4, side=8)
    (observation,), (knowledge,) = probed((x, y))
    granted = dataclasses.replace(knowledge, labels=y)
    attack = GradInversion(GradInversionSettings(labels="given"))
    fits = attack.objective(observation, granted, [Reconstruction(x), Reconstruction(1 - x)], generators(1)[0])
    assert fits is not None
    truth, other = fits
    assert truth.distance < 1e-4 < other.distance and truth.objective > 0.1  # running statistics are not the batch's
    without = GradInversion(GradInversionSettings(labels="given", bn=0))
    fits = without.objective(observation, granted, [Reconstruction(x)], generators(1)[0])
    assert fits is not None and fits[0].objective < 1e-3


def test_its_budget_and_its_labels_are_what_was_set() -> None:
    attack = GradInversion(GradInversionSettings(7, restarts=3))
    assert attack.cost == AttackCost(7, 3, "lowest distance of gradients") and attack.labels == "recovered"
    assert "batch_statistics" in attack.models


@pytest.mark.nightly  # an audit, twice
def test_an_audit_of_uploads_of_one_step_grants_the_running_statistics_before_and_after(tmp_path: Path) -> None:
    """All else is the same, so that the results differ by the statistics alone."""
    few = {
        "split": "sampled",
        "batch_size": 4,
        "images": 1,
        "audit_source": "update",
        "image_size": 8,
        "audit_rounds": "1",
    }
    few |= {"net": "tests.inversion.test_batch_statistics:convolutional", "attack": ("gradinversion",)}
    settings = ("sampled.train=4", "gradinversion.iterations=50", "gradinversion.restarts=1")
    means = []
    for way in ("inferred", "running"):
        run = tiny(tmp_path / way, **few, set=(*settings, f"gradinversion.statistics={way}"))
        (entry,) = json.loads((whole.run(run) / "result.json").read_text())["audit"]
        assert (entry["steps"], entry["batch"], entry["failures"]) == (1, 4, 0) and entry["adaptive"]
        means.append(entry["psnr"]["mean"])
    assert abs(means[0] - means[1]) > 0.01
