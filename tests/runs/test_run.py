"""Whole runs from the command line: files, exit codes, and what a script outside reads."""

import csv
import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest

import sim
from flfw import plugins
from flfw.comparisons import matrices
from flfw.comparisons.matrices import PreparedMatrix
from flfw.comparisons.question import Matrix
from flfw.deploy.rehearsal import plan_rehearsal
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.folders import claimed
from flfw.files.outcomes import outcome
from flfw.recording.observation import Truth
from flfw.runs import run as module
from flfw.runs.listing import about
from flfw.runs.run_notes import best_validation
from tests.support.small_runs import run_command as run

AUDITED = (
    "--method fedavg --net lenet --engine inproc --clients 2 --rounds 1 --local-epochs 1 --attack analytic ig "
    "--images 2 --set ig.iterations=60"
)
RESULT = {
    "flfw", "config", "provenance", "environment", "notes", "rounds", "final", "privacy", "audit",
}  # fmt: skip
ENTRY = {
    "attack", "adaptive", "vantage", "source", "round", "client", "defence", "granted", "batch", "steps", "mode",
    "iterations", "restarts", "selection", "seeds", "images", "failures", "psnr", "ssim", "lpips", "distance",
    "identification_rate", "share_recovered", "floors", "ladder", "verdict", "seconds",
}  # fmt: skip
ROUND = {
    "round", "loss", "acc_global", "acc_local", "clients", "failures", "upload_bytes", "download_bytes", "seconds",
    "extra",
}  # fmt: skip


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.slow
def test_an_audited_run_leaves_every_file_that_scripts_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    result = run(folder, AUDITED)
    assert set(result) >= RESULT
    assert all(set(row) >= ROUND for row in result["rounds"]) and len(result["rounds"]) == 1
    assert [(e["attack"], e["round"]) for e in result["audit"]] == [
        ("analytic", 0), ("analytic", 1), ("ig", 0), ("ig", 1),
    ]  # fmt: skip
    for entry in result["audit"]:
        assert set(entry) >= ENTRY
        assert [control["rung"] for control in entry["ladder"]][:2] == ["analytic", "easy"]
        assert entry["ladder"][0]["passed"] and entry["ladder"][0]["psnr"] > 100
    analytic, ig = result["audit"][0], result["audit"][2]
    assert analytic["failures"] == 2 and analytic["verdict"] == "undecided" and analytic["psnr"] is None
    assert ig["failures"] == 0 and ig["adaptive"] and ig["psnr"]["low"] <= ig["psnr"]["mean"] <= ig["psnr"]["high"]
    assert ig["floors"]["nearest_public"] >= ig["floors"]["random_public"]
    assert result["provenance"]["data"]["name"] == "digits" and result["environment"]["transport"] == "in process"
    images = rows(folder / "audit.csv")
    assert len(images) == 12  # two attacks x (easy, round 0, round 1) x two images
    assert {row["rung"] for row in images} == {"easy", "target"}
    for row in images:
        assert (folder / row["truth"]).exists()
        assert not row["reconstruction"] or (folder / row["reconstruction"]).exists()
    assert len(rows(folder / "rounds.csv")) == 1 and len(rows(folder / "clients.csv")) == 2
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png") >= 8 and "fedavg on digits" in page
    assert str(folder / "report.html") in capsys.readouterr().out


@pytest.mark.slow
def test_truth_is_apart_from_the_observations_and_the_owner_s_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(
        folder, "--method fedavg --net linear --engine inproc --clients 2 --rounds 1 --local-epochs 1 --attack analytic"
    )
    assert not any("truth" in str(path.relative_to(folder)) for path in (folder / "observations").rglob("*"))
    files = list((folder / "truth").iterdir())
    assert files and all(path.stat().st_mode & 0o077 == 0 for path in files)
    truth = Truth.read(folder / "truth", "r0000-target-000")
    raw = (folder / "observations").rglob("*.safetensors")
    pixels = truth.samples.numpy().tobytes()
    assert all(pixels not in path.read_bytes() for path in raw)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result(tmp_path: Path) -> None:
    flags = "--method fedper --engine inproc --clients 2 --rounds 1 --local-epochs 1 --images 1 --set ig.iterations=5"
    one, two = run(tmp_path / "one", flags), run(tmp_path / "two", flags)
    for result in (one, two):
        result["config"].pop("out")
        result["provenance"].pop("sessions")
        controls = [control for entry in result["audit"] for control in entry["ladder"]]
        for row in [*result["rounds"], *result["audit"], *controls, *result["final"]["per_client"]]:
            row.pop("seconds", None)
            row.pop("scoring_seconds", None)
    assert one == two
    assert one["audit"][0]["adaptive"] is False  # the private head was searched for, not exploited
    assert any("classifier.weight" in sentence for sentence in one["audit"][0]["granted"])


@pytest.mark.slow
def test_a_method_that_sends_nothing_is_said_to_have_nothing_to_attack(tmp_path: Path) -> None:
    result = run(tmp_path / "run", "--method local_only --engine inproc --clients 2 --rounds 1 --local-epochs 1")
    assert result["audit"] == []
    assert result["notes"][0] == "local_only sends nothing, so there was nothing to attack."
    assert result["rounds"][0]["upload_bytes"] == 0


@pytest.mark.slow
def test_tabular_data_are_audited_by_distance(tmp_path: Path) -> None:
    flags = "--method fedavg --dataset cancer --net linear --engine inproc --clients 2 --rounds 1 --local-epochs 1"
    (entry,) = run(tmp_path / "run", f"{flags} --attack analytic --images 2 --audit-rounds 0")["audit"]
    assert entry["psnr"] is None and entry["verdict"] == "leaks" and entry["share_recovered"] == 1
    assert entry["distance"]["rmsd"] < 1e-4


@pytest.mark.slow
def test_a_defended_audit_by_who_is_not_told_is_static_only(tmp_path: Path) -> None:
    flags = "--method fedavg --net linear --engine inproc --clients 2 --rounds 1 --local-epochs 1 --attack analytic"
    result = run(tmp_path / "run", f"{flags} --images 2 --audit-rounds 0 --defence prune --set prune.ratio=0.999")
    (entry,) = result["audit"]
    assert not entry["adaptive"] and entry["defence"] == "prune"
    assert outcome(entry) == "static" and entry["ladder"][1]["passed"]
    assert "not granted: that the client uses prune" in entry["granted"]


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--list"]) == 0
    everything = capsys.readouterr().out
    assert all(name in everything for name in ("hyperfl", "prune", "ig", "cnn1", "digits", "dominant"))
    assert sim.main(["--list", "attacks", "tables"]) == 0
    some = capsys.readouterr().out
    assert all(part in everything for part in some.split("\n\n")) and "ig " in some and "fedavg " not in some
    assert sim.main(["--list", "hyperfl"]) == 0
    assert "Private     embedding" in capsys.readouterr().out
    every = [about(name) for kind in (plugins.METHOD, plugins.DEFENCE, plugins.ATTACK) for name in plugins.names(kind)]
    assert "--set ig.iterations=1000               Adam steps [iterations >= 1]\n" in "\n".join(every)
    assert not re.findall(r"--set \S+ +\[.*", "\n".join(every)), "settings without a word on what they mean"
    assert sim.main(["--list", "nothing"]) == 2


@pytest.mark.slow
@pytest.mark.skipif("FLFW_DATA" not in os.environ, reason="real data are not here: set FLFW_DATA")
def test_real_cifar10_that_was_re_encoded_says_so(tmp_path: Path) -> None:
    flags = "--method fedavg --dataset cifar10 --engine inproc --clients 2 --rounds 1 --local-epochs 1 --images 1"
    result = run(tmp_path / "run", f"{flags} --audit-rounds 0 --set ig.iterations=5")
    assert result["provenance"]["data"]["md5_ok"] is False
    assert any("md5" in note for note in result["notes"])
    assert "md5" in (tmp_path / "run" / "report.html").read_text()


def test_accuracy_at_the_best_validation_by_hand() -> None:
    history = [
        {"round": r, "client": c, "acc_validation": validation, "acc_local": test}
        for r, c, validation, test in [
            (1, 0, 0.5, 0.1), (1, 1, 0.2, 0.3), (2, 0, 0.7, 0.2), (2, 1, 0.9, 0.4), (3, 0, 0.7, 0.9), (3, 1, 0.8, 1.0),
        ]
    ]  # fmt: skip
    # Client 0: round 2, the first of two with 0.7. Client 1: round 2.
    assert best_validation(history) == pytest.approx({"round": 2, "accuracy": 0.3, "validation": 0.8})
    assert best_validation([{"round": 1, "client": 0, "acc_local": 1.0}]) is None


@pytest.mark.slow
def test_validation_data_choose_the_round_of_each_client(tmp_path: Path) -> None:
    flags = "--method fedavg --clients 2 --rounds 3 --local-epochs 1 --engine inproc --attack none --split sampled"
    result = run(tmp_path / "run", f"{flags} --set sampled.train=100 optimiser=adam --lr 0.001")
    clients = rows(tmp_path / "run" / "clients.csv")
    chosen = []
    for client in "01":
        given = [row for row in clients if row["client"] == client]
        # Of equals the first, in order of rounds.
        chosen.append(max(given, key=lambda row: float(row["acc_validation"])))
    accuracy = sum(float(row["acc_local"]) for row in chosen) / 2
    assert result["final"]["best_validation"]["accuracy"] == pytest.approx(accuracy)
    assert result["rounds"][0]["extra"]["acc_validation"] > 0


@pytest.mark.slow
def test_a_default_name_that_another_process_takes_first_is_left_to_it(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an array of jobs: their checks take seconds, and the folder is made after them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "default_name", lambda _: "name")
    begun, taken = module.auditing, tmp_path / "runs" / "name"

    def after_another(*given: Any) -> Any:
        taken.mkdir(parents=True, exist_ok=True)
        return begun(*given)

    monkeypatch.setattr(module, "auditing", after_another)
    folder = module.run(dataclasses.replace(small, rounds=1, out=None))
    assert folder == tmp_path / "runs" / "name-2" and (folder / "result.json").exists() and not list(taken.iterdir())
    with pytest.raises(InputError, match="Expected a folder that can be made"):
        taken.rmdir()
        module.run(dataclasses.replace(small, rounds=1, out=taken))


def test_of_two_processes_in_one_second_each_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """An empty folder goes at an error, with those above it; what somebody put into it stays."""
    with claimed(tmp_path / "runs" / "name") as first, claimed(tmp_path / "runs" / "name") as second:
        assert (first.name, second.name) == ("name", "name-2") and second.is_dir()
    for written, left in (("", ["name", "name-2"]), ("file", ["name", "name-2", "name-3"])):
        with pytest.raises(RuntimeError), claimed(tmp_path / "runs" / "name") as third:
            (third / written).touch() if written else None
            raise RuntimeError
        assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == left
    with pytest.raises(RuntimeError), claimed(tmp_path / "new" / "runs" / "name"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()


def test_two_matrices_that_begin_in_one_second_have_a_folder_each(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins while the cells of the first are checked, which takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(matrices, "_default_name", lambda *_: "matrix")
    folders: list[Path] = []

    def prepare(_matrix: Matrix, experiment: Experiment, folder: Path) -> PreparedMatrix:
        folders.append(folder)
        if len(folders) == 1:
            matrices.run(Matrix(), experiment)
        return PreparedMatrix(folder, {}, ())

    monkeypatch.setattr(matrices, "prepare", prepare)
    monkeypatch.setattr(matrices, "carry_out", lambda _: {})
    matrices.run(Matrix(), dataclasses.replace(small, out=None))
    assert folders == [tmp_path / "runs" / "matrix", tmp_path / "runs" / "matrix-2"]


@pytest.mark.slow
def test_two_rehearsals_that_begin_in_one_second_have_a_folder_each(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "default_name", lambda _: "name")
    requested = dataclasses.replace(small, rounds=1, out=None, clients=1, attack=("analytic",))
    planned = [plan_rehearsal(requested, 1).experiment for _ in range(2)]
    names = [module.run(dataclasses.replace(one, attack=("none",), curve=()), "rehearsal-").name for one in planned]
    assert names == ["rehearsal-name", "rehearsal-name-2"]


def test_an_interrupt_says_how_to_go_on(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.launch, "run_on_engine", interrupt)
    requested = dataclasses.replace(small, out=tmp_path / "a run")
    hint = f"the run is cut short; python sim.py --resume '{tmp_path}/a run' goes on with it\n"
    for go in [module.run, module.resume]:
        with pytest.raises(KeyboardInterrupt):
            go(requested)
        assert capsys.readouterr().err.endswith(hint)
