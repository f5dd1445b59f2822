"""Uploads of training as targets: what clients write about them, what is granted, and what an attack reads off them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sim
from flfw.audit.attack_worker import solve
from flfw.audit.auditor import Auditor
from flfw.audit.controls import TARGET_CONTROLS
from flfw.audit.uploads import truth_of_upload, upload_key, uploads_probe_set
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan, without_auto
from flfw.recording.observation import Truth
from flfw.runs import run as whole
from tests.support.planned import clients_and_audit
from tests.support.small_runs import tiny


def noted(*steps: tuple[int, ...]) -> list[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
    """Batches of one-number inputs whose value is a hundredth of the index."""
    return [
        (np.array(step, int), torch.tensor(step, dtype=torch.float32).view(-1, 1) / 100, torch.tensor(step) % 10)
        for step in steps
    ]


def test_examples_are_in_the_order_of_their_first_use() -> None:
    truth = truth_of_upload(noted((7, 3), (12,), (3, 12), (7,)), varied=False)
    assert truth.indices.tolist() == [7, 3, 12] and truth.labels.tolist() == [7, 3, 2]
    assert truth.samples.flatten().tolist() == pytest.approx([0.07, 0.03, 0.12])
    assert truth.steps == ((0, 1), (2,), (1, 2), (0,))


def test_of_varied_images_every_use_is_an_example_of_its_own() -> None:
    truth = truth_of_upload(noted((7, 3), (3, 7)), varied=True)
    assert truth.indices.tolist() == [7, 3, 3, 7] and truth.steps == ((0, 1), (2, 3))


def test_an_empty_poisson_batch_is_a_step_without_examples() -> None:
    assert truth_of_upload(noted((7,), (), (3,)), varied=False).steps == ((0,), (), (1,))


def test_the_truth_is_read_as_it_was_written(tmp_path: Path) -> None:
    truth = truth_of_upload(noted((7, 3), (12,)), varied=False)
    truth.write(tmp_path, upload_key(4, 2))
    again = Truth.read(tmp_path, "r0004-update-002")
    assert again.steps == truth.steps and torch.equal(again.samples, truth.samples)
    probe = Truth(truth.samples, truth.labels, truth.indices)
    probe.write(tmp_path, "probe")
    assert Truth.read(tmp_path, "probe").steps is None  # every step used all of them


def test_a_ticket_has_the_largest_numbers() -> None:
    truths = [truth_of_upload(noted((7, 3), (12,)), False), truth_of_upload(noted((1,), (2,), (3,), (4,)), False)]
    probe_set = uploads_probe_set(3, truths)
    assert (probe_set.batch, probe_set.steps, probe_set.source, probe_set.name) == (4, 4, "update", "r0003-update")


def test_only_the_uploads_of_audited_rounds_are_attacked() -> None:
    experiment = Experiment(method="fedavg", rounds=3, audit_rounds="0,2", audit_source="both", net="linear")
    attacks_uploads_of = plan(experiment).audit.attacks_uploads_of
    assert [attacks_uploads_of(server_round) for server_round in range(4)] == [False, False, True, False]
    assert not plan(replace(experiment, audit_source="probe")).audit.attacks_uploads_of(2)


# --- whole runs ---

FEW: dict[str, Any] = {"split": "sampled", "audit_rounds": "1", "batch_size": 2, "local_epochs": 2}
SET = ("sampled.train=3", "ig.iterations=3")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    """Two clients with three examples each, two passes in batches of two and one."""
    out = tmp_path_factory.mktemp("uploads") / "run"
    experiment = tiny(out, attack=("analytic", "ig"), audit_source="both", set=SET, **FEW)
    return whole.run(experiment), experiment


def entries(folder: Path, source: str) -> dict[str, dict[str, Any]]:
    audit = json.loads((folder / "result.json").read_text())["audit"]
    return {entry["attack"]: entry for entry in audit if entry["source"] == source}


@pytest.mark.slow
def test_probes_and_uploads_have_entries_of_their_own(audited: tuple[Path, Experiment]) -> None:
    probes, uploads = (entries(audited[0], source) for source in ("probe", "update"))
    assert probes.keys() == uploads.keys() == {"analytic", "ig"}
    assert (uploads["ig"]["batch"], uploads["ig"]["steps"], uploads["ig"]["images"]) == (3, 4, 6)
    assert (probes["ig"]["batch"], probes["ig"]["steps"], probes["ig"]["images"]) == (1, 1, 2)
    assert uploads["ig"]["messages"] == 2
    assert probes["analytic"]["verdict"] == "leaks"


@pytest.mark.slow
def test_a_search_goes_through_the_steps_and_the_description_explains_the_upload(
    audited: tuple[Path, Experiment],
) -> None:
    uploads = entries(audited[0], "update")
    assert uploads["ig"]["adaptive"] and not uploads["analytic"]["adaptive"]
    consistency = {control["rung"]: control for control in uploads["ig"]["ladder"]}["consistency"]
    assert consistency["passed"] and "cosine 1.00000" in consistency["reason"]
    grants = " ".join(uploads["ig"]["granted"])
    assert "up to 4 local steps on up to 3 examples" in grants and "follows from the run's seed" in grants
    assert any("their mean gradient is attacked" in line for line in uploads["analytic"]["granted"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    """The same training, where nothing is searched for; with the experiment that searches."""
    changes: dict[str, Any] = {**FEW, "audit_source": "both", "set": SET[:1]}
    folder = whole.run(tiny(tmp_path_factory.mktemp("trained") / "run", **changes))
    return folder, tiny(folder, **{**changes, "attack": ("analytic", "ig"), "set": SET})


@pytest.mark.slow
def test_clients_write_what_they_trained_on_and_where_each_step_used_it(trained: tuple[Path, Experiment]) -> None:
    folder, experiment = trained
    task = plan(experiment).task.load(None)
    for client in range(2):
        truth = Truth.read(folder / "truth", upload_key(1, client))
        assert set(truth.indices.tolist()) == set(task.split.train[client].tolist())
        steps = truth.steps
        assert steps is not None and [len(step) for step in steps] == [2, 1, 2, 1]
        assert steps[:2] == ((0, 1), (2,)) and sorted(steps[2] + steps[3]) == [0, 1, 2]


@pytest.mark.slow
def test_an_upload_of_one_step_on_one_example_gives_it_away(tmp_path: Path) -> None:
    one = {**FEW, "local_epochs": 1, "set": ("sampled.train=1",)}
    out = whole.run(tiny(tmp_path / "run", attack=("analytic",), audit_source="update", **one))
    (entry,) = json.loads((out / "result.json").read_text())["audit"]
    assert (entry["source"], entry["verdict"], entry["share_recovered"]) == ("update", "leaks", 1.0)


@pytest.mark.slow
def test_a_search_for_too_many_examples_is_refused_with_the_reason(trained: tuple[Path, Experiment]) -> None:
    folder, experiment = trained
    requested = plan(without_auto(experiment))
    auditor = Auditor(*clients_and_audit(requested), plan(experiment).task.load(None), folder, folder)
    jobs = [job for probe_set in auditor.probe_sets() for job in auditor.jobs(probe_set)]
    (job,) = [one for one in jobs if (one.probe_set.source, one.attack) == ("update", "ig")]
    beside = [one for control in TARGET_CONTROLS for one in auditor.jobs(job.probe_set.at(control))]
    assert beside and not any(one.exchanges for one in beside)  # clients train once, under no control
    order = tuple((index,) for index in range(600))
    many = tuple(replace(exchange, order=order, labels=(0,) * 600) for exchange in job.exchanges)
    stopped = solve(replace(job, exchanges=many)).stopped
    assert stopped == "not possible: Expected a search for at most 512 examples at once, got examples=600."


@pytest.mark.slow
def test_the_command_audits_uploads_and_audits_them_again(
    audited: tuple[Path, Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["--from", str(audited[0]), *"--audit-source update --attack analytic --out".split(), str(tmp_path / "a")]
    assert sim.main(again) == 0, capsys.readouterr().err
    (entry,) = json.loads((tmp_path / "a" / "result.json").read_text())["audit"]
    assert (entry["source"], entry["attack"]) == ("update", "analytic")


@pytest.mark.slow
def test_uploads_that_were_not_recorded_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole.run(tiny(tmp_path / "run", attack=("analytic",), **FEW, set=("sampled.train=1",)))
    again = ["--from", str(tmp_path / "run"), "--audit-source", "update", "--out", str(tmp_path / "a")]
    assert sim.main(again) == 2
    message = "Expected recorded uploads of round 1 in"
    assert message in capsys.readouterr().err and not (tmp_path / "a").exists()


@pytest.mark.slow
def test_reconstructions_of_uploads_lie_in_the_order_of_the_truth(trained: tuple[Path, Experiment]) -> None:
    folder, _ = trained
    result = load_file(folder / "reconstructions" / "analytic-r0001-update-000.safetensors")["samples"]
    assert result.shape == (3, 1, 8, 8)
