"""What trackers are handed, when, and what becomes of those that fail."""

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.runs import run
from flfw.runs.tracking import TrackedRun, following
from flfw.runs.tracking.following import NOTES, Follower, TrackerNotes, tracked
from tests.support.paths import ROOT
from tests.support.resumed_runs import cut_short
from tests.support.small_runs import tiny
from tests.support.trackers import Failing, Lacking, Noting, Unanswered

PAGE = ROOT / "docs" / "tracking.md"
NOTING, FAILING, LACKING, UNANSWERED = (
    f"{cls.__module__}:{cls.__name__}" for cls in (Noting, Failing, Lacking, Unanswered)
)


def calls(folder: Path) -> list[list[Any]]:
    """Read what `Noting` was called with."""
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_tracker_is_handed_the_rounds_the_audit_and_the_end_in_this_order(tmp_path: Path) -> None:
    folder = run.run(tiny(tmp_path / "run", rounds=2, track=(NOTING,)))
    result = json.loads((folder / "result.json").read_text())
    start, one, two, audit, end = calls(folder)
    assert start == ["start", "run", "", 0]
    for got, row in zip((one, two), result["rounds"], strict=True):
        assert got[:2] == ["round", row["round"]]
        assert got[2]["loss"] == row["loss"] and got[2]["upload_bytes"] == row["upload_bytes"]
    assert audit[1:] == [["analytic", 0, "leaks"], ["analytic", 2, "leaks"]]
    assert end[1] == "finished" and end[2]["final/acc_local"] == result["final"]["acc_local"]


@pytest.mark.slow
def test_no_pictures_are_handed_over_unless_they_were_asked_for(tmp_path: Path) -> None:
    for pictures, handed in (("auto", False), ("yes", True)):
        folder = run.run(tiny(tmp_path / pictures, show_samples=pictures, track=(NOTING,)))
        assert b"data:image" in (folder / "report.html").read_bytes()
        *_, names, shown = calls(folder)[-1]
        assert names == ["result.json", "report.html"] and shown == [False, handed]


@pytest.mark.slow
def test_rounds_are_handed_over_while_the_run_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "history.jsonl"
    follower = Follower(NOTING, Experiment(), tmp_path, "live", journal, TrackerNotes(tmp_path))
    line = json.dumps({"rounds": [{"round": 1, "loss": 0.5}]})
    journal.write_text(json.dumps({"rounds": []}) + "\n" + line)  # the second line has no end yet
    while not (tmp_path / "calls.jsonl").exists():
        time.sleep(0.1)
    time.sleep(1.2)
    assert [call[0] for call in calls(tmp_path)] == ["start"]
    with journal.open("a") as file:
        file.write("\n")
    while len(calls(tmp_path)) < 2:
        time.sleep(0.1)
    assert calls(tmp_path)[1] == ["round", 1, {"loss": 0.5}]
    follower.finish("failed")
    assert follower.ends(100.0)
    assert calls(tmp_path)[2:] == [["end", "failed", {}, [], []]]


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_record_after_the_rounds_it_has(tmp_path: Path) -> None:
    folder = cut_short(tiny(tmp_path / "run", rounds=3, track=(NOTING,)), 2)
    assert [call[:2] for call in calls(folder)[1:]] == [["round", 1], ["round", 2], ["end", "failed"]]
    run.resume(run.stored(folder))
    again = calls(folder)[4:]
    assert again[0] == ["start", "run", "record-7", 2]
    assert [call[:2] for call in again[1:]] == [["round", 3], ["audit", ["analytic", 0, "leaks"]], ["end", "finished"]]
    assert json.loads((folder / NOTES).read_text()) == {NOTING: {"record": "record-7", "round": 3}}


@pytest.mark.slow
def test_a_tracker_that_fails_is_said_once_and_ends_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = run.run(tiny(tmp_path / "run", rounds=3, track=(FAILING, NOTING)))
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning:")]
    why = "gets no further figures of this run, which goes on: the server is gone"
    assert lines == [f"warning: {FAILING} {why}"]
    assert [call[0] for call in calls(folder)] == ["start", "round", "round", "round", "audit", "end"]
    assert json.loads((folder / NOTES).read_text())[FAILING]["round"] == 1  # so a resumed run hands over round 2


@pytest.mark.slow
def test_a_tracker_that_does_not_come_to_its_end_costs_no_other_one_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flfw.runs.tracking.following._PATIENCE_S", 2.0)
    with tracked(Experiment(track=(UNANSWERED, NOTING)), tmp_path):
        pass
    warnings = [line for line in capfd.readouterr().err.splitlines() if "did not take" in line]
    assert warnings == [f"warning: {UNANSWERED} did not take the run's figures within 2 s"]
    assert [call[0] for call in calls(tmp_path)] == ["start", "end"]
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "history.jsonl").write_text('{"rounds": [{"round": 3}]}\n')
    (late,) = (thread for thread in threading.enumerate() if UNANSWERED in thread.name)
    late.join(20.0)
    assert len(calls(tmp_path)) > 2


@pytest.mark.slow
def test_a_tracker_that_is_slow_to_begin_holds_up_no_round(tmp_path: Path) -> None:
    start, seen, *rest = calls(run.run(tiny(tmp_path / "run", rounds=3, track=(UNANSWERED,))))
    assert start[0] == "start" and seen == ["has round 3", True]
    assert [call[:2] for call in rest[:3]] == [["round", 1], ["round", 2], ["round", 3]]
    assert [call[0] for call in rest[3:]] == ["audit", "end"]


def test_settings_are_handed_over_without_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(
        dataset="csv:/home/user/stays.csv@cost?columns=/home/user/plan.toml",
        set=("csv.columns=/home/user/plan.toml", "ig.iterations=10"),
        data_root=Path("/home/user"),
        track=(NOTING,),
    )
    seen: list[TrackedRun] = []
    monkeypatch.setattr(Noting, "on_start", lambda _, run: seen.append(run) or "")
    with tracked(experiment, tmp_path):
        pass
    config = seen[0].config
    assert config["dataset"] == "csv:stays.csv@cost?columns=plan.toml"
    assert config["set"] == "csv.columns=plan.toml ig.iterations=10" and "/home" not in str(config)


@pytest.mark.slow
def test_the_tracker_of_the_docs_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n# mylab/lines.py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab" / "lines.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = run.run(tiny(tmp_path / "run", track=("mylab.lines:Lines",)))
    begun, one, before, after, end = (folder / "lines.txt").read_text().splitlines()
    assert begun == "run begins" and one.startswith("round 1: {'loss': ") and end.startswith("finished: {'final/acc_")
    assert (before, after) == ("analytic at round 0: leaks", "analytic at round 1: leaks")


@pytest.mark.slow
def test_an_audit_of_a_recorded_run_has_a_record_without_rounds(tmp_path: Path) -> None:
    folder = run.run(tiny(tmp_path / "run"))
    earlier = run.stored(folder)
    again = run.audit_recordings(folder, earlier, tiny(tmp_path / "again", track=(NOTING,)))
    assert [call[0] for call in calls(again)] == ["start", "audit", "end"]
    assert calls(again)[0][1] == "run/again"


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "interrupted"), (RunError, "failed")])
def test_trackers_are_told_how_a_run_ended(tmp_path: Path, error: type[BaseException], status: str) -> None:
    with pytest.raises(error), tracked(Experiment(track=(NOTING,)), tmp_path):
        raise error
    assert calls(tmp_path)[-1] == ["end", status, {}, [], []]


@pytest.mark.parametrize(
    ("track", "line"),
    [
        (
            (LACKING,),
            f"Expected the package no_such_package_here for --track {LACKING}, got none; "
            "pip install no_such_package_here.",
        ),
        (
            ("tensorbord",),
            "Got tracker=tensorbord; did you mean tensorboard? Expected a tracker among mlflow, tensorboard, wandb, or "
            "package.module:Class.",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(tmp_path: Path, track: tuple[str, ...], line: str) -> None:
    with pytest.raises(InputError) as refused:
        run.run(tiny(tmp_path / "run", track=track))
    assert str(refused.value) == line and not (tmp_path / "run").exists()


def test_without_a_package_the_way_out_is_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from flfw.runs.tracking.tracker import check
    from flfw.runs.tracking.writers.tensorboard import TensorBoard

    monkeypatch.setattr(TensorBoard, "packages", ("no_such_package_here",))
    with pytest.raises(InputError, match=r"--track tensorboard, got none; pip install flfw\[tracking\]\.$"):
        check(("tensorboard",))


def test_none_is_no_tracker_and_none_is_named_twice() -> None:
    assert Experiment(track=("none",)).trackers == Experiment().trackers == ()
    with pytest.raises(InputError, match="Expected each tracker once, got track=wandb wandb"):
        Experiment(track=("wandb", "wandb"))


def test_figures_of_attacks_with_one_name_are_told_apart() -> None:
    entry = {"attack": "ig", "round": 0, "verdict": "leaks", "adaptive": True, "failures": 0, "psnr": {"mean": "inf"}}
    curved = {**entry, "curve": "batch", "batch": 4, "steps": 1, "psnr": None, "share_recovered": 0.25}
    audited = following.of_audit({"audit": [entry, entry, curved]})
    assert [one.name for one in audited] == ["ig", "ig-2", "ig-batch-4"]
    assert audited[0].figures == {"psnr/mean": float("inf"), "failures": 0}
    assert audited[2].figures == {"share_recovered": 0.25, "failures": 0}


def test_claims_are_named_by_unit_and_adversary() -> None:
    claim = {"unit": "example", "adversary": "another client", "epsilon": 2.5, "accounting": "exactly"}
    result = {
        "final": {"acc_local": 0.5, "per_client": []},
        "privacy": [claim, {**claim, "accounting": "as published"}],
    }
    assert following.of_end(result) == {
        "final/acc_local": 0.5,
        "epsilon/example/another-client": 2.5,
        "published-epsilon/example/another-client": 2.5,
    }
