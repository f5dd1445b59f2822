"""ROG: small images whose enlargement has the gradient, the ceiling above them, and a post-processor of public data."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flfw.attacks.rog as module
from flfw import data
from flfw.adversary.attack import NotApplicableError
from flfw.attacks.rog import ROG, ROGSettings
from flfw.audit.measures.metrics import psnr
from flfw.errors import InputError
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import GeneratedVictim, PlainVictim
from flfw.inversion.post_processor import PostProcessor, PostTraining
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction, Truth
from flfw.runs import run as whole
from tests.attacks import test_attack_hyperfl as hyperfl
from tests.support.attackable import attackable, db, digits, generators, seen
from tests.support.csv_files import read_csv
from tests.support.small_runs import tiny
from tests.support.tables import attackable_rows

Case = tuple[list[Observation], list[Knowledge]]


def ceilings(attack: ROG, batches: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    best = [attack.ceiling(x) for x, _ in batches]
    return [psnr(x.numpy(), one.numpy()) for (x, _), one in zip(batches, best, strict=True) if one is not None]


@pytest.mark.slow
def test_it_finds_digits_behind_an_undefended_lenet() -> None:
    batches = [digits(0), digits(1)]
    attack = ROG()
    results = attack.run(*attackable("lenet", 28, *batches), generators(2))
    for (x, _), one, maximum in zip(batches, results, ceilings(attack, batches), strict=True):
        assert maximum - 4 < db(x, one) <= maximum
        assert one.matching_loss is not None and one.matching_loss < 0.02 and one.searched is None
    assert db(batches[0][0], results[1]) < 18  # each is its own digit


@pytest.mark.slow
def test_no_result_beats_the_ceiling() -> None:
    _check_ceiling(ROGSettings(sf=2), 4)


@pytest.mark.nightly  # three long searches for many victims
@pytest.mark.parametrize("settings", [{"sf": 2}, {"sf": 2, "boxed": False}, {"sf": 3, "restarts": 2}])
def test_no_long_search_beats_the_ceiling(settings: dict[str, Any]) -> None:
    for seed in (0, 1):
        _check_ceiling(ROGSettings(**settings, iterations=400), 12, seed)


def _check_ceiling(settings: ROGSettings, count: int, seed: int = 0) -> None:
    batches, attack = [digits(i, side=8) for i in range(count)], ROG(settings)
    results = attack.run(*attackable("lenet", 8, *batches), generators(count, seed))
    gaps = [maximum - db(x, r) for (x, _), r, maximum in zip(batches, results, ceilings(attack, batches), strict=True)]
    assert min(gaps) >= -1e-6 and np.median(gaps) < 6, gaps


@pytest.mark.slow
def test_a_batch_is_one_search() -> None:
    x, y = digits(0, 2, side=8)
    attack = ROG(ROGSettings(sf=2, iterations=300))
    (result,) = attack.run(*attackable("lenet", 8, (x, y)), generators(1))
    assert result.samples.shape == x.shape and result.labels is not None and result.labels.tolist() == y.tolist()
    assert db(x, result) > ceilings(attack, [(x, y)])[0] - 3


@pytest.mark.slow
def test_a_client_that_repeats_its_batch_is_unrolled() -> None:
    x, y = digits(0, side=8)
    (observation,), (knowledge,) = attackable("lenet", 8, (x, y))
    received = observation.received
    stepped = SteppedVictim(knowledge.model, received, LocalSteps(0.03, 5))
    change = stepped.gradient(x, y, {}, {})
    after = {name: received[name] - 0.03 * 5 * value for name, value in change.items()}
    stepwise = dataclasses.replace(knowledge, model=stepped, steps=5, weights=True, lr=0.03, unrolled=True)
    attack = ROG(ROGSettings(sf=2))
    (result,) = attack.run([seen(after, received)], [stepwise], generators(1))
    assert db(x, result) > ceilings(attack, [(x, y)])[0] - 3
    assert result.matching_loss is not None and result.matching_loss < 0.02


# --- a private head and a hypernetwork ---


def generated_case(net: str = "cnn1") -> tuple[Tensor, Case]:
    x, y = hyperfl.digits(net, 0)
    model = hyperfl.generated(net)
    received = hyperfl.hypernet(model)
    victim = GeneratedVictim(hyperfl.generated(net, seed=9), received, hyperfl.inputs_of(net))
    return x, ([seen(hyperfl.sent_by(model, net, x, y), received)], [Knowledge(victim, 1, y)])


@pytest.mark.nightly  # a search for a hypernetwork's embedding and classifier
def test_the_closed_form_finds_what_a_search_for_all_unknowns_misses() -> None:
    x, (observations, knowledge) = generated_case()
    blind = [dataclasses.replace(knowledge[0], labels=None)]
    attack = ROG(ROGSettings(private="closed_form"))
    (result,) = attack.run(observations, blind, generators(1))
    (joint,) = ROG().run(observations, knowledge, generators(1))
    assert result.labels is None and db(x, result) > 20
    assert db(x, joint) < db(x, result) - 5
    model = knowledge[0].model.model
    assert (attack.private(model, 1), attack.private(model, 2)) == ("not needed", "searched for in part")
    assert (ROG().private(model, 1), attack.labels, ROG().labels) == ("searched for", "not used", "given")
    assert attack.objective(observations[0], blind[0], [result], generators(1)[0]) is None


def test_the_closed_form_needs_one_gradient_without_a_defence() -> None:
    _, (observations, knowledge) = generated_case()
    attack = ROG(ROGSettings(private="closed_form"))
    with pytest.raises(NotApplicableError, match="one gradient that no defence changed"):
        attack.run(observations, [dataclasses.replace(knowledge[0], weights=True)], generators(1))
    with pytest.raises(NotApplicableError, match="needs images, got rows"):
        ROG().run(*attackable_rows(2)[:2], generators(1))


def test_it_is_static_where_a_part_of_it_knows_of_no_defence() -> None:
    closed, learnt = ROG(ROGSettings(private="closed_form")), ROG(ROGSettings(post="unet"))
    for attack, reason in (
        (ROG(), ""),
        (learnt, "the defence in the network behind the search, which learns from undefended clients"),
    ):
        assert attack.unused((), knows_defence=True) == reason and attack.unused((), knows_defence=False) == ""
        assert {"defence", "steps"} < attack.models
    assert closed.models == {"batch_statistics"}  # so no audit tells it of a defence


# --- the post-processor ---


def public_digits(first: int, count: int, side: int = 8) -> Examples:
    return Examples(*digits(first, count, side))


LEARNING = ROGSettings(sf=2, post="unet", pairs=64, post_epochs=30)


def with_public(case: Case, public: Examples) -> Case:
    return case[0], [dataclasses.replace(knowledge, public=public) for knowledge in case[1]]


@pytest.mark.nightly  # trained on 64 pairs, which are attacked first
def test_the_post_processor_improves_digits_that_it_has_not_seen() -> None:
    batches = [digits(i, side=8) for i in range(8)]
    case = with_public(attackable("lenet", 8, *batches), public_digits(100, 64))
    assert (LEARNING.post, ROG(LEARNING).uses, ROG().uses) == ("unet", {"public"}, frozenset())
    results = ROG(LEARNING).run(*case, generators(8))
    plain = ROG(dataclasses.replace(LEARNING, post="none")).run(*case, generators(8))
    gains = [db(x, one) - db(x, other) for (x, _), one, other in zip(batches, results, plain, strict=True)]
    assert np.mean(gains) > 1, gains
    for one, other in zip(results, plain, strict=True):  # the objective is the search's, not the network's
        assert one.searched is not None and torch.equal(one.searched, other.samples)
        assert one.matching_loss == other.matching_loss


@pytest.mark.slow
def test_no_truth_has_a_part_in_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The post-processor is the same, bit for bit, whichever images are behind the messages."""
    made = spied(monkeypatch)
    few = dataclasses.replace(LEARNING, pairs=16, post_epochs=1, iterations=20)
    public = public_digits(100, 20)
    for first in (0, 50):
        case = with_public(attackable("linear", 8, digits(first, side=8)), public)
        ROG(few).run(*case, generators(1, seed=first))
    (_, images, one), (_, others, other) = made
    assert torch.equal(images, others) and len(images) == 16
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
    held = {image.numpy().tobytes() for image in public.samples}
    assert all(image.numpy().tobytes() in held for image in images)
    assert len({image.numpy().tobytes() for image in images}) == 16


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor, PostProcessor]]:
    """Keep what post-processors are trained on, and the trained ones."""
    made, train = list[tuple[Tensor, Tensor, PostProcessor]](), module.trained

    def spy(results: Tensor, images: Tensor, training: PostTraining, rng: torch.Generator) -> PostProcessor:
        made.append((results, images, train(results, images, training, rng)))
        return made[-1][2]

    monkeypatch.setattr(module, "trained", spy)
    return made


def audited(folder: Path, *settings: str, attacks: Sequence[str] = ("rog",)) -> tuple[dict[str, Any], list[dict]]:
    changes = {"attack": tuple(attacks), "audit_rounds": "0", "attack_process": "inline"}
    whole.run(tiny(folder, **changes, set=("rog.iterations=10", *settings)))
    return json.loads((folder / "result.json").read_text()), read_csv(folder / "audit.csv")


@pytest.mark.nightly  # a post-processor for each control
def test_an_audit_trains_it_on_public_images_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = spied(monkeypatch)
    audited(tmp_path / "run", "rog.post=unet", "rog.pairs=8", "rog.post_epochs=1")
    dataset = data.load("digits", None)
    test, train = ({x.tobytes(): i for i, x in enumerate(part)} for part in (dataset.test_x, dataset.train_x))
    truths = [Truth.read(path.parent, path.stem) for path in sorted((tmp_path / "run" / "truth").glob("*target*"))]
    victims = {int(index) for truth in truths for index in truth.indices}
    assert made and len(victims) == 2
    for _, images, _ in made:
        raw = [(image * 255).round().byte().numpy().tobytes() for image in images]
        assert len({test[one] for one in raw}) == 8  # different test images, by their indices
        assert victims.isdisjoint(train[one] for one in raw if one in train)
    assert all((x * 255).round().byte().numpy().tobytes() in train for truth in truths for x in truth.samples)


@pytest.mark.slow
def test_an_audit_says_the_ceiling_beside_each_image(tmp_path: Path) -> None:
    result, rows = audited(tmp_path / "run", "ig.iterations=5", attacks=("rog", "ig"))
    by_attack = {entry["attack"]: entry for entry in result["audit"]}
    assert by_attack["ig"]["ceiling"] is None
    targets = [row for row in rows if row["attack"] == "rog" and row["rung"] == "target"]
    values = [float(row["ceiling"]) for row in targets]
    assert by_attack["rog"]["ceiling"] == pytest.approx(sum(values) / 2) and len(values) == 2
    assert all(float(row["psnr"]) <= float(row["ceiling"]) for row in targets)
    assert by_attack["rog"]["psnr"]["mean"] <= by_attack["rog"]["ceiling"]
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Ceiling, dB" in report
    reach = "This attack could not have recovered 2 of 2 images"  # of four times four pixels to one
    assert max(values) < 19 and by_attack["rog"]["search_limit"].startswith(reach) and report.count(reach) >= 1
    assert by_attack["ig"]["search_limit"] is None


@pytest.mark.parametrize(
    ("public", "match"),
    [(None, "needs public data"), (public_digits(0, 1), "needs public data"), (Examples(*digits(0, 4, 3)), "4 pixels")],
)
def test_a_post_processor_without_what_it_needs_is_refused(public: Examples | None, match: str) -> None:
    side = 3 if match == "4 pixels" else 8
    case = attackable("linear", side, digits(0, 2, side=side))
    with pytest.raises(NotApplicableError, match=match):
        ROG(dataclasses.replace(LEARNING, sf=1, iterations=2)).run(
            case[0], [dataclasses.replace(case[1][0], public=public)], generators(1)
        )


def test_settings_out_of_range_are_refused() -> None:
    wrong: dict[str, Any]
    for wrong in ({"iterations": 0}, {"sf": 0}, {"restarts": 0}, {"pairs": 0}, {"post_epochs": 0}):
        ((name, value),) = wrong.items()
        with pytest.raises(InputError, match=f"Expected {name} >= 1, got {name}={value}"):
            ROGSettings(**wrong)
    for wrong in ({"lr": 0.0}, {"post_lr": float("inf")}):
        ((name, _),) = wrong.items()
        with pytest.raises(InputError, match=f"Expected 0 < {name} < inf"):
            ROGSettings(**wrong)


@pytest.mark.slow
def test_the_objective_is_least_at_the_truth() -> None:
    (x, y), ((observation,), (knowledge,)) = digits(0, side=8), attackable("lenet", 8, digits(0, side=8))
    assert isinstance(knowledge.model, PlainVictim)
    attack, guesses = ROG(ROGSettings(sf=2)), [Reconstruction(x, labels=y), Reconstruction(torch.rand(x.shape))]
    (result,) = attack.run([observation], [knowledge], generators(1))
    values = attack.objective(observation, knowledge, [guesses[0], result, guesses[1]], generators(1)[0])
    assert values is not None and values[0].objective < 1e-10 < values[1].objective < values[2].objective
    assert values[1].objective == pytest.approx(result.matching_loss, rel=0.1)  # clamped
