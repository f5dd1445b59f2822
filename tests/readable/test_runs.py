"""Run folders of today: attacked again, compared, repeated, purged, resumed; or refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flfw import Result
from tests.readable.outside import HERE, WARNINGS, Change, copied, edit, reseal, simulation

pytestmark = WARNINGS

FINISHED, TRAINED, CUT = "runs/finished", "runs/trained", "runs/cut"
FEW = ("--attack", "ig", "--set", "ig.iterations=1")


def content(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


STORED = content(HERE / FINISHED)


def lacking(result: Any, keys: list[str], inside: str = "") -> list[str]:
    """Names of the keys, such as ``rounds[].loss``, that a result lacks; of a list without entries none."""
    result_lacks = []
    for key in keys:
        head, _, rest = key.partition(".")
        name, is_list = head.removesuffix("[]"), head.endswith("[]")
        if name not in result:
            result_lacks.append(f"{inside}{key}")
        elif rest:
            parts = result[name] if is_list else [result[name]]
            result_lacks += [lack for part in parts for lack in lacking(part, [rest], f"{inside}{head}.")]
    return result_lacks


def test_keys_that_a_result_lacks_are_named() -> None:
    assert lacking({"a": [{"b": {"c": 1}}, {}], "d": []}, ["a[].b.c", "d[].e", "f"]) == ["a[].b.c", "f"]


KEYS = (HERE / "result_keys.txt").read_text().split()


@pytest.mark.slow
def test_an_audit_made_of_todays_recordings(tmp_path: Path) -> None:
    """`--from` reads the run, and writes a result with every key that scripts rely on, and a report."""
    run, out = copied(FINISHED, tmp_path / "run"), tmp_path / "again"
    simulation("--from", run, *FEW, "--out", out).require_done()
    again = content(out)
    assert lacking(STORED, KEYS) == lacking(again, KEYS) == []
    assert again["rounds"] == STORED["rounds"] and again["final"] == STORED["final"]
    targets = [(entry["attack"], entry["round"], entry["source"], entry["images"]) for entry in again["audit"]]
    assert targets == [("ig", 0, "probe", 2), ("ig", 2, "probe", 2)]
    assert "ig" in (out / "report.html").read_text()
    assert content(run) == STORED


def test_runs_of_today_are_compared(tmp_path: Path) -> None:
    """The means of PSNR, and every statistic on membership, are those of result.json."""
    other = copied(FINISHED, tmp_path / "other")
    ended = simulation("--compare", HERE / FINISHED, other)
    ended.require_done()
    means = [f"{entry['psnr']['mean']:.1f}" for entry in STORED["audit"]]
    statistics = [entry["statistic"] for entry in STORED["membership"]]
    assert len(means) == 2 and len(statistics) == 8
    assert [word for word in (*means, *statistics, "finished", "other") if word not in ended.out] == []


def test_a_result_of_today_is_read_as_tables() -> None:
    result = Result.load(HERE / FINISHED)
    assert result.rounds["acc_global"].tolist() == [row["acc_global"] for row in STORED["rounds"]]
    assert result.audit["psnr.mean"].tolist() == [entry["psnr"]["mean"] for entry in STORED["audit"]]
    assert result.membership["auc"].tolist() == [entry["auc"] for entry in STORED["membership"]]
    assert (result.verdict, result.experiment.method) == ("undecided", "fedavg")
    assert result.membership["correct.correct"].tolist() == [entry["right"]["right"] for entry in STORED["membership"]]
    assert result.audit["worst.probe_slot"].tolist() == [entry["worst"]["victim"] for entry in STORED["audit"]]
    assert result.audit["ladder"][0][0]["rung"] == "analytic" and result.images["probe_slot"].notna().all()
    assert (len(result.images), len(result.clients), len(result.failures)) == (6, 6, 0)


def test_a_run_of_today_is_purged(tmp_path: Path) -> None:
    """What holds clients' data goes; the figures stay, and the report is made anew of them."""
    run = copied(FINISHED, tmp_path / "run")
    simulation("--purge", run).require_done()
    left = {file.name for file in run.iterdir()}
    assert left & {"observations", "truth", "reconstructions", "checkpoint"} == set()
    assert {"result.json", "rounds.csv", "clients.csv", "audit.csv", "report.html"} <= left
    assert content(run)["audit"] == STORED["audit"]


@pytest.mark.slow
def test_a_run_of_today_is_repeated(tmp_path: Path) -> None:
    """Every figure is compared: it may differ, on another machine or with another torch, but it is there."""
    run = copied(FINISHED, tmp_path / "run")
    ended = simulation("--verify", run)
    assert ended.code in (0, 1), ended.err
    repeated = content(run / "verify-1")
    assert lacking(repeated, KEYS) == []
    assert repeated["final"]["acc_global"] == pytest.approx(STORED["final"]["acc_global"], abs=0.02)
    assert (run / "verify-1" / "verify.json").is_file()


@pytest.mark.slow
def test_a_run_of_today_that_was_cut_short_is_resumed(tmp_path: Path) -> None:
    """Round 1 is the stored one, and round 2 follows with the clients' own tensors."""
    run = copied(CUT, tmp_path / "run")
    simulation("--resume", run).require_done()
    result = content(run)
    history = [json.loads(line) for line in (HERE / CUT / "checkpoint" / "history.jsonl").read_text().splitlines()]
    (first,) = [row for line in history for row in line["rounds"] if row["round"] == 1]
    assert [row["round"] for row in result["rounds"]] == [1, 2]
    assert result["rounds"][0]["loss"] == first["loss"] > result["rounds"][1]["loss"]
    assert [entry["round"] for entry in result["audit"]] == [0, 2] and lacking(result, KEYS) == []
    begun = json.loads(stored(HERE / CUT, "experiment").read_text())
    assert result["provenance"]["resumed"][0]["code"] != begun["code"] in " ".join(result["notes"])
    assert [one["after_round"] for one in result["provenance"]["resumed"]] == [1]
    assert (run / "report.html").is_file()


@pytest.mark.slow
def test_a_run_of_today_that_was_killed_before_its_audit_is_audited(tmp_path: Path) -> None:
    run = copied(TRAINED, tmp_path / "run")
    simulation("--resume", run).require_done()
    result = content(run)
    assert [(row["round"], row["loss"]) for row in result["rounds"]] == [
        (row["round"], row["loss"]) for row in json.loads((HERE / TRAINED / "training.json").read_text())["rounds"]
    ]
    assert [(entry["attack"], entry["round"]) for entry in result["audit"]] == [("ig", 0), ("ig", 2)]
    assert (run / "report.html").is_file() and not (run / "training.json").exists()


# --- what is older, newer or damaged ---------------------------------------------------------------------------------


def stored(run: Path, stem: str) -> Path:
    (file,) = (run / "checkpoint").glob(f"{stem}-*")
    return file


def settings(change: Change) -> Callable[[Path], object]:
    """Change the file with the run's settings, as another version would have written it."""
    return lambda run: reseal(stored(run, "experiment"), lambda file: edit(file, change))


def round_file(**changes: Any) -> Callable[[Path], object]:
    def change(file: Path) -> None:
        with safe_open(file, "pt") as opened:
            metadata = json.loads(opened.metadata()["flfw"])
        save_file(load_file(file), file, {"flfw": json.dumps({**metadata, **changes})})

    return lambda run: reseal(stored(run, "round"), change)


OTHER = "go on with the version of flfw that wrote it"
CHECKPOINTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a newer format": (settings(lambda file: file.update(format=99)), OTHER),
    "no format": (settings(lambda file: file.pop("format")), "Expected format, got none"),
    "a setting of a later version": (settings(lambda file: file["experiment"].update(shuffle="twice")), "got shuffle"),
    "no setting of today": (settings(lambda file: file["experiment"].pop("metrics")), "got no metrics"),
    "a setting of another type": (settings(lambda file: file["experiment"].update(rounds="two")), "rounds"),
    "no id": (settings(lambda file: file.pop("id")), "Expected id, got none"),
    "changed settings": (lambda run: edit(stored(run, "experiment"), lambda file: file.update(id="0")), "damaged"),
    "no settings": (lambda run: stored(run, "experiment").unlink(), "start it anew"),
}
ROUNDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a round in a newer format": (round_file(format=99), OTHER),
    "a round of another run": (round_file(experiment="experiment-0"), "of another experiment"),
    "a round without its mark": (round_file(history=None), "history"),
    "a changed round": (lambda run: stored(run, "round").write_bytes(b"0"), "damaged"),
    "no round": (lambda run: stored(run, "round").unlink(), "restore it"),
    "a changed history": (lambda run: (run / "checkpoint" / "history.jsonl").write_text("{}\n"), "damaged"),
    "another data set": (lambda run: reseal(stored(run, "data"), lambda file: file.write_text("0")), "other"),
}


@pytest.mark.parametrize(("change", "words"), {**CHECKPOINTS, **ROUNDS}.values(), ids=[*CHECKPOINTS, *ROUNDS])
def test_a_run_that_is_not_understood_is_not_resumed(
    tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    run = copied(CUT, tmp_path / "run")
    change(run)
    simulation("--resume", run).require_refused(words)
    assert not (run / "result.json").exists()


@pytest.mark.parametrize(("change", "words"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_run_that_is_not_understood_is_not_attacked(
    tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    run = copied(FINISHED, tmp_path / "run")
    change(run)
    simulation("--from", run, *FEW, "--out", tmp_path / "again").require_refused(words)
    assert not (tmp_path / "again").exists()


def result(change: Change) -> Callable[[Path], object]:
    return lambda run: edit(run / "result.json", change)


RESULTS: dict[str, Callable[[Path], object]] = {
    "cut off": lambda run: (run / "result.json").write_bytes((run / "result.json").read_bytes()[:999]),
    "a list": lambda run: (run / "result.json").write_text("[]"),
    "no settings": result(lambda file: file.pop("config")),
    "a round without its number": result(lambda file: file["rounds"][0].pop("round")),
    "a loss in words": result(lambda file: file["rounds"][0].update(loss="low")),
    "an attack without its name": result(lambda file: file["audit"][0].pop("attack")),
}


@pytest.mark.parametrize("change", RESULTS.values(), ids=RESULTS)
def test_a_result_that_is_not_understood_is_refused(tmp_path: Path, change: Callable[[Path], object]) -> None:
    run = copied(FINISHED, tmp_path / "run")
    change(run)
    simulation("--compare", HERE / FINISHED, run).require_refused(str(run))


TRAININGS: dict[str, Change] = {
    "a round without its number": lambda file: file["rounds"][0].pop("round"),
    "rounds in words": lambda file: file.update(rounds="two"),
    "no rounds": lambda file: file.pop("rounds"),
    "no engine": lambda file: file.pop("engine"),
}


@pytest.mark.parametrize("change", TRAININGS.values(), ids=TRAININGS)
def test_a_training_that_is_not_understood_is_not_audited(tmp_path: Path, change: Change) -> None:
    run = copied(TRAINED, tmp_path / "run")
    edit(run / "training.json", change)
    simulation("--resume", run).require_refused("training.json")
    assert not (run / "result.json").exists()


def test_what_a_later_version_adds_to_a_result_does_no_harm(tmp_path: Path) -> None:
    run = copied(FINISHED, tmp_path / "run")
    result(lambda file: (file.update(more=[1]), file["audit"][0].update(more=1), file["rounds"][0].update(more=1)))(run)
    simulation("--compare", HERE / FINISHED, run).require_done()
    assert Result.load(run).content["more"] == [1]
