"""Verdicts: the rule as a table, and audits of runs whose answer is known beforehand."""

import json
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flfw.audit.auditor import auditing
from flfw.audit.jobs import JobResult
from flfw.audit.measures.identification import Identified
from flfw.audit.reconstruction import control_runs
from flfw.audit.reconstruction.control_runs import candidate_test
from flfw.audit.reconstruction.entries import entry as summed
from flfw.audit.reconstruction.reconstruction_evidence import (
    CONTROL_DB,
    EASY_SHARE,
    FAILED_SHARE,
    ControlResult,
    ControlResults,
    ReconstructionEvidence,
    Searched,
)
from flfw.audit.reconstruction.scorer import FLOORS, ScoreRow
from flfw.audit.verdict import MESSAGES, Verdict, verdict_on
from flfw.experiment import Experiment
from flfw.files import outcomes
from flfw.files.result_entries import breakdowns
from flfw.nets import Tensors
from flfw.plans.run_plan import plan, without_auto
from flfw.recording.manifest import rewrite
from flfw.recording.reader import Recordings
from flfw.rng import numpy_generator
from flfw.runs import run as whole
from tests.support.csv_files import read_csv
from tests.support.known_answers import record_answer
from tests.support.planned import clients_and_audit
from tests.support.silent_defences import Blanks, SendsNothing
from tests.support.small_runs import tiny


def passed() -> ControlResult:
    return ControlResult(31.25, True)


def failed() -> ControlResult:
    return ControlResult(12.75, False, reason="its numbers.")


GOOD = ControlResults(*(passed() for control in ("analytic", "easy", "consistency", "undefended", "weak_defence")))
NOTHING_FOUND = ReconstructionEvidence(GOOD, attacked=8, messages=8, adaptive=True, defended=True)
FOUR = np.array([0.2, 0.8])  # one compared example
CHANCE, BEYOND = (Identified(1, 1, FOUR, p) for p in (0.02, 0.004))
SHORT, REACHED = (Searched(1.0, 2.0, 9.0, short, 8) for short in (5, 4))

# What differs from an audit that earned "no leak found" -> verdict and cause.
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "all is well": ({}, "no leak found", "nothing"),
    "the control fails": ({"analytic": failed()}, "void", "analytic"),
    "one of eight is recovered": ({"recovered": 1}, "reconstructed", "recovered"),
    "recovered by a static attack": ({"recovered": 1, "adaptive": False}, "reconstructed", "recovered"),
    "recovered, undefended": ({"recovered": 8, "defended": False}, "reconstructed", "recovered"),
    "recovered, whatever the controls": (
        {"recovered": 1, **{control: failed() for control in ("easy", "consistency", "undefended", "weak_defence")}},
        "reconstructed",
        "recovered",
    ),
    "recovered, though the description is wrong": (
        {"recovered": 1, "consistency": failed()},
        "reconstructed",
        "recovered",
    ),
    "recovered, but the control fails": ({"recovered": 8, "analytic": failed()}, "void", "analytic"),
    "identified": ({"identified": BEYOND}, "identified", "identified"),
    "identified by a static attack": ({"identified": BEYOND, "adaptive": False}, "identified", "identified"),
    "identified, undefended": ({"identified": BEYOND, "defended": False}, "identified", "identified"),
    "identified by an attack that fails on the easy control": (
        {"identified": BEYOND, "easy": failed()},
        "identified",
        "identified",
    ),
    "identified by chance": ({"identified": CHANCE}, "no leak found", "nothing"),
    "identified in one of three tests": ({"identified": BEYOND, "num_tests": 3}, "undecided", "few"),
    "the description is wrong": ({"consistency": failed()}, "void", "description"),
    "the description is wrong, static": ({"consistency": failed(), "adaptive": False}, "void", "description"),
    "the description was not checked": (
        {"consistency": ControlResult(None, None, failure_reason="no truth")},
        "undecided",
        "consistency",
    ),
    "the easy control fails": ({"easy": failed()}, "undecided", "easy"),
    "no result for half": ({"failed": 0.5}, "undecided", "failures"),
    "no result for less": ({"failed": 0.49}, "no leak found", "nothing"),
    "static": ({"adaptive": False}, "static", "static"),
    "static, the head is private": ({"adaptive": False, "defended": False, "private": True}, "static", "static"),
    "static, nothing is hidden": ({"adaptive": False, "defended": False}, "undecided", "undefended"),
    "undefended": ({"defended": False}, "undecided", "undefended"),
    "undefended, the head is private": ({"defended": False, "private": True}, "undecided", "undefended"),
    "the one who knows less is better": ({"outdone": "2.0 dB on average"}, "undecided", "outdone"),
    "the weak defence fails": ({"weak_defence": failed()}, "undecided", "weak_defence"),
    "the weak defence was not tried": ({"weak_defence": ControlResult(None, None)}, "undecided", "weak_defence"),
    "undefended fails": ({"undefended": failed()}, "undecided", "undefended_control"),
    "most searches end short": ({"searched": SHORT}, "undecided", "search"),
    "half of the searches end short": ({"searched": REACHED}, "no leak found", "nothing"),
    "seven messages": ({"messages": 7}, "undecided", "few"),
    "noise of another law": ({"noise": "in weight its law is not the normal one"}, "undecided", "noise"),
    "the messages point to the truth": ({"candidate_test": BEYOND}, "identified", "candidates"),
    "they do, whatever the controls": (
        {"candidate_test": BEYOND, "weak_defence": failed()},
        "identified",
        "candidates",
    ),
    "they do, static": ({"candidate_test": BEYOND, "adaptive": False}, "identified", "candidates"),
    "they do by chance": ({"candidate_test": CHANCE}, "no leak found", "nothing"),
    "they do in one of three tests": ({"candidate_test": BEYOND, "num_tests": 3}, "undecided", "few"),
    "the results do, and the messages": ({"identified": BEYOND, "candidate_test": BEYOND}, "identified", "identified"),
    "luck": ({"chance_match": 2}, "undecided", "chance"),
    "luck beside a recovery": ({"chance_match": 2, "recovered": 1}, "reconstructed", "recovered"),
    "luck, and the easy control fails": ({"chance_match": 2, "easy": failed()}, "undecided", "chance"),
}


def concluded(**changes: Any) -> Verdict:
    controls = {name: value for name, value in changes.items() if hasattr(GOOD, name)}
    facts = {name: value for name, value in changes.items() if name not in controls}
    return verdict_on(replace(NOTHING_FOUND, controls=replace(GOOD, **controls), **facts).findings())


@pytest.mark.parametrize("case", CASES)
def test_verdict(case: str) -> None:
    changes, word, cause = CASES[case]
    assert (outcomes.outcome(outcomes.concluded(*concluded(**changes))), concluded(**changes).cause) == (word, cause)


def test_a_control_without_a_number_counts_as_none_recovered() -> None:
    assert "(0.0 dB)" in concluded(weak_defence=ControlResult(None, None)).reason


def test_no_leak_found_says_whether_candidates_were_held_against_the_messages() -> None:
    assert "not with the message itself, which may tell more" in concluded().reason
    held = concluded(candidate_test=CHANCE, num_tests=4).reason
    assert "The true data explain 1 of 1 messages better than any other data of the same client" in held
    assert "(p = 0.02, no finding among 4 tests)" in held


@pytest.mark.slow
def test_more_messages_after_a_doubtful_result_leave_false_leaks_below_twice_the_level() -> None:
    draw, tests, leaks, doubtful = numpy_generator(0, "two looks"), 6, 0, 0
    for _ in range(2000):
        for messages in (8, 16):  # the second audit is made only where the first one asks for it
            drawn = [candidate_test([19] * messages, lambda m: draw.random(20).tolist()) for _ in range(tests)]
            found = [concluded(candidate_test=one, num_tests=tests) for one in drawn]
            leaks += any(one.verdict == outcomes.LEAKS for one in found)
            if not any(one.cause == "few" for one in found):
                break
            doubtful += 1
    assert 0 < doubtful <= 2000 * tests * 0.015 and leaks <= 2000 * 0.02 + 3 * (2000 * 0.02) ** 0.5


def test_a_leak_through_a_wrong_description_says_that_more_may_leak() -> None:
    reason = concluded(recovered=2, attacked=48, consistency=failed()).reason
    assert reason.startswith("2 of 48") and "does not explain the message" in reason and "its numbers." in reason
    assert "explain" not in concluded(recovered=2).reason


@pytest.mark.parametrize(("truth", "result"), [(68.4001, 68.4002), (1.0, 2.0)])
def test_a_search_that_ends_short_shows_two_different_numbers(truth: float, result: float) -> None:
    reason = concluded(searched=Searched(truth, result, 90.0, 8, 8)).reason
    shown = re.search(r"objective ([\d.]+)\) than its results do \(([\d.]+);", reason)
    assert shown is not None and float(shown[1]) < float(shown[2])


def test_an_undefended_target_never_gets_no_leak_found() -> None:
    controls = ({}, {"weak_defence": failed()}, {"consistency": ControlResult(None, None)})
    for control, adaptive, private, short in product(controls, (True, False), (True, False), (SHORT, None)):
        facts = {"adaptive": adaptive, "private": private, "searched": short}
        assert concluded(**control, **facts, defended=False).verdict != "no leak found"


def test_reasons_name_what_decided() -> None:
    broken = concluded(analytic=failed()).reason
    assert "closed form" in broken and "12.8 dB" in broken and "must reach 40" in broken
    assert "12.8" in concluded(easy=failed()).reason and "undefended" in concluded(easy=failed()).reason
    assert "not evidence of protection" in concluded(adaptive=False).reason
    assert concluded(recovered=1).reason == "1 of 8 attacked examples were reconstructed."
    assert "does not explain the message. its numbers." in concluded(consistency=failed()).reason
    assert "Up to 31%" in concluded().reason and "within its budget" in concluded().reason
    assert "35% of such messages" in concluded(messages=7).reason
    assert (
        "1 of 1 results" in concluded(identified=BEYOND).reason and "p = 0.004" in concluded(identified=BEYOND).reason
    )
    assert "5 of 8 messages" in concluded(searched=SHORT).reason


def test_thresholds_are_those_the_documents_state() -> None:
    assert (CONTROL_DB, EASY_SHARE, FAILED_SHARE, MESSAGES) == (40.0, 0.5, 0.5, 8)


# --- audits of known answer ---


NOTHING, BLANKS = (f"{cls.__module__}:{cls.__name__}" for cls in (SendsNothing, Blanks))


def audited(folder: Path, **changes: Any) -> tuple[Path, Experiment]:
    experiment = tiny(folder, **changes)
    return whole.run(experiment), experiment


def refuse(constant: str) -> None:
    raise AssertionError(f"result.json holds {constant}, which is not JSON")


def entries(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text(), parse_constant=refuse)["audit"]


def rows(folder: Path, control: str) -> list[dict[str, str]]:
    return read_csv(folder / "audit.csv", rung=control)


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    return audited(tmp_path_factory.mktemp("leaking") / "run")


@pytest.mark.slow
def test_softmax_regression_leaks_before_and_after_training(leaking: tuple[Path, Experiment]) -> None:
    before, after = entries(leaking[0])
    assert (before["round"], after["round"]) == (0, 1)
    for entry in (before, after):
        assert entry["verdict"] == "leaks" and entry["share_recovered"] == 1.0 and entry["failures"] == 0
        assert entry["images"] == 2 and entry["adaptive"] is True
        assert entry["psnr"]["mean"] > 100
        assert [(control["rung"], control["passed"]) for control in entry["ladder"]] == [
            ("analytic", True), ("easy", True), ("consistency", True)
        ]  # fmt: skip
        assert entry["floors"]["nearest_public"] < 40
    assert (leaking[0] / "report.html").stat().st_size > 0


def test_the_rows_of_an_audit_are_measured_against_the_truth(leaking: tuple[Path, Experiment]) -> None:
    folder, _ = leaking
    targets = rows(folder, "target")
    assert [(row["round"], row["client"], row["probe_slot"]) for row in targets] == [
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


@pytest.mark.slow
def test_a_defence_that_sends_nothing_is_static_only_and_no_proof(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", defence=NOTHING, audit_rounds="0")
    (entry,) = entries(folder)
    assert outcomes.outcome(entry) == "static" and entry["share_recovered"] == 0.0
    assert entry["adaptive"] is False and entry["defence"] == NOTHING
    assert entry["ladder"][1]["passed"] is True and entry["ladder"][1]["psnr"] > 100  # the controls are undefended
    assert any("not granted" in line and NOTHING in line for line in entry["granted"])
    assert {row["recovered"] for row in rows(folder, "target")} == {"False"}
    assert {row["recovered"] for row in rows(folder, "easy")} == {"True"}


@pytest.mark.slow
def test_one_undefended_client_is_enough_to_leak(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", defence=BLANKS, defended="1", audit_rounds="0")
    defended, other = entries(folder)
    assert (outcomes.outcome(defended), defended["defence"], defended["share_recovered"]) == ("static", BLANKS, 0.0)
    assert (other["verdict"], other["defence"], other["share_recovered"]) == ("leaks", "none", 1.0)
    assert [(row["client"], row["recovered"]) for row in rows(folder, "target")] == [("0", "True"), ("1", "False")]


@pytest.mark.slow
def test_attacks_that_do_not_work_on_the_fresh_net_decide_nothing(tmp_path: Path) -> None:
    folder, _ = audited(
        tmp_path / "run", net="lenet", attack=("analytic", "ig"), set=("ig.iterations=1",), audit_rounds="0"
    )
    analytic, ig = entries(folder)
    assert (analytic["attack"], analytic["verdict"], analytic["failures"]) == ("analytic", "undecided", 2)
    assert analytic["psnr"] is None and analytic["ladder"][0]["passed"] is True
    assert (ig["attack"], ig["verdict"], ig["failures"]) == ("ig", "undecided", 0)
    assert ig["psnr"]["mean"] < 20 and ig["iterations"] == 1


@pytest.mark.slow
def test_rows_of_numbers_are_judged_by_their_deviation(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", dataset="cancer", net="mlp", audit_rounds="0")
    (entry,) = entries(folder)
    assert entry["verdict"] == "leaks" and entry["share_recovered"] == 1.0
    assert entry["psnr"] is None and entry["ssim"] is None
    assert entry["distance"]["rmsd"] < 1e-5 and entry["distance"]["success"] == 1.0


@pytest.mark.slow
def test_a_private_head_does_not_hide_a_fully_connected_first_layer(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", method="fedper", net="mlp", audit_rounds="0")
    (entry,) = entries(folder)
    assert entry["verdict"] == "leaks" and entry["adaptive"] is False and entry["psnr"]["mean"] > 100
    private = "not granted: the client's private tensors (classifier.weight, classifier.bias), "
    assert any(line.startswith(private) for line in entry["granted"])


@pytest.mark.slow
def test_an_attack_that_cannot_work_on_a_generated_net_concludes_nothing_there(tmp_path: Path) -> None:
    folder, _ = audited(tmp_path / "run", method="hyperfl", net="mlp", audit_rounds="0")
    (entry,) = entries(folder)
    assert (entry["verdict"], entry["failures"], entry["share_recovered"]) == ("undecided", 2, 0.0)
    assert entry["ladder"][1]["passed"] is True  # the plain network of the easy control gave its examples away


# --- faulty recordings ---


def audited_again(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """The verdict on the recordings as they now are."""
    experiment = without_auto(experiment)
    with auditing(*clients_and_audit(plan(experiment)), plan(experiment).task.load(None), folder) as auditor:
        assert auditor is not None
        return auditor.run()[0][0]


def tampered(leaking: tuple[Path, Experiment], folder: Path, change: Any) -> dict[str, Any]:
    """Audit a copy in which the answers to the control probes, by slot, have been changed."""
    shutil.copytree(leaking[0], folder)
    manifest = folder / "observations" / "manifest.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    controls = [line for line in lines if line.get("config", {}).get("control") == "analytic"]
    controls.sort(key=lambda line: line["config"]["slot"])
    probes = Recordings(folder / "observations").probes("analytic", 0)
    for line, observation, answer in zip(controls, probes, change([seen.sent for seen in probes]), strict=True):
        record_answer(folder / "observations", line, answer, observation.received)
    rewrite(folder / "observations", lines)
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
    assert outcomes.outcome(entry) == "void" and entry["ladder"][0]["passed"] is False
    assert entry["share_recovered"] == 1.0  # whatever the attack itself seems to have found


@pytest.mark.parametrize("slot", [0, 1])
def test_one_empty_control_answer_is_a_broken_attack(
    leaking: tuple[Path, Experiment], tmp_path: Path, slot: int
) -> None:
    def emptied(answers: list[Tensors]) -> list[Tensors]:
        zeros = {name: torch.zeros_like(value) for name, value in answers[slot].items()}
        return [zeros if i == slot else answer for i, answer in enumerate(answers)]

    entry = tampered(leaking, tmp_path / "copy", emptied)
    assert entry["ladder"][0]["passed"] is False and outcomes.outcome(entry) == "void"


# --- what is said of attacks that broke ---


def broke(stopped: str | None, on_easy: str | None) -> dict[str, Any]:
    controls = [{"failure_reason": None}, {"failure_reason": on_easy}]
    return {"attack": "a", "round": 3, "failure_reason": stopped, "ladder": controls}


def test_an_attack_that_broke_is_named_once_wherever_it_did() -> None:
    assert breakdowns([broke("crashed: it", None), broke(None, None)]) == [
        "The attack a gave nothing at round 3: crashed: it."
    ]
    on_easy = [broke(None, "ended after 1 s, its budget")] * 2  # the same control stands below every round
    assert breakdowns(on_easy) == ["The attack a gave nothing on the easy case: ended after 1 s, its budget."]
    assert breakdowns([broke("not applicable: no layer", "not applicable: no layer")]) == []


def test_an_easy_control_that_broke_is_not_called_too_weak() -> None:
    easy = ControlResult(0.0, False, failure_reason="crashed: it")
    word, _, reason = concluded(easy=easy)
    assert word == "undecided" and "crashed: it" in reason and "stronger attack" not in reason


def row(victim: int, db: float | None, recovered: bool = False) -> ScoreRow:
    floors = {f"floor_{floor}": 8.0 for floor in FLOORS}
    return {
        "probe_slot": victim,
        "image": 0,
        "db": db,
        "psnr": db,
        "gain": None if db is None else db - 8.0,
        "recovered": recovered,
        "chance_match": False,
        **floors,
    }


def told(rows: list[ScoreRow], untold: list[ScoreRow]) -> dict[str, Any]:
    details = {"attack": "a", "adaptive": True, "batch": 1, "steps": 1, "iterations": 1}
    known: ScoreRow = dict.fromkeys(
        ("ssim", "lpips", "feature_error", "ceiling", "rmsd", "rank", "candidates", "assignment_null", "client")
    )
    known |= {"iterations": None, "failed": False, "succeeded": False, "exact": False, "exact_features": None}
    known |= {"label_accuracy": None, "floor_features": None}
    return summed(
        details,
        JobResult("job", ()),
        [known | one for one in rows],
        len(rows),
        0,
        ReconstructionEvidence(GOOD, defended=True),
        untold,
    )


def test_knowing_of_a_defence_is_compared_image_for_image() -> None:
    result = told([row(0, 15.0), row(1, 12.0)], [row(1, 9.0), row(0, 10.0)])  # +5 and +3
    assert result["adaptive_gain"]["mean"] == 4.0 and result["cause"] == "few"
    assert told([row(0, 15.0)], [])["adaptive_gain"] is None
    assert told([row(0, None)], [row(0, None)])["adaptive_gain"] is None  # nothing was measured
    failed = told([row(i, 12.0 if i else None) for i in range(3)], [row(i, 10.0) for i in range(3)])
    assert failed["adaptive_gain"]["mean"] == 2.0  # of those that both gave
    assert failed["verdict"] == "undecided" and "for 3 examples instead of 2" in failed["reason"]


@pytest.mark.parametrize(
    ("ours", "theirs", "cause"),  # guesses without a message reach 8 dB
    [
        ([10.0, 11.0, 12.0], [11.0, 12.0, 13.0], "outdone"),  # each is worse
        ([10.0, 11.0, 12.0], [13.0, 8.0, 12.5], "few"),  # worse by 0.2 dB, but not for sure
        ([10.0], [10.5], "outdone"),  # of one image there is no interval
        ([5.0, 6.0, 7.0], [6.0, 7.0, 7.9], "few"),  # each is worse, and no better than a guess
        ([5.0], [8.0], "few"),
    ],
)
def test_an_attack_that_does_worse_for_knowing_more_proves_nothing(
    ours: list[float], theirs: list[float], cause: str
) -> None:
    result = told([row(i, db) for i, db in enumerate(ours)], [row(i, db) for i, db in enumerate(theirs)])
    assert (result["verdict"], result["cause"]) == ("undecided", cause)
    assert ("poor use of what it knows" in result["reason"]) is (cause == "outdone")


def test_an_attack_that_recovers_fewer_for_knowing_more_proves_nothing() -> None:
    result = told([row(0, 15.0), row(1, 30.0)], [row(0, 20.5, recovered=True), row(1, 9.0)])
    assert result["verdict"] == "undecided" and "1 of 2 examples reconstructed" in result["reason"]


def test_an_easy_control_of_few_recordings_is_not_passed() -> None:
    rows, result = [{"recovered": True, "db": 90.0}], JobResult("job", (None,))
    assert not control_runs.easy(rows, 8, result).passed
    assert control_runs.easy(rows, 2, result).passed


@pytest.mark.parametrize(("psnr", "text"), [(90.0, "90.0 dB"), (None, "passed")])
def test_only_images_have_decibels_on_the_terminal(psnr: float | None, text: str) -> None:
    rows, result = [{"recovered": True, "db": 90.0, "psnr": psnr}], JobResult("job", (None,))
    assert control_runs.easy_words(rows, control_runs.easy(rows, 1, result)) == text
    assert control_runs.easy_words([], control_runs.easy([], 1, result)) == "no example gave a result"
