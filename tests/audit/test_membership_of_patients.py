"""The membership game with patients: whole ones are held out, and each has one score."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import sim
from flfw.audit.membership.candidates import GameCandidates, untrained_pairs
from flfw.audit.membership.entry import claim_against
from flfw.data.membership_pairs import PatientGame, PatientPairs, game, without_held_out
from flfw.errors import InputError
from flfw.plans.run_plan import plan
from flfw.runs.run import stored
from tests.support.pictures import noise, save

# six patients with two examples each at two clients; patient 5 has an example of class 1
LABELS = np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])
PATIENTS = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7])
TRAIN = (np.arange(8), np.arange(8, 16))


def drawn() -> list[PatientGame]:
    return [one for one in game(TRAIN, LABELS, 0, None, patients=PATIENTS) if isinstance(one, PatientGame)]


def test_patients_are_held_out_whole() -> None:
    games = drawn()
    for one, indices in zip(games, without_held_out(TRAIN, games), strict=True):
        assert one.count == 2 and len(one.places) == 8
        assert sorted(set(PATIENTS[indices])) == sorted(one.pairs.members)
        assert sorted(indices) == sorted(one.members) and len(indices) == 4
        assert not set(one.members) & set(one.held_out)


def test_too_few_patients_and_patients_at_two_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"Expected 4 patients or more at each client .* got 3 at client 0"):
        game((np.arange(6),), LABELS, 0, None, patients=PATIENTS)
    with pytest.raises(InputError, match="each patient at one client"):
        game((np.arange(0, 9), np.arange(9, 16)), LABELS, 0, None, patients=PATIENTS)


def candidates() -> GameCandidates:
    """Patients 4 (0, 0), 5 (0, 1), 6 (0, 0) and 7 (0) of client 3, the pairs 4 with 6 and 7 with 5."""
    labels, patients = torch.tensor([0, 0, 0, 1, 0, 0, 0]), torch.tensor([4, 4, 5, 5, 6, 6, 7])
    pairs = PatientPairs(np.array([4, 7]), np.array([6, 5]), np.array([0, 2]))
    return GameCandidates(torch.zeros(7, 1), labels, torch.full((7,), 3), patients, {3: pairs}, {})


def test_a_patient_has_the_mean_of_its_examples_z_scores() -> None:
    """Class 0 has the mean 2 and class 1 its only score; the deviation is sqrt(4 / 7)."""
    scored, _ = candidates().scored(3, [3.0, 3.0, 1.0, 5.0, 1.0, 2.0, 2.0], "cosine")
    assert (scored.members * np.sqrt(4 / 7)).tolist() == pytest.approx([1.0, 0.0])
    assert (scored.held_out * np.sqrt(4 / 7)).tolist() == pytest.approx([-0.5, -0.5])


def test_mixes_of_classes_that_labels_tell_apart_differ_by_labels_alone() -> None:
    """The share of class 0 is 0.6 and of class 1 0.4: patients 4, 6 and 7 are alike, of one or two examples."""
    scored, _ = candidates().scored(3, [0.6, 0.6, 0.6, 0.4, 0.6, 0.6, 0.6], "label_only")
    assert (scored.members.tolist(), scored.held_out.tolist()) == ([0.6, 0.6], [0.6, 0.5])


def test_bands_of_a_numeric_target_stand_for_classes() -> None:
    """All seven targets differ: as classes of their own each z-score would be zero, and labels would tell all apart."""
    numbers = torch.tensor([0.11, 0.12, 0.13, 0.91, 0.14, 0.15, 0.16])
    bands = torch.tensor([0, 0, 0, 1, 0, 0, 0])
    banded, scores = replace(candidates(), labels=numbers, classes=bands), [3.0, 3.0, 1.0, 5.0, 1.0, 2.0, 2.0]
    played, known = banded.scored(3, scores, "cosine")[0], candidates().scored(3, scores, "cosine")[0]
    assert (played.members.tolist(), played.held_out.tolist()) == (known.members.tolist(), known.held_out.tolist())
    assert played.members[0] > 0 > played.held_out[0]
    floor, _ = banded.scored(3, [0.5, 0.6, 0.7, 0.4, 0.5, 0.6, 0.7], "label_only")
    assert (floor.members.tolist(), floor.held_out.tolist()) == ([0.6, 0.6], [0.6, 0.5])


def test_a_patient_with_a_score_that_is_none_has_none() -> None:
    scored, _ = candidates().scored(3, [np.nan, 3.0, 1.0, 5.0, 1.0, 2.0, 2.0], "cosine")
    assert np.isnan(scored.members).tolist() == [True, False] and np.isfinite(scored.held_out).all()
    with pytest.raises(ValueError, match="1 scores for 7 candidates of client 3"):
        candidates().scored(3, [0.0])


def test_the_null_control_pairs_patients_whom_other_clients_hold_out() -> None:
    """Nobody trained on them; client 0 gets those of client 1, and their scores come apart from the game's."""
    games = drawn()
    (null,) = untrained_pairs(games, [0], LABELS, 0).values()
    assert isinstance(null, PatientGame) and null.count == 1
    there = {*null.pairs.members.tolist(), *null.pairs.held_out.tolist()}
    assert there == set(games[1].pairs.held_out.tolist())
    assert sorted(null.places.tolist()) == sorted(games[1].held_out.tolist())
    whose = np.concatenate([games[0].owners, null.owners])
    shown = GameCandidates(
        torch.zeros(len(whose), 1),
        torch.zeros(len(whose), dtype=torch.int64),
        torch.zeros(len(whose), dtype=torch.int64),
        torch.from_numpy(whose.astype(np.int64)),
        {0: games[0].pairs},
        {0: null.pairs},
    )
    played, untrained = shown.scored(0, whose.astype(float).tolist())
    assert (len(played.members), len(untrained.members)) == (2, 1)
    both = [*untrained.members.tolist(), *untrained.held_out.tolist()]
    assert np.argsort(both).tolist() == np.argsort([*null.pairs.members, *null.pairs.held_out]).tolist()


def test_a_claim_for_an_example_covers_no_patient() -> None:
    common = {"adversary": "server", "accounting": "exact", "delta": 1e-5}
    claims = [
        {"unit": "example", "epsilon": 1.0},
        {"unit": "patient", "epsilon": 5.0},
        {"unit": "client", "epsilon": 7},
    ]
    privacy = [common | claim for claim in claims]
    assert claim_against(privacy, "server") == (1.0, 1e-5)
    assert claim_against(privacy, "server", "patient") == (5.0, 1e-5)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve patients of two classes, three images each, one of the first class with an image of the second."""
    folder = tmp_path_factory.mktemp("scans")
    for patient in range(12):
        for image in range(3):
            kind = "b" if patient % 2 or (patient, image) == (0, 0) else "a"
            save(folder / kind / f"p{patient}" / f"{image}.png", np.roll(noise(8, 8), 5 * patient + image))
    return folder


@pytest.mark.slow
def test_a_run_with_patients_compares_patients(
    scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = f"--method fedavg --dataset folder:{scans}@patient --split iid --net linear --engine inproc --clients 2"
    flags = f"{run} --rounds 1 --audit-rounds 1 --attack membership --set membership.public=6 membership.width=8"
    assert sim.main([*flags.split(), "--out", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert " pairs of patients" in capsys.readouterr().out
    assert {(item["unit"], item["clients"]) for item in result["membership"]} == {("patient", 2)}
    task = plan(stored(tmp_path / "run")).task.load(None)
    assert task.pairs is not None and task.split.patients is not None
    held_out = {int(one) for game in task.pairs for one in task.split.patients[game.held_out]}
    trained = {int(one) for indices in task.split.train for one in task.split.patients[indices]}
    assert held_out and not held_out & trained
    counts = {item["pairs"] for item in result["membership"]}
    assert counts == {sum(game.count for game in task.pairs)}
    page = (tmp_path / "run" / "report.html").read_text()
    assert (
        "Pairs of patients of one client" in page
        and "membership of single patients" in page
        and "one client and one class" not in page
    )
