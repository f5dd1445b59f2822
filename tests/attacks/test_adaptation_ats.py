"""The adaptation to ats: signs and sequences chosen without the truth, what is undone, what is lost, and the audit."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sim
from flfw.attacks.adaptations.ats import ATSAdaptation
from flfw.attacks.ig import IG, IGSettings
from flfw.audit.adaptation import adapted, defence_operator
from flfw.audit.jobs import EXAMPLE, AttackJob, Exchange, ProbeSet, solved
from flfw.audit.knowledge import restored
from flfw.audit.queue import Queue
from flfw.audit.reconstruction.control_runs import _distances
from flfw.clients.defences.ats import ATS, ATSSettings
from flfw.data.transformations import patterns, replayed, sequences
from flfw.experiment import Experiment
from flfw.files.outcomes import outcome
from flfw.plans.run_plan import plan
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction, Truth
from flfw.rng import torch_generator
from flfw.runs import run as whole
from tests.support.attackable import attackable, db, digits, generators
from tests.support.planned import clients_and_adaptation

TARGET = ProbeSet("target", 0, "", 1, 1, "target")


def told(policy: str) -> ATSAdaptation:
    return ATSAdaptation({"policy": policy})


def scenes(count: int = 4, channels: int = 1, side: int = 16) -> Tensor:
    """Smooth images of bytes whose levels reach from 0.25 to 0.7: nothing is clipped, no margin is black."""
    coarse = torch.rand(count, channels, 4, 4, generator=torch_generator(0, "scenes"))
    fine = torch.nn.functional.interpolate(coarse, side, mode="bicubic", align_corners=False)
    low, high = fine.amin((1, 2, 3), keepdim=True), fine.amax((1, 2, 3), keepdim=True)
    return ((0.25 + 0.45 * (fine - low) / (high - low)) * 255).round() / 255


def closeness(x: Tensor, guess: Tensor) -> list[float]:
    """PSNR of each image."""
    return (-10 * (x - guess).square().flatten(1).mean(1).clamp(min=1e-12).log10()).tolist()


# --- undoing ---


def test_the_identity_is_left_alone() -> None:
    x = torch.rand(3, 3, 8, 8, generator=torch_generator(0, "any"))
    assert all(torch.equal(told(policy).restored(x, None), x) for policy in ("28", "39", "28-39"))


@pytest.mark.parametrize(("policy", "minimum"), [("0", 100), ("0-29", 100), ("11", 40), ("28-0-11", 40)])
def test_policies_without_signs_are_undone(policy: str, minimum: float) -> None:
    x = scenes()
    y = replayed(x, next(patterns(sequences(policy))))
    assert min(closeness(x, told(policy).restored(y, None))) > minimum


def test_the_black_margin_shows_which_way_an_image_was_moved() -> None:
    x = scenes()
    for policy, lost in (("3", (7, 0)), ("21", (4, 0)), ("7", (0, 2)), ("24", (0, 2)), ("3-7", (7, 2))):
        for steps in patterns(sequences(policy)):
            back = told(policy).restored(replayed(x, steps), None)
            across, down = ([step.sign for step in steps if step.operation.name == f"translate{axis}"] for axis in "XY")
            signs = (across or [1])[0], (down or [1])[0]
            width, height = (
                slice(n, None) if sign == 1 else slice(None, 16 - n) for n, sign in zip(lost, signs, strict=True)
            )
            torch.testing.assert_close(back[..., height, width], x[..., height, width], atol=0.002, rtol=0)


@pytest.mark.parametrize("policy", ["13", "15", "1", "18", "3-1-7", "43-18-18"])
def test_with_public_examples_the_signs_of_enhancements_are_chosen_by_them(policy: str) -> None:
    x, public = scenes(), scenes(40)[4:]
    for steps in patterns(sequences(policy)):
        y = replayed(x, steps)
        informed = closeness(x, told(policy).restored(y, public))
        assert sum(informed) / 4 > sum(closeness(x, y)) / 4 + (5 if "-" in policy else 8)
        assert sum(informed) >= sum(closeness(x, told(policy).restored(y, None))) - 1


def test_brightness_that_would_have_been_clipped_shows_its_sign() -> None:
    x = scenes() / 0.7
    x = (x.clamp(max=1) * 255).round() / 255
    (up,), (down,) = patterns(sequences("13"))  # times 1.28 and 0.72
    assert min(closeness(x, told("13").restored(replayed(x, [down]), None))) > 40
    bright = replayed(x * 0.7, [up])  # up to 0.89: 0.72 of nothing
    assert min(closeness(x * 0.7, told("13").restored(bright, None))) > 40


def test_the_sequence_of_a_hybrid_is_recognised() -> None:
    x = scenes()
    policy = "3-0+24-15"
    for steps in patterns(sequences(policy)):
        back = told(policy).restored(replayed(x, steps), None)
        alone = "3-0" if steps[0].operation.grade == 9 else "24-15"
        assert torch.equal(back, told(alone).restored(replayed(x, steps), None))


def test_an_image_is_undone_by_itself_and_colour_and_noise_do_no_harm() -> None:
    x = scenes(3, channels=3)
    y = torch.cat(
        [replayed(one, steps) for one, steps in zip(x.split(1), patterns(sequences("21-0-24")), strict=False)]
    )
    y = (y + 0.01 * torch.randn(y.shape, generator=torch_generator(0, "error"))).clamp(0, 1)
    back = told("21-0-24").restored(y, None)
    assert torch.equal(back, torch.cat([told("21-0-24").restored(one, None) for one in y.split(1)]))
    assert min(closeness(x, back)) > max(closeness(x, y)) + 5


def test_what_is_destroyed_is_not_brought_back() -> None:
    x = scenes() / 0.7
    policy = "37-40-9-37"  # bright and dark become one, then the histogram goes
    (steps,) = patterns(sequences(policy))
    assert max(closeness(x, told(policy).restored(replayed(x, steps), None))) < 20


# --- what an audit compares ---


def test_the_versions_of_a_batch_are_all_that_the_client_may_have_made_of_it() -> None:
    x = scenes(2)
    known = [replayed(x, steps) for steps in patterns(sequences("3+0"))]
    versions = told("3+0").versions(x)
    expected = [torch.cat([one[:1], other[1:]]) for one, other in product(known, repeat=2)]
    assert len(versions) == 9 and all(torch.equal(a, b) for a, b in zip(versions, expected, strict=True))
    assert told("3-1-7").versions(scenes(3)) == [] and len(told("3-1-7").versions(scenes(1))) == 8


def test_a_result_is_compared_with_all_versions_of_each_sample() -> None:
    x, operator = scenes(2), told("3-1-7")
    versions = [[replayed(one, steps) for steps in patterns(sequences("3-1-7"))] for one in x.split(1)]
    result = torch.cat([versions[1][5], versions[0][2]])
    expected = [[min(float((v - y).square().mean()) ** 0.5 for v in mine) for y in result] for mine in versions]
    distances = operator.augmentation_distance(x, result)
    torch.testing.assert_close(distances, torch.tensor(expected))
    assert distances.diagonal().min() > 0.01 > distances.flip(1).diagonal().max()
    alike = torch.tensor([4, 4])
    guesses = [Truth(samples, alike, torch.arange(2)) for samples in (x, x.flip(0) * 0.5)]
    truth, other = _distances(operator, Reconstruction(x, searched=result), guesses) or [0.0, 0.0]
    assert truth < 1e-9 < other
    apart = [Truth(x, torch.tensor([4, 5]), torch.arange(2))]
    labelled = Reconstruction(x, searched=result, labels=torch.tensor([4, 5]))
    assert (_distances(operator, labelled, apart) or [0.0])[0] > 1e-4  # not its own label's result
    assert _distances(None, labelled, apart) is None and _distances(operator, Reconstruction(x), apart) is None


@pytest.mark.nightly
def test_a_long_policy_whose_images_are_identified_has_no_clean_verdict(tmp_path: Path) -> None:
    flags = "--engine inproc --method fedavg --net lenet --dataset digits --image-size 8 --clients 8 --rounds 1"
    flags += " --local-epochs 1 --images 8 --audit-rounds 0 --defence ats --attack ig"
    settings = ["ats.policy=3-1-7-18-13-5-14", "ig.iterations=600"]
    assert sim.main([*flags.split(), "--set", *settings, "--out", str(tmp_path / "run")]) == 0
    entries = json.loads((tmp_path / "run" / "result.json").read_text())["audit"]
    (informed,) = [entry for entry in entries if entry["adaptation"] == "written"]
    assert outcome(informed) == "identified" and informed["candidate_test"]["first"] >= 6


def transformed_digit(policy: str) -> tuple[Tensor, Tensor, list[Observation], list[Knowledge]]:
    """A digit, what the defence makes of it, and what an attacker who is told of it sees and knows."""
    x, y = digits(3, side=8)
    x = (x * 255).round() / 255
    changed, _ = ATS(ATSSettings(policy)).batch(x, y, torch_generator(0, "ats"))
    seen, known = attackable("linear", 8, (changed, y))
    return x, changed, seen, [replace(one, operator=told(policy)) for one in known]


@pytest.mark.slow
def test_a_told_search_is_the_search_of_who_is_not_told_and_is_undone_at_its_end() -> None:
    x, changed, seen, known = transformed_digit("13-0")
    attack = IG(IGSettings(iterations=300))
    (searched,) = attack.run(seen, known, generators(1))
    (plain,) = attack.run(seen, [replace(known[0], operator=None)], generators(1))
    assert torch.equal(searched.samples, plain.samples) and db(changed, searched) > 40
    result = restored(searched, known[0])
    assert result.searched is searched.samples and db(x, result) > db(x, searched) + 10
    lost = Reconstruction(torch.full_like(x, torch.nan))
    assert restored(lost, known[0]) is lost and restored(searched, replace(known[0], operator=None)) is searched
    public = Examples(digits(100, 50, side=8)[0], torch.zeros(50))
    expected = told("13-0").restored(searched.samples, public.samples).clamp(0, 1)
    assert torch.equal(restored(searched, replace(known[0], public=public)).samples, expected)


def test_what_the_attack_gives_without_a_message_is_undone_as_well_and_counts_as_it_is() -> None:
    x, changed, _, known = transformed_digit("13-0")
    result = restored(Reconstruction(changed, unguided=changed), known[0])
    assert result.unguided is not None and len(result.unguided) == 2
    assert torch.equal(result.unguided[:1], changed) and torch.equal(result.unguided[1:], result.samples)
    assert db(x, Reconstruction(result.unguided[1:])) > db(x, Reconstruction(changed)) + 10
    untold = restored(Reconstruction(changed, unguided=changed), replace(known[0], operator=None))
    assert untold.unguided is changed


def test_the_objective_is_that_of_the_version_that_fits_best() -> None:
    x, changed, seen, known = transformed_digit("3-0")
    other = digits(7, side=8)[0]
    guesses = [Reconstruction(x), Reconstruction(other), Reconstruction(other, searched=changed)]
    attack, rng = IG(), torch_generator(0, "objective")
    fits = attack.objective(seen[0], known[0], guesses, rng)
    assert fits is not None and fits[0].distance < 1e-6 < 1e-3 < fits[1].distance and fits[2].distance < 1e-6
    untold = attack.objective(seen[0], replace(known[0], operator=None), guesses[:1], rng)
    assert untold is not None and untold[0].distance > 1e-2
    many = replace(known[0], operator=told("3-1-7-21-24-13-15"))
    assert attack.objective(seen[0], many, guesses[:1], rng) is None


def asked(**changes: Any) -> Experiment:
    details = {"method": "fedavg", "net": "linear", "image_size": 8, "engine": "inproc", "clients": 2, "rounds": 1}
    details |= {"local_epochs": 1, "images": 2, "audit_rounds": "0", "defence": "ats"}
    return Experiment(**{**details, **changes})


def test_it_counts_as_written_for_one_step() -> None:
    run_plan, example = plan(asked()), ProbeSet("target", 0, "", 1, 1, EXAMPLE)
    assert (
        adapted(*clients_and_adaptation(run_plan), TARGET, "server")
        == adapted(*clients_and_adaptation(run_plan), example, "client_example")
        == "written"
    )
    assert adapted(*clients_and_adaptation(run_plan), ProbeSet("target", 0, "", 1, 4, "target"), "server") == "none"
    for way in ("none", "defence_code"):
        assert adapted(*clients_and_adaptation(plan(asked(adaptation=way))), TARGET, "server") == "none"
    assert isinstance(defence_operator(*clients_and_adaptation(run_plan), TARGET, "server", -0.5), ATSAdaptation)


def test_the_result_of_the_search_is_stored_beside_the_restored_one(tmp_path: Path) -> None:
    queue, samples = Queue(tmp_path / "queue"), torch.rand(1, 1, 2, 2, generator=torch_generator(0, "stored"))
    exchanges = (Exchange("a", 0, 0, None), Exchange("b", 1, 1, None))
    job = AttackJob("ig", TARGET, exchanges, Path("none"), Experiment().to_run_config(), (1, 2, 2), 10, (0.5,), (0.5,))
    queue.put(job)
    queue.solve(job, solved(job, [Reconstruction(samples, searched=1 - samples), Reconstruction(samples)], 0.0))
    result = queue.solution(job)
    assert result is not None
    first, second = result.reconstructions
    assert first is not None and first.searched is not None and torch.equal(first.searched, 1 - samples)
    assert second is not None and second.searched is None


@pytest.mark.slow
def test_an_audit_through_ats_finds_what_can_be_undone(tmp_path: Path) -> None:
    policy = ("ats.policy=13-0", "ig.iterations=300")
    folder = whole.run(asked(out=tmp_path / "run", set=policy))
    static, adaptive = json.loads((folder / "result.json").read_text())["audit"]
    assert (static["adaptive"], outcome(static)) == (False, "static")
    assert (adaptive["adaptation"], adaptive["verdict"]) == ("written", "leaks")
    assert adaptive["psnr"]["mean"] > static["psnr"]["mean"] + 10
    assert "with what is written for it" in adaptive["granted"][-1]
