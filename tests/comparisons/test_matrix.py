"""A matrix: its question, its runs, what they show when they are pooled and paired, and its page."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flfw.audit.measures.statistics import share_interval
from flfw.comparisons import matrices as matrix
from flfw.comparisons import tables
from flfw.comparisons.compare import table
from flfw.comparisons.findings import combine, comparisons, reference, uneven_budgets
from flfw.comparisons.matrices import fill_defaults
from flfw.comparisons.page import render
from flfw.comparisons.picture import PlotMark, Scatter, draw
from flfw.comparisons.question import Matrix, parse
from flfw.comparisons.rows import AttackSetting, read
from flfw.comparisons.significance import ranked
from flfw.comparisons.tables import markdown
from flfw.comparisons.utility import ACCURACIES
from flfw.errors import InputError, RunError
from flfw.files.outcomes import outcome
from flfw.nets import Tensors
from flfw.plans.run_plan import plan
from flfw.runs.run import run as run_one
from flfw.server.checkpoint import is_complete
from flfw.task.defence import Defence
from tests.support.csv_files import read_csv
from tests.support.drawn_charts import charts_in, lines_of, texts_at, texts_of
from tests.support.matrix_runs import HALVES, SMALL, amended, entry, row, written


class Stumbles(Defence):
    """Cannot be carried out as long as the file it names is there."""

    flag: Path | None = None

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The update itself, once the file is gone."""
        if Stumbles.flag is not None and Stumbles.flag.exists():
            raise RuntimeError("the flag is up")
        return update


STUMBLES = f"{__name__}:Stumbles"


# --- the question ---


def test_axes_are_read_from_the_command_line() -> None:
    assert parse(["methods=fedavg,my.own:Method", "seeds=0,3"]) == Matrix(("fedavg", "my.own:Method"), seeds=(0, 3))
    assert parse([]) == Matrix()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["rounds=1"],
            "Expected AXIS=VALUE,VALUE with an axis among methods, defences, attacks, seeds, datasets; got 'rounds=1'.",
        ),
        (["fedavg"], "got 'fedavg'"),
        (["methods="], "a value behind each comma, got 'methods='"),
        (["defences=none,,x"], "a value behind each comma, got 'defences=none,,x'"),
        (["seeds=0,1,0"], "Expected each of the seeds once, got twice=0."),
        (["seeds=0", "seeds=1"], "once, got twice=seeds"),
        (["seeds=0,x"], "Expected whole numbers for seeds, got seeds=0,x."),
        (["seeds=-1"], "Expected whole numbers for seeds"),
    ],
)
def test_other_words_are_refused_in_one_line(words: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)) as refused:
        parse(words)
    assert "\n" not in str(refused.value)


def test_an_axis_that_is_not_given_stands_at_what_the_experiment_has(tmp_path: Path) -> None:
    filled = Matrix(seeds=(4, 5)).filled(SMALL)
    assert filled == Matrix(("fedavg",), ("none",), ("analytic",), (4, 5))
    cells = filled.cells(SMALL, tmp_path)
    assert [cell.folder.name for cell in cells] == ["fedavg-none-s4", "fedavg-none-s5"]
    assert [cell.seed for cell in cells] == [4, 5]


def test_cells_differ_in_nothing_but_their_axes_and_the_settings_of_those(tmp_path: Path) -> None:
    given = replace(SMALL, set=("lr=1", "prune.ratio=0.5", "analytic.x=1"))
    cells = Matrix(("a", "b.c:D"), ("none", "prune"), ("analytic",), (0,)).cells(given, tmp_path)
    assert [cell.folder.name for cell in cells] == ["a-none-s0", "a-prune-s0", "b.c-D-none-s0", "b.c-D-prune-s0"]
    assert cells[0].set == ("lr=1", "analytic.x=1")
    assert cells[1].set == given.set
    same = {replace(c, method="", defence="", out=None, set=()) for c in cells}
    assert same == {replace(given, method="", defence="", out=None, set=())}


def test_an_attack_that_bears_a_methods_name_keeps_its_settings_where_that_method_is_not(tmp_path: Path) -> None:
    given = replace(SMALL, set=("hyperfl.iterations=3", "hyperfl.hidden=16"))
    cells = Matrix(("hyperfl", "fedper"), ("none",), ("ig", "hyperfl"), (0,)).cells(given, tmp_path)
    assert [cell.set for cell in cells] == [given.set, ("hyperfl.iterations=3",)]
    assert {plan(cell).audit.reconstructions["hyperfl"].settings.iterations for cell in cells} == {3}
    assert plan(cells[0]).client.settings.hidden == 16


def test_attacks_are_the_same_for_all_methods(tmp_path: Path) -> None:
    for axis in ((), ("ig", "auto")):
        matrix = Matrix(("hyperfl", "fedper"), attacks=axis)
        filled = fill_defaults(matrix, replace(SMALL, attack=("ig", "auto")))[0]
        assert filled.attacks == ("ig", "hyperfl")


def test_all_combinations_meet_the_same_searches() -> None:
    """One that is told of a defence would else be searched for in another way, which may be the better one."""
    requested = replace(SMALL, set=("ig.iterations=7",))
    matrix = Matrix(("fedavg",), ("none", "prune"), ("ig", "analytic", "april"), (0,))
    equal = matrix.with_equal_attackers(requested)
    assert equal.set == ("ig.iterations=7", "ig.searches=both", "april.searches=both")
    assert all(cell.set == equal.set for cell in matrix.cells(equal, Path("m")))
    chosen = replace(requested, set=("ig.searches=own",))
    assert matrix.with_equal_attackers(chosen).set == ("ig.searches=own", "april.searches=both")
    assert Matrix(("fedavg",), ("prune",), ("ig",), (0, 1)).with_equal_attackers(requested) == requested
    nothing = Matrix(("fedavg", "fedper"), ("none",), ("none",), (0,))
    assert nothing.with_equal_attackers(requested) == requested


# --- runs ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs of a second: no defence and one, two seeds."""
    question = Matrix(defences=("none", HALVES), seeds=(0, 1))
    return matrix.run(question, SMALL, tmp_path_factory.mktemp("matrix") / "whole")


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def again(folder: Path, **changes: Any) -> Path:
    axes: dict[str, Any] = {"defences": ("none", HALVES), "seeds": (0, 1), **changes}
    return matrix.run(Matrix(**axes), SMALL, folder)


def about(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "matrix.json").read_text())


def states(folder: Path) -> dict[str, str]:
    return {cell["folder"]: cell["state"] for cell in about(folder)["cells"]}


SAFE = re.sub(r"[^\w.-]+", "-", HALVES)
NAMES = ["fedavg-none-s0", "fedavg-none-s1", f"fedavg-{SAFE}-s0", f"fedavg-{SAFE}-s1"]


@pytest.mark.slow
def test_each_cell_is_a_run_of_its_own(whole: Path) -> None:
    assert states(whole) == dict.fromkeys(NAMES, "complete")
    assert all(is_complete(whole / name) for name in NAMES)
    assert json.loads((whole / NAMES[3] / "result.json").read_text())["config"]["seed"] == 1


@pytest.mark.slow
def test_the_seeds_of_a_combination_are_pooled(whole: Path) -> None:
    plain, halved = about(whole)["combinations"]
    assert (plain["defence"], halved["defence"]) == ("none", HALVES)
    for combination in (plain, halved):
        (leak,) = combination["attacks"]
        assert combination["seeds"] == [0, 1]
        assert (leak["attack"], leak["round"], leak["images"], leak["recovered"]) == ("analytic", 0, 4, 4)
        assert leak["share_interval"] == pytest.approx([0.025 ** (1 / 4), 1.0])
        assert leak["verdict"] == "leaks" and leak["seeds_with_verdict"] == 2
        runs = [read(whole / f"fedavg-none-s{seed}") for seed in (0, 1)]
        if combination is plain:
            result = [run.utilities["acc_local"] or 0.0 for run in runs]
            assert combination["acc_local"] == {"mean": sum(result) / 2, "least": min(result), "most": max(result)}


@pytest.mark.slow
def test_the_csv_has_a_row_a_run_attack_and_round(whole: Path) -> None:
    rows = read_csv(whole / "matrix.csv")
    assert [(row["defence"], row["seed"], row["folder"]) for row in rows] == [
        ("none", "0", NAMES[0]), ("none", "1", NAMES[1]), (HALVES, "0", NAMES[2]), (HALVES, "1", NAMES[3])
    ]  # fmt: skip
    for line in rows:
        (shown,) = json.loads((whole / line["folder"] / "result.json").read_text())["audit"]
        assert float(line["psnr_mean"]) == pytest.approx(shown["psnr"]["mean"])
        assert float(line["psnr_max"]) == pytest.approx(shown["psnr"]["max"])
        assert line["verdict"] == shown["verdict"] and line["recovered"] == "2"


@pytest.mark.slow
def test_the_same_victims_are_compared(whole: Path) -> None:
    (result,) = about(whole)["comparisons"]
    assert (result["combination"], result["with"], result["images"]) == (f"fedavg with {HALVES}", "fedavg", 4)
    values = {}
    for name in NAMES:
        for line in read_csv(whole / name / "audit.csv", rung="target"):
            values[name, line["probe_slot"]] = float(line["psnr"])
    gaps = [values[NAMES[i + 2], slot] - values[NAMES[i], slot] for i in (0, 1) for slot in ("0", "1")]
    assert result["difference"]["mean"] == pytest.approx(np.mean(gaps))


@pytest.mark.slow
def test_the_page_says_it_all_without_the_network(whole: Path) -> None:
    page = (whole / "matrix.html").read_text()
    assert re.search(r'victim \d+"', page) and "Halves" in page and "4 of 4" in page and "40 to 100 %" in page
    assert not re.search(r"<script|src=|@import|url\(", page)
    assert {target for target in re.findall(r'href="([^"#]+)"', page) if not (whole / target).is_file()} == set()
    assert page.count("<svg") == 8  # two scatters against two accuracies, each for a desktop and for a phone


@pytest.mark.slow
def test_a_finished_matrix_is_taken_as_it_is(copied: Path) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in copied.glob("fedavg-*/*") if path.is_file()}

    before = files()
    assert len(before) > 8
    again(copied)
    assert files() == before


@pytest.mark.slow
def test_a_killed_matrix_goes_on_where_it_was(copied: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copied / NAMES[1])  # not begun yet
    for path in [*(copied / NAMES[2]).iterdir()]:  # killed after its checkpoint was begun
        if path.name != "checkpoint":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (copied / NAMES[2] / "checkpoint").glob("round-*"):
        path.unlink()
    (copied / NAMES[2] / "checkpoint" / "history.jsonl").unlink()
    again(copied)
    assert states(copied) == dict.fromkeys(NAMES, "complete")
    assert re.findall(r"\[\d/4\] (\S+)$", capsys.readouterr().err, re.MULTILINE) == NAMES[1:3]
    ours, theirs = (read_csv(folder / "matrix.csv") for folder in (copied, whole))
    assert [{**row, "seconds": ""} for row in ours] == [{**row, "seconds": ""} for row in theirs]


@pytest.mark.slow
def test_the_tables_are_written_after_each_run(tmp_path: Path, whole: Path) -> None:
    cells = Matrix(("fedavg",), ("none",), ("analytic",), (0, 1, 7)).cells(SMALL, whole)
    tables.write(tmp_path, Matrix(seeds=(0, 1, 7)).question(SMALL), cells, {})
    assert states(tmp_path) == {NAMES[0]: "complete", NAMES[1]: "complete", "fedavg-none-s7": "not run yet"}
    assert "1 of 3 runs are not done yet; the same command goes on with them." in about(tmp_path)["notes"]
    assert about(tmp_path)["combinations"][0]["seeds"] == [0, 1]


@pytest.mark.slow
def test_a_purged_run_still_counts(copied: Path) -> None:
    shutil.rmtree(copied / NAMES[0] / "checkpoint")
    assert states(again(copied)) == dict.fromkeys(NAMES, "complete")
    path = copied / NAMES[0] / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, "config": {**result["config"], "lr": 0.5}}))
    with pytest.raises(InputError, match=f"{NAMES[0]}: Expected lr=0.01, got 0.5"):
        again(copied)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seeds": (0, 1, 2)}, "Expected seeds=0,1 as in the matrix in"),
        ({"defences": ("none",)}, "Expected defences=none,"),
        ({"attacks": ("none",)}, "Expected attacks=analytic as in"),
    ],
)
def test_the_folder_of_another_matrix_is_refused(copied: Path, changes: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        again(copied, **changes)


@pytest.mark.slow
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, copied: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").touch()
    with pytest.raises(InputError, match=r"without matrix\.json; take another"):
        matrix.run(Matrix(), SMALL, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter.txt"]
    with pytest.raises(InputError, match=r"Expected rounds=1 as in the matrix"):
        matrix.run(Matrix(defences=("none", HALVES), seeds=(0, 1)), replace(SMALL, rounds=2), copied)
    (copied / "matrix.json").write_text("{")
    with pytest.raises(InputError, match="which is damaged"):
        again(copied)


@pytest.mark.parametrize("question", [Matrix(methods=("fedavg", "nosuch")), Matrix(defences=("none", "nosuch"))])
def test_a_cell_that_cannot_be_run_stops_all_before_anything_is_written(tmp_path: Path, question: Matrix) -> None:
    with pytest.raises(InputError, match=r"nosuch.*-s0: Expected a \w+ among .*nosuch"):
        matrix.run(question, SMALL, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flag, folder = tmp_path / "flag", tmp_path / "new"
    flag.touch()
    monkeypatch.setattr(Stumbles, "flag", flag)
    question = Matrix(defences=(STUMBLES, "none"))
    with pytest.raises(RunError, match=r"1 of 2 runs failed \(fedavg-.*Stumbles-s0: .*\); the tables are in"):
        matrix.run(question, SMALL, folder)
    assert list(states(folder).values()) == ["failed", "complete"]
    assert any("failed and is not in the tables" in note for note in about(folder)["notes"])
    assert "failed and is not in the tables" in (folder / "matrix.html").read_text()
    words = [f"defences={STUMBLES},none"]
    assert matrix.main(words, (), replace(SMALL, out=folder)) == 1
    assert "1 of 2 runs failed" in capsys.readouterr().err
    flag.unlink()
    assert matrix.main(words, (), replace(SMALL, out=folder)) == 0
    assert list(states(folder).values()) == ["complete", "complete"]
    message = capsys.readouterr().out.splitlines()
    assert (
        message[1].startswith("fedavg: accuracy 0.") and "leaks, 2 of 2 recovered by analytic at round 0" in message[1]
    )
    assert message[-1] == str(folder / "matrix.html")


@pytest.mark.slow
def test_seeds_alone_are_a_matrix_of_one_method(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--seeds or the axis seeds, not both"):
        matrix.main(["seeds=0,1"], (0, 1), SMALL)
    for name in NAMES[:2]:
        shutil.copytree(whole / name, tmp_path / "new" / name)
    run_plan = replace(SMALL, split="dominant", augment="none", out=tmp_path / "new")
    question = Matrix(("fedavg",), ("none",), ("analytic",), (0, 1)).question(run_plan)
    (tmp_path / "new" / "matrix.json").write_text(
        json.dumps({"question": question, "notes": [], "cells": [], "combinations": []})
    )
    assert matrix.main([], (0, 1), run_plan) == 0
    assert list(states(tmp_path / "new")) == NAMES[:2]


# --- several data sets ---

BOTH = Matrix(seeds=(0,), datasets=("digits", "cancer"))
IID = replace(SMALL, split="iid")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return matrix.run(BOTH, IID, tmp_path_factory.mktemp("matrices") / "both")


@pytest.mark.slow
def test_each_data_set_has_the_matrix_that_it_has_alone(both: Path, tmp_path: Path) -> None:
    alone = about(matrix.run(Matrix(seeds=(0,)), IID, tmp_path / "alone"))
    ours = about(both / "digits")
    assert ours["question"] == alone["question"] and ours["cells"] == alone["cells"]
    assert about(both / "cancer")["question"]["experiment"]["dataset"] == "cancer"
    page = (both / "matrix.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["digits", "cancer"]
    assert (both / "digits" / "matrix.md").read_text() in page.replace("## digits\n\n", "")


@pytest.mark.slow
def test_matrices_go_on_where_they_were_and_keep_the_runs_of_a_matrix_alone(both: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(both, tmp_path / "copy")
    (copy / "matrix.md").unlink()
    shutil.rmtree(copy / "cancer")
    before = {path: path.stat().st_mtime_ns for path in copy.glob("digits/fedavg-*/*") if path.is_file()}
    matrix.run(BOTH, IID, copy)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert about(copy / "cancer")["cells"] == about(both / "cancer")["cells"]
    assert [path.name for path in sorted(copy.iterdir())] == ["cancer", "digits", "matrix.md", "matrix.tex"]


@pytest.mark.slow
def test_the_command_prints_each_data_set(both: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(both, tmp_path / "copy")
    assert matrix.main(["datasets=digits,cancer", "seeds=0"], (), replace(IID, out=copy)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["cancer:", "digits:"]
    assert lines[-1] == str(copy / "matrix.md") and str(copy / "digits" / "matrix.html") in lines


@pytest.mark.parametrize(
    ("datasets", "complaint"),
    [(("digits", "nosuch"), "^nosuch: "), (("digits", "cancer"), "got .* with other; choose")],
)
def test_bad_matrices_stop_before_anything_is_written(
    tmp_path: Path, datasets: tuple[str, ...], complaint: str
) -> None:
    folder = tmp_path / "new"
    if "nosuch" not in datasets:
        (folder / "other").mkdir(parents=True)
    with pytest.raises(InputError, match=complaint):
        matrix.run(Matrix(seeds=(0,), datasets=datasets), IID, folder)
    assert [path.name for path in folder.glob("*")] == (["other"] if folder.exists() else [])


@pytest.mark.parametrize(
    ("attack", "defence", "kind"),
    [
        ("dcs2", "dcs2", "built against dcs2"), ("dcs2", "soteria+dcs2", "built against dcs2"),
        ("dcs2", "prune", "static"), ("dcs2", "none", "static"), ("ig", "dcs2", "static"), ("gone:G", "dcs2", "static"),
    ],
)  # fmt: skip
def test_an_attack_on_a_recipe_is_named_as_such(attack: str, defence: str, kind: str) -> None:
    assert AttackSetting(attack, defence, False, "server", "probe", 0).kind == kind


def test_the_table_by_hand() -> None:
    leak: dict[str, Any] = {
        "attack": "ig", "kind": "static", "round": 0, "recovered": 1, "images": 4, "failures": 1, "ssim": 0.5,
        "share_interval": [0.006, 0.806], "psnr": {"mean": 12.345, "low": 11.0, "high": 13.0}, "identified": 0.25,
        "verdict": "leaks", "seeds": [0, 1], "seeds_with_verdict": 1,
    }  # fmt: skip
    plain = {"method": "fedavg", "defence": "none", "acc_local": {"mean": 0.512}, "claim": None}
    records = {"combinations": [{**plain, "attacks": [leak]}, {**plain, "attacks": []}], "notes": ["a note"]}
    assert markdown({"digits": records}).splitlines() == [
        "## digits", "",
        "| method | defence | accuracy | attack | recovered | PSNR, dB | identified | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| fedavg | none | 51 % | ig, static | 1 of 4 (1 to 81 %), 1 failed | 12.3 (11.0 to 13.0) | 25 % "
        "| leaks (1 of 2) |",
        "| fedavg | none | 51 % | not attacked | – | – | – | – |", "",
        "- a note",
    ]  # fmt: skip


# --- what is made of results: written by hand ---


def test_pooled_numbers_by_hand(tmp_path: Path) -> None:
    first = written(
        tmp_path / "0",
        [entry(verdict="leaks", identification_rate=0.5), entry(curve="batch", verdict="void")],
        [row(0, 30.0), row(1, 10.0), row(0, 60.0, curve="batch"), row(0, 70.0, rung="easy")],
    )
    second = written(
        tmp_path / "1", [entry(images=3, failures=2, identification_rate=0.0)], [row(0, 14.0), row(1, None)], seed=1
    )
    (leak,) = combine("m", "none", [read(first), read(second)]).leaks
    assert (leak.images, leak.recovered, leak.failures, leak.seeds) == (4, 1, 2, (0, 1))
    assert leak.psnr is not None and leak.psnr.mean == pytest.approx((30 + 10 + 14) / 3)
    assert leak.share == share_interval(1, 4)
    assert leak.identified == pytest.approx((0.5 * 2 + 0.0 * 3) / 5)
    assert leak.worst == {"seed": 0, "client": "0", "probe_slot": "0", "image": "0", "psnr": 30.0}
    assert (leak.verdict, leak.seeds_with_verdict) == ("leaks", 1)


def test_the_most_alarming_verdict_of_the_seeds_counts(tmp_path: Path) -> None:
    words = ["no leak found", "static", "undecided", "void", "identified", "leaks"]
    folders = [
        written(tmp_path / str(seed), [entry(verdict=word, reason=f"why {word}")], [row(0, 5.0)], seed=seed)
        for seed, word in enumerate(words)
    ]
    for upto, word in enumerate(words):
        (leak,) = combine("m", "none", [read(folder) for folder in folders[: upto + 1]]).leaks
        assert (outcome(leak.concluded), leak.reason) == ("reconstructed" if word == "leaks" else word, f"why {word}")


def test_an_attack_without_a_verdict_is_undecided(tmp_path: Path) -> None:
    unjudged = {name: value for name, value in entry().items() if name not in ("verdict", "evidence", "cause")}
    (leak,) = combine("m", "none", [read(written(tmp_path / "run", [unjudged], [row(0, 5.0)]))]).leaks
    assert (leak.verdict, leak.seeds_with_verdict) == ("undecided", 1)


def test_a_rate_of_no_images_is_none(tmp_path: Path) -> None:
    run = read(written(tmp_path / "run", [entry(identification_rate=0.5, images=0)], [row(0, 5.0)]))
    assert combine("m", "none", [run]).leaks[0].identified is None


def test_images_of_one_message_count_as_one(tmp_path: Path) -> None:
    batches = [row(victim, 10.0, image=image) for victim in (0, 1) for image in range(4)]
    (leak,) = combine("m", "none", [read(written(tmp_path / "run", [entry()], batches))]).leaks
    assert (leak.images, leak.share) == (8, share_interval(0, 2))


def test_paired_numbers_by_hand_and_a_failed_image_is_its_best_floor(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", [entry()], [row(0, 30.0), row(1, 20.0)])
    defended = written(
        tmp_path / "defended", [entry(adaptive=False)], [row(0, 12.0, adaptive=False), row(1, None, adaptive=False)]
    )
    combinations = [combine("m", "d", [read(defended)]), combine("m", "none", [read(plain)])]
    assert reference(combinations) is combinations[1]
    (result,) = comparisons(combinations)
    assert (result.name, result.with_name, result.images, result.failures) == ("m with d", "m", 2, (1, 0))
    assert result.paired is not None
    assert result.paired.difference.mean == ((12 - 30) + (14 - 20)) / 2  # 14 dB: the nearest public image
    assert (result.paired.better, result.paired.worse, result.paired.p) == (0, 2, 0.5)


def test_an_attack_told_of_the_defence_is_the_answer_where_its_static_form_found_nothing(tmp_path: Path) -> None:
    common = {"defence": "d", "adaptive": False}
    informed = {"defence": "d", "adaptive": True, "adaptation": "written"}
    folder = written(
        tmp_path / "run",
        [
            entry(verdict="static", **common),
            entry(verdict="static", vantage="client_update", **common),
            entry(**informed),
            entry(attack="b", verdict="static", vantage="client_example", **common),
        ],
        [
            row(0, 15.0, **common), row(1, 15.0, **common),
            row(0, 11.0, **informed), row(1, None, **informed),
        ],
    )  # fmt: skip
    outcome = combine("m", "d", [read(folder)])
    assert [leak.setting.kind for leak in outcome.leaks] == [
        "static", "told of d", "static, client update", "static, client example",
    ]  # fmt: skip
    assert [leak.images for leak in outcome.leaks] == [2, 2, 0, 0]
    # Those elsewhere are answered by nobody.
    assert outcome.worst is not None and outcome.worst.setting.vantage != "server"
    result = json.loads((folder / "result.json").read_text())
    amended(folder, audit=[e for e in result["audit"] if e["vantage"] == "server"])
    worst = combine("m", "d", [read(folder)]).worst
    assert worst is not None and (worst.setting.informed, worst.verdict) == (True, "no leak found")
    assert "(no leak found)" not in headline(page_of(tmp_path, {"d": folder}))
    assert "told of d" in (tmp_path / "matrix.html").read_text()
    message = tables.lines(about(tmp_path))[0]
    assert message.endswith("no leak found, 0 of 2 recovered by ig at round 0 (told of d)")


def test_rows_of_twins_that_are_both_static_are_told_apart(tmp_path: Path) -> None:
    """A method that hides tensors leaves both static."""
    twins = [{"defence": "d", "adaptive": False, "adaptation": way} for way in (None, "automatic")]
    files = [f"reconstructions/ig-r0000-target{mark}-000.safetensors" for mark in ("", "-adaptive")]
    rows = [row(0, db, **given, reconstruction=f) for db, given, f in zip((9.0, 12.0), twins, files, strict=True)]
    run = read(written(tmp_path / "run", [entry(**given, verdict="static") for given in twins], rows))
    static, informed = combine("m", "d", [run]).leaks
    assert static.psnr and informed.psnr and (static.psnr.mean, informed.psnr.mean) == (9.0, 12.0)


def test_forms_of_an_attack_are_compared_with_the_undefended(tmp_path: Path) -> None:
    twins = [{"defence": "d", "adaptive": bool(way), "adaptation": way} for way in (None, "automatic")]
    rows = [row(0, db, **given) for db, given in zip((9.0, 12.0), twins, strict=True)]
    defended = written(tmp_path / "d", [entry(**given) for given in twins], rows)
    plain = written(tmp_path / "plain", [entry(verdict="leaks")], [row(0, 30.0)])
    result = comparisons([combine("m", "none", [read(plain)]), combine("m", "d", [read(defended)])])
    gaps = [(one.setting.kind, one.paired.difference.mean) for one in result if one.paired]
    assert gaps == [("static", -21.0), ("told of d", -18.0)]
    others = [given | {"defence": "e"} for given in twins]
    e = written(
        tmp_path / "e",
        [entry(**given) for given in others],
        [row(0, db, **given) for db, given in zip((1.0, 2.0), others, strict=True)],
    )
    result = comparisons([combine("m", "e", [read(e)]), combine("m", "d", [read(defended)])])
    gaps = [(one.setting.kind, one.paired.difference.mean) for one in result if one.paired]
    assert gaps == [("static", 8.0), ("told of d", 10.0)]  # each against its like


def test_two_runs_beside_each_other_say_who_was_told_and_from_where(tmp_path: Path) -> None:
    ways = [{"defence": "d", "adaptive": bool(way), "adaptation": way} for way in (None, "written")]
    entries = [*(entry(**given) for given in ways), entry(), entry(vantage="client_example", **ways[0])]
    rows = [*(row(0, 9.0, **given) for given in ways), row(1, 9.0), row(0, 9.0, vantage="client_example", **ways[0])]
    text = table([written(tmp_path / name, entries, rows) for name in ("one", "two")])
    server, example = text.split("\n\n")[2:4]
    for kind in ("static, against d", "told of d", "adaptive, undefended"):
        assert len(re.findall(f"(one|two) +{kind} ", server)) == 2
    assert example.startswith("ig at round 0 (client example)")


def test_other_images_are_not_compared(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", [entry()], [row(0, 30.0), row(1, 20.0)])
    other = written(tmp_path / "other", [entry()], [row(0, 12.0, index=7), row(1, 12.0, label=9)])
    (result,) = comparisons([combine("m", "none", [read(plain)]), combine("m", "d", [read(other)])])
    assert result.images == 0 and result.paired is None


def test_an_attack_that_failed_on_all_images_in_both_is_not_compared(tmp_path: Path) -> None:
    runs = [written(tmp_path / name, [entry(failures=2)], [row(0, None), row(1, None)]) for name in "ab"]
    (result,) = comparisons([combine("m", "none", [read(runs[0])]), combine("m", "d", [read(runs[1])])])
    assert result.images == 2 and result.failures == (2, 2) and result.paired is None


def test_records_of_numbers_are_compared_by_their_deviation(tmp_path: Path) -> None:
    rows = [row(0, None, rmsd=0.1, failed=False), row(1, None, rmsd=0.01, failed=False)]
    (leak,) = combine("m", "none", [read(written(tmp_path / "run", [entry()], rows))]).leaks
    assert leak.psnr is not None and leak.psnr.mean == pytest.approx((20 + 40) / 2)
    assert leak.rmsd == pytest.approx(0.055)


def test_budgets_that_differ_are_noted(tmp_path: Path) -> None:
    runs = [
        read(written(tmp_path / str(n), [entry(iterations=n), entry(attack="even")], [row(0, 5.0)])) for n in (100, 200)
    ]
    (note,) = uneven_budgets(runs)
    assert "ig" in note and "100 iterations" in note and "200 iterations" in note
    assert uneven_budgets(runs[:1]) == []


# --- the page ---


def page_of(folder: Path, runs: Mapping[str, Path]) -> str:
    cells = [replace(SMALL, defence=name, out=path) for name, path in runs.items()]
    tables.write(folder, Matrix(defences=tuple(runs)).filled(SMALL).question(SMALL), cells, {})
    return (folder / "matrix.html").read_text()


def headline(page: str) -> str:
    result = re.search(r"<h1>(.*?)</h1>", page, re.DOTALL)
    assert result
    return " ".join(re.sub(r"<[^>]+>", "", result[1]).split())


@pytest.mark.slow
def test_the_first_sentence_names_the_most_and_the_least(tmp_path: Path) -> None:
    eight = [entry(verdict="leaks", images=8)], [row(n, 26.0 + n) for n in range(8)]
    plain = written(tmp_path / "plain", *eight)
    weak = [entry(verdict="static", images=8)], [row(n, 9.5 + n / 2) for n in range(8)]
    better = written(tmp_path / "better", *weak)
    assert headline(page_of(tmp_path, {"none": plain, "x": better})) == (
        "fedavg without a defence leaks most, 8 of 8 images (29.5 dB) at 80.0 % accuracy; fedavg with x least, "
        "0 of 8 images (11.2 dB) at 80.0 % accuracy: undecided (static)."
    )
    assert headline(page_of(tmp_path, {"none": better, "x": better})).startswith("Nothing was recovered from any of 2")
    assert headline(page_of(tmp_path, {"none": plain})).startswith("fedavg without a defence leaks: 8 of 8 images")
    same = headline(page_of(tmp_path, {"none": plain, "x": plain}))
    assert same.startswith("No combination is shown to leak less than another, on digits: their differences may be")
    silent = written(tmp_path / "silent", [], [])
    assert "was not attacked" in headline(page_of(tmp_path, {"none": silent}))
    assert "nothing to attack" in page_of(tmp_path, {"none": silent, "x": plain})


def test_what_is_identified_and_why_nothing_follows_is_on_the_page(tmp_path: Path) -> None:
    weak = entry(verdict="undecided", reason="No defence hides the data.")
    plain = written(tmp_path / "plain", [weak], [row(0, 10.0)])
    telling = entry(verdict="identified", reason="7 of 8 point to the true one.", defence="x")
    told_apart = written(tmp_path / "x", [telling], [row(0, 9.0, defence="x")])
    page = page_of(tmp_path, {"none": plain, "x": told_apart})
    assert headline(page).startswith(
        "Nothing was recovered from any of 2 combinations on digits, but fedavg with x leaks in part: results point"
    )
    text = " ".join(re.sub(r"<[^>]+>", "", page).split())
    assert "fedavg without a defence, ig adaptive at round 0: undecided. No defence hides the data." in text
    assert "fedavg with x, ig adaptive at round 0: leaks (identified). 7 of 8 point to the true one." in text
    assert '<span class="accent-text">leaks (identified)</span>' in page
    leaking = written(tmp_path / "leaks", [entry(verdict="leaks", reason="1 of 1")], [row(0, 30.0)])
    assert "Why not more can be concluded" not in page_of(tmp_path, {"none": leaking})


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", [entry(attack="<b>")], [row(0, 30.0, attack="<b>")])
    page = page_of(tmp_path, {"<i>": plain})
    assert "<b>" not in page.replace("<b>Read", "").replace("<span><b>1 comb", "") and "<i>" not in page


def test_names_of_marks_at_one_place_do_not_overlap() -> None:
    marks = tuple(PlotMark(f"fedavg with defence_{n}", 0.5, (0.5, 0.5), 0.0, None, False) for n in range(16))
    for svg in charts_in(draw(scatter(*marks))):
        places = [(x, y, len(text)) for text, x, y in texts_at(svg) if text.startswith("fedavg")]
        heights = sorted(y for _, y, _ in places)
        assert len(places) == 16 and min(np.diff(heights)) > 12 and heights[0] > 0
        assert all(x + 6.4 * length < float(svg.attrib["width"]) for x, _, length in places)


def scatter(*marks: PlotMark) -> Scatter:
    return Scatter("Images recovered", ACCURACIES[0], marks, percent=True)


def test_a_mark_stands_where_its_numbers_are() -> None:
    low = PlotMark("low", 0.5, (0.5, 0.5), 0.0, (0.0, 0.4), False)
    high = PlotMark("high", 0.9, (0.85, 0.95), 1.0, (0.6, 1.0), True)
    wide, narrow = charts_in(draw(scatter(low, high)), "Images recovered, by accuracy after local training. low; high")
    for svg in (wide, narrow):
        placed = texts_at(svg)
        across = {text: x for text, x, _ in reversed(placed)}  # the horizontal axis comes before the other
        up = {text: y for text, _, y in placed}
        (((x, y), _),), (((right, above), _),) = lines_of(svg, "ink", width=9), lines_of(svg, "accent", width=9)
        assert x < right and up["100 %"] - 5 < above < up["100 %"] < up["0 %"] - 5 < y < up["0 %"]
        assert across["60 %"] == pytest.approx(x + (right - x) / 4, abs=0.2)
        assert {"Images recovered", "accuracy after local training", "low", "high"} <= set(texts_of(svg))
    assert len(lines_of(wide, "ink", width=1.5)) == 1 and len(lines_of(wide, "accent", width=1.5)) == 2
    assert draw(scatter()) == ""


def test_an_unaudited_matrix_still_compares_accuracy(tmp_path: Path) -> None:
    folder = matrix.run(Matrix(attacks=("none",)), SMALL, tmp_path / "new")
    assert about(folder)["combinations"][0]["attacks"] == []
    assert "fedavg: accuracy" in matrix.summary(folder) and "not attacked" in matrix.summary(folder)
    assert render(about(folder), [], [], ranked({})).count("<h1>Nothing has been measured yet") == 1


@pytest.mark.slow
def test_a_plain_run_can_be_read(tmp_path: Path) -> None:
    run = read(run_one(replace(SMALL, out=tmp_path / "run")))
    assert len(run.rows) == 2 and run.seed == 0 and all(row.recovered for row in run.rows)
    with pytest.raises(InputError, match=r"Expected a finished run with result\.json"):
        read(tmp_path)
