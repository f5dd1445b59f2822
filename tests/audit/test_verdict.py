"""Verdicts: the rule as a table, and audits of runs whose answer is known beforehand."""

import csv
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flfw.audit import ladder
from flfw.audit.auditor import auditing
from flfw.audit.entries import breakdowns
from flfw.audit.entries import entry as summed
from flfw.audit.jobs import Solution
from flfw.audit.scorer import FLOORS, ScoreRow
from flfw.audit.verdict import CONTROL_DB, EASY_SHARE, Rung, verdict
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.recording import format as tape
from flfw.recording.reader import Recordings
from flfw.resolve import resolve, without_auto
from flfw.runs import run as whole
from flfw.task import Task
from tests.support.silent_defences import Blanks, SendsNothing
from tests.support.small_runs import tiny

# (the control found its examples, the easy rung leaked, share recovered, adaptive) -> the word
TABLE = {
    (True, True, 0.0, True): "no leak found",
    (True, True, 0.0, False): "static only",
    (True, True, 0.125, True): "leaks",
    (True, True, 0.125, False): "leaks",
    (True, True, 1.0, True): "leaks",
    (True, True, 1.0, False): "leaks",
    (True, False, 0.0, True): "inconclusive",
    (True, False, 0.0, False): "inconclusive",
    (True, False, 0.125, True): "leaks",
    (True, False, 0.125, False): "leaks",
    (True, False, 1.0, True): "leaks",
    (True, False, 1.0, False): "leaks",
    (False, True, 0.0, True): "attack broken",
    (False, True, 0.0, False): "attack broken",
    (False, True, 0.125, True): "attack broken",
    (False, True, 0.125, False): "attack broken",
    (False, True, 1.0, True): "attack broken",
    (False, True, 1.0, False): "attack broken",
    (False, False, 0.0, True): "attack broken",
    (False, False, 0.0, False): "attack broken",
    (False, False, 0.125, True): "attack broken",
    (False, False, 0.125, False): "attack broken",
    (False, False, 1.0, True): "attack broken",
    (False, False, 1.0, False): "attack broken",
}


def concluded(control: bool, easy: bool, share: float, adaptive: bool) -> tuple[str, str]:
    return verdict(Rung("control", 31.25, control), Rung("easy", 12.75, easy), share, adaptive)


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_verdict(case: tuple[bool, bool, float, bool]) -> None:
    assert concluded(*case)[0] == TABLE[case]


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(product((True, False), (True, False), (0.0, 0.125, 1.0), (True, False)))


def test_reasons_name_what_failed() -> None:
    broken = concluded(False, True, 1.0, True)[1]
    assert "closed form" in broken and "31.2 dB" in broken and "must reach 40" in broken
    assert "12.8" in concluded(True, False, 0.0, True)[1] and "undefended" in concluded(True, False, 0.0, True)[1]
    assert "not evidence of protection" in concluded(True, True, 0.0, False)[1]
    assert concluded(True, True, 0.125, True)[1] == "12% of the attacked examples were reconstructed."
    assert "within its budget" in concluded(True, True, 0.0, True)[1]


def test_thresholds_are_those_the_documents_state() -> None:
    assert (CONTROL_DB, EASY_SHARE) == (40.0, 0.5)


# --- audits of known answer ---


NOTHING, BLANKS = (f"{cls.__module__}:{cls.__name__}" for cls in (SendsNothing, Blanks))


def audited(folder: Path, **changes: Any) -> tuple[Path, Experiment]:
    experiment = tiny(folder, **changes)
    return whole.run(experiment), experiment


def refuse(constant: str) -> None:
    raise AssertionError(f"result.json holds {constant}, which is not JSON")


def entries(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text(), parse_constant=refuse)["audit"]


def rows(folder: Path, rung: str) -> list[dict[str, str]]:
    with (folder / "audit.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["rung"] == rung]


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    return audited(tmp_path_factory.mktemp("leaking") / "run")


def test_softmax_regression_leaks_before_and_after_training(leaking: tuple[Path, Experiment]) -> None:
    before, after = entries(leaking[0])
    assert (before["round"], after["round"]) == (0, 1)
    for entry in (before, after):
        assert entry["verdict"] == "leaks" and entry["share_recovered"] == 1.0 and entry["failures"] == 0
        assert entry["images"] == 2 and entry["adaptive"] is True
        assert entry["psnr"]["mean"] > 100
        assert [(rung["rung"], rung["passed"]) for rung in entry["ladder"]] == [("control", True), ("easy", True)]
        assert entry["floors"]["nearest_public"] < 40
    assert (leaking[0] / "report.html").stat().st_size > 0


def test_the_rows_of_an_audit_are_measured_against_the_truth(leaking: tuple[Path, Experiment]) -> None:
    folder, _ = leaking
    targets = rows(folder, "target")
    assert [(row["round"], row["client"], row["victim"]) for row in targets] == [
        ("0", "0", "0"), ("0", "1", "1"), ("1", "0", "0"), ("1", "1", "1")
    ]  # fmt: skip
    for row in targets:
        truth = load_file(folder / row["truth"])["samples"]
        result = load_file(folder / row["reconstruction"])["samples"]
        rmsd = float((truth.double() - result.double()).square().mean().sqrt())
        assert float(row["rmsd"]) == pytest.approx(rmsd, rel=1e-3, abs=1e-10) and rmsd < 1e-5
    assert targets[0]["truth"] != targets[1]["truth"]
    first, again = (load_file(folder / targets[i]["truth"])["samples"] for i in (0, 2))
    assert torch.equal(first, again)  # the same victims in every round


def test_a_defence_that_sends_nothing_is_static_only_and_no_proof(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", defence=NOTHING, audit_rounds="0")
    (entry,) = entries(folder)
    assert entry["verdict"] == "static only" and entry["share_recovered"] == 0.0
    assert entry["adaptive"] is False and entry["defence"] == NOTHING
    assert entry["ladder"][1]["passed"] is True and entry["ladder"][1]["psnr"] > 100  # the ladder is undefended
    assert any("not granted" in line and NOTHING in line for line in entry["granted"])
    assert {row["recovered"] for row in rows(folder, "target")} == {"False"}
    assert {row["recovered"] for row in rows(folder, "easy")} == {"True"}


def test_one_undefended_client_is_enough_to_leak(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", defence=BLANKS, defended="1", audit_rounds="0")
    defended, other = entries(folder)
    assert (defended["verdict"], defended["defence"], defended["share_recovered"]) == ("static only", BLANKS, 0.0)
    assert (other["verdict"], other["defence"], other["share_recovered"]) == ("leaks", "none", 1.0)
    assert [(row["client"], row["recovered"]) for row in rows(folder, "target")] == [("0", "True"), ("1", "False")]


def test_attacks_that_do_not_work_on_the_fresh_net_are_inconclusive(tmp_path: Path) -> None:
    folder, _ = audited(
        tmp_path / "run", net="lenet", attack=("analytic", "ig"), set=("ig.iterations=1",), audit_rounds="0"
    )
    analytic, ig = entries(folder)
    assert (analytic["attack"], analytic["verdict"], analytic["failures"]) == ("analytic", "inconclusive", 2)
    assert analytic["psnr"] is None and analytic["ladder"][0]["passed"] is True
    assert (ig["attack"], ig["verdict"], ig["failures"]) == ("ig", "inconclusive", 0)
    assert ig["psnr"]["mean"] < 20 and ig["iterations"] == 1


def test_rows_of_numbers_are_judged_by_their_deviation(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", dataset="cancer", net="mlp", audit_rounds="0")
    (entry,) = entries(folder)
    assert entry["verdict"] == "leaks" and entry["share_recovered"] == 1.0
    assert entry["psnr"] is None and entry["ssim"] is None
    assert entry["distance"]["rmsd"] < 1e-5 and entry["distance"]["success"] == 1.0


def test_a_private_head_does_not_hide_a_fully_connected_first_layer(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", method="fedper", net="mlp", audit_rounds="0")
    (entry,) = entries(folder)
    assert entry["verdict"] == "leaks" and entry["adaptive"] is False and entry["psnr"]["mean"] > 100
    private = "not granted: the client's private tensors (classifier.weight, classifier.bias), "
    assert any(line.startswith(private) for line in entry["granted"])


def test_an_attack_that_cannot_work_on_a_generated_net_concludes_nothing_there(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", method="hyperfl", net="mlp", audit_rounds="0")
    (entry,) = entries(folder)
    assert (entry["verdict"], entry["failures"], entry["share_recovered"]) == ("inconclusive", 2, 0.0)
    assert entry["ladder"][1]["passed"] is True  # the plain network of the easy rung gave its examples away


# --- faulty recordings ---


def audited_again(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """The verdict on the recordings as they now are."""
    experiment = without_auto(experiment)
    with auditing(resolve(experiment), Task.of(experiment, None), folder) as auditor:
        assert auditor is not None
        return auditor.run()[0][0]


def tampered(leaking: tuple[Path, Experiment], folder: Path, change: Any) -> dict[str, Any]:
    """Audit a copy in which the answers to the control probes, by slot, have been changed."""
    shutil.copytree(leaking[0], folder)
    manifest = folder / "observations" / "manifest.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    controls = [line for line in lines if line.get("config", {}).get("rung") == "control"]
    controls.sort(key=lambda line: line["config"]["slot"])
    answers = [seen.sent for seen in Recordings(folder / "observations").probes("control", 0)]
    for line, answer in zip(controls, change(answers), strict=True):
        stored = tape.encode({name: value.numpy() for name, value in answer.items()}, "none")
        (folder / "observations" / line["sent_by_client"]["file"]).write_bytes(stored.data)
        line["sent_by_client"] |= {"sha256": stored.sha256, "bytes": stored.size}
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return audited_again(folder, leaking[1])


def test_an_audit_repeats(leaking: tuple[Path, Experiment], tmp_path: Path) -> None:
    again = tampered(leaking, tmp_path / "copy", lambda answers: answers)
    once = entries(leaking[0])[0]
    for entry in (again, once):
        for timed in (entry, *entry["ladder"]):
            timed.pop("scoring_seconds", None)
            del timed["seconds"]
    assert again == once


def test_answers_of_the_wrong_clients_are_a_broken_attack(leaking: tuple[Path, Experiment], tmp_path: Path) -> None:
    entry = tampered(leaking, tmp_path / "copy", lambda answers: answers[::-1])
    assert entry["verdict"] == "attack broken" and entry["ladder"][0]["passed"] is False
    assert entry["share_recovered"] == 1.0  # whatever the attack itself seems to have found


@pytest.mark.parametrize("slot", [0, 1])
def test_one_empty_control_answer_is_a_broken_attack(
    leaking: tuple[Path, Experiment], tmp_path: Path, slot: int
) -> None:
    def emptied(answers: list[Tensors]) -> list[Tensors]:
        zeros = {name: torch.zeros_like(value) for name, value in answers[slot].items()}
        return [zeros if i == slot else answer for i, answer in enumerate(answers)]

    entry = tampered(leaking, tmp_path / "copy", emptied)
    assert entry["ladder"][0]["passed"] is False and entry["verdict"] == "attack broken"


def test_an_attack_that_mostly_failed_concludes_nothing() -> None:
    control, easy = Rung("control", 150.0, True), Rung("easy", 30.0, True)
    assert verdict(control, easy, 0.0, True, 0.49)[0] == "no leak found"
    assert verdict(control, easy, 0.0, True, 0.5)[0] == "inconclusive"
    assert verdict(control, easy, 0.0, False, 1.0)[0] == "inconclusive"
    assert verdict(control, easy, 0.1, True, 0.9)[0] == "leaks"


# --- what is said of attacks that broke ---


def broke(stopped: str | None, on_easy: str | None) -> dict[str, Any]:
    rungs = [{"stopped": None}, {"stopped": on_easy}]
    return {"attack": "a", "round": 3, "stopped": stopped, "ladder": rungs}


def test_an_attack_that_broke_is_named_once_wherever_it_did() -> None:
    assert breakdowns([broke("crashed: it", None), broke(None, None)]) == [
        "The attack a gave nothing at round 3: crashed: it."
    ]
    on_easy = [broke(None, "ended after 1 s, its budget")] * 2  # the same rung stands below every round
    assert breakdowns(on_easy) == ["The attack a gave nothing on the easy case: ended after 1 s, its budget."]
    assert breakdowns([broke("not applicable: no layer", "not applicable: no layer")]) == []


def test_an_easy_rung_that_broke_is_not_called_too_weak() -> None:
    easy = Rung("easy", 0.0, False, stopped="crashed: it")
    word, reason = verdict(Rung("control", 150.0, True), easy, 0.0, True)
    assert word == "inconclusive" and "crashed: it" in reason and "stronger attack" not in reason


def row(victim: int, db: float | None, recovered: bool = False) -> ScoreRow:
    floors = {f"floor_{floor}": 8.0 for floor in FLOORS}
    return {"victim": victim, "image": 0, "db": db, "psnr": db, "recovered": recovered, **floors}


def told(rows: list[ScoreRow], untold: list[ScoreRow]) -> dict[str, Any]:
    details = {"attack": "a", "adaptive": True, "batch": 1, "steps": 1, "iterations": 1}
    passed = Rung("control", 150.0, True), Rung("easy", 30.0, True)
    known: ScoreRow = dict.fromkeys(
        ("ssim", "lpips", "rmsd", "gain", "rank", "candidates", "assignment_null", "client")
    )
    known |= {"iterations": None, "failed": False, "succeeded": False, "exact": False, "exact_features": None}
    known |= {"labels_found": None, "floor_features": None}
    return summed(details, Solution("job", ()), [known | one for one in rows], len(rows), passed, 0, untold)


def test_knowing_of_a_defence_is_compared_image_for_image() -> None:
    result = told([row(0, 15.0), row(1, 12.0)], [row(1, 9.0), row(0, 10.0)])  # +5 and +3
    assert result["knowing_gains"]["mean"] == 4.0 and result["verdict"] == "no leak found"
    assert told([row(0, 15.0)], [])["knowing_gains"] is None
    assert told([row(0, None)], [row(0, None)])["knowing_gains"] is None  # nothing was measured
    failed = told([row(i, 12.0 if i else None) for i in range(3)], [row(i, 10.0) for i in range(3)])
    assert failed["knowing_gains"]["mean"] == 2.0  # of those that both gave
    assert failed["verdict"] == "inconclusive" and "for 3 examples instead of 2" in failed["reason"]


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ([10.0, 11.0, 12.0], [11.0, 12.0, 13.0], "inconclusive"),  # each is worse
        ([10.0, 11.0, 12.0], [13.0, 8.0, 12.5], "no leak found"),  # worse by 0.2 dB, but not for sure
        ([10.0], [10.5], "inconclusive"),  # of one image there is no interval
    ],
)
def test_an_attack_that_does_worse_for_knowing_more_proves_nothing(
    ours: list[float], theirs: list[float], word: str
) -> None:
    result = told([row(i, db) for i, db in enumerate(ours)], [row(i, db) for i, db in enumerate(theirs)])
    assert result["verdict"] == word
    assert ("poor use of what it knows" in result["reason"]) is (word == "inconclusive")


def test_an_attack_that_recovers_fewer_for_knowing_more_proves_nothing() -> None:
    result = told([row(0, 15.0), row(1, 30.0)], [row(0, 20.5, recovered=True), row(1, 9.0)])
    assert result["verdict"] == "inconclusive" and "1 of 2 examples reconstructed" in result["reason"]


def test_an_easy_rung_of_few_recordings_is_not_passed() -> None:
    rows, solution = [{"recovered": True, "db": 90.0}], Solution("job", (None,))
    assert not ladder.easy(rows, 8, solution).passed
    assert ladder.easy(rows, 2, solution).passed
