"""Runs on a user's own table: classification, regression, rehearsal; metrics, cells of the audit, and refusals."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

import sim
from flfw import data
from flfw.audit.measures.columns import column_rates
from flfw.audit.measures.public import PublicData
from flfw.command.program import main as flfw_main
from flfw.command.rehearse import main as rehearse
from flfw.data.files.columns import Column, NumberTarget, TableSchema
from flfw.data.tables import plan_file
from flfw.data.tables.listing import sentences
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.net import loss, losses, regression_metrics
from flfw.plans.run_plan import plan
from flfw.report.findings import row_pair
from flfw.report.page_data import caveats
from flfw.runs.run import check, run
from flfw.server.history import EarlyStopping
from tests.support.paths import ROOT
from tests.support.small_runs import result_of, tiny


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """60 rows: the cost is 10 for each year of age and 200 for smokers; ten wards, a boolean and a number."""
    rng = np.random.default_rng(0)
    lines = ["age,ward,smoker,cost,died"]
    for row in range(60):
        age, smokes = int(rng.integers(20, 90)), bool(rng.random() < 0.5)
        ward, cost = "ABCDEFGHIJ"[row % 10], 10.0 * age + 200 * smokes + 0.5
        lines.append(f"{age},{ward},{'yes' if smokes else 'no'},{cost},{'yes' if age > 60 else 'no'}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return tmp_path / "t.csv"


def asked(table: Path, target: str, out: Path | None = None, **changes: Any) -> Experiment:
    other = {"cost": "died", "died": "cost"}[target]
    settings = (f"csv.drop={other}", *changes.pop("set", ()))
    return tiny(out, dataset=f"csv:{table}@{target}", split="auto", net="mlp", set=settings, **changes)


def test_the_metrics_are_those_of_scikit_learn_in_the_targets_own_units() -> None:
    rng = np.random.default_rng(0)
    truths, guesses = rng.normal(size=50), rng.normal(size=50)
    ours = regression_metrics(torch.tensor(truths), torch.tensor(guesses), 100.0)
    assert ours["mae"] == pytest.approx(mean_absolute_error(100 * truths, 100 * guesses))
    assert ours["rmse"] == pytest.approx(root_mean_squared_error(100 * truths, 100 * guesses))
    assert ours["r2"] == pytest.approx(r2_score(100 * truths, 100 * guesses))
    assert "r2" not in regression_metrics(torch.ones(3), torch.zeros(3), 1.0)


def test_the_loss_of_numbers_is_their_squared_error_and_that_of_classes_and_probabilities_stays() -> None:
    scores, numbers = torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([2.0, 2.0, -100.0])
    assert float(loss(scores, numbers, ignore_index=-100)) == 0.5
    assert losses(scores, torch.zeros(3, 1), numbers)[:2].tolist() == [1.0, 0.0]
    two = torch.tensor([[0.0, 0.0]])
    assert float(loss(two, torch.tensor([1]))) == pytest.approx(np.log(2))
    assert float(loss(two, torch.tensor([[0.5, 0.5]]))) == pytest.approx(np.log(2))


def test_cells_are_right_as_wholes() -> None:
    """A ward of three features and an age: features 1 and 2 of 4 wrong make one cell of two wrong."""
    schema = TableSchema(
        (Column("ward", "categorical", categories=("A", "B", "C")), Column("age", "numeric", 0, 100)),
        "y",
        "regression",
        number=NumberTarget("y", 0, 1),
    )
    truth = np.array([[1, 0, 0, 0.5]])
    assert schema.cells(np.array([[False, False, True, True]])).tolist() == [[False, True]]
    assert schema.right(truth[0], np.array([0, 1, 0, 0.54])) == [False, True]
    assert schema.right(truth[0], np.array([0.9, 0.1, 0, 0.56])) == [True, False]
    shown = row_pair(schema, truth[0], np.array([0, 1, 0, 0.54]))
    assert "<mark>B</mark>" in shown and "54</td>" in shown and "<mark>54" not in shown
    public = PublicData.from_arrays(np.array([[1, 0, 0, 0.1], [0, 1, 0, 0.9]]), np.zeros(2, np.int64), schema=schema)
    assert public.cells(np.array([[True, True, True, False]])).tolist() == [[True, False]]
    rates = column_rates(public.cells(np.ones((1, 4), bool)), public.cells(np.zeros((1, 4), bool)))
    assert [rate.share for rate in rates] == [1.0, 1.0]


@pytest.mark.slow
def test_a_classification_is_audited_by_columns_with_their_names(table: Path, tmp_path: Path) -> None:
    folder = run(asked(table, "died", tmp_path / "run", victim_batch=2, show_samples="yes"))
    result, entry = result_of(folder), result_of(folder)["audit"][0]
    assert [column["name"] for column in entry["columns"]] == ["age", "ward", "smoker"]
    assert 0 <= entry["exact_match"]["floor_cells"] < 1 and entry["exact_match"]["cells"] is not None
    assert result["final"]["acc_global"] is not None and "mae_global" not in result["final"]
    assert plan_file.kept(folder) == data.describe(result["config"]["dataset"]).columns
    assert "Classification of died: 2 classes, no, yes." in result["notes"]
    page = (folder / "report.html").read_text()
    assert "one of 10 values" not in page and "10 values (A, B, C, D, and 6 more)" in page  # samples are shown
    assert '<th scope="row">ward</th>' in page and ">Attack</th></tr></thead>" in page


@pytest.mark.slow
def test_a_regression_has_errors_and_no_accuracy_and_its_rows_come_back(table: Path, tmp_path: Path) -> None:
    """A gradient of one example in one step reveals its row exactly, whatever the loss."""
    run_folder = run(
        asked(table, "cost", tmp_path / "run", rounds=2, attack=("analytic", "membership"), membership_pairs="all")
    )
    result = result_of(run_folder)
    final, rounds = result["final"], result["rounds"]
    assert final["acc_global"] is None and final["acc_local"] is None and rounds[0]["acc_local"] is None
    assert 0 < final["mae_global"] <= final["rmse_global"] < 1000 and final["r2_global"] < 1
    assert rounds[0]["extra"]["mae_local"] > 0
    first = result["audit"][0]
    assert first["exact_match"]["cells"] == 1.0 and first["share_recovered"] == 1.0
    assert {entry["verdict"] for entry in result["membership"]}
    page = (run_folder / "report.html").read_text()
    assert "one of 8 values" in page and "A, C, D" not in page  # samples of own data are not; B and G only test
    assert "mean absolute error" in page and "a regression has no accuracy" in page


@pytest.mark.slow
def test_a_rehearsal_on_a_table_grows_to_the_real_batch(table: Path, tmp_path: Path) -> None:
    flags = f"--dataset csv:{table}@cost --set csv.drop=died --method fedavg --attack analytic --rounds 1 --images 2"
    assert rehearse([*flags.split(), "--batch-size", "4", "--max-steps", "1", "--out", str(tmp_path / "r")]) == 0
    record = json.loads((tmp_path / "r" / "rehearsal.json").read_text())
    assert record["sizes"] == [{"batch": 1, "steps": 1}, {"batch": 4, "steps": 1}]
    assert any("Regression of cost" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"attack": ("idlg",)}, "attacks that need no classes"),
        ({"attack": ("tableak",), "set": ("tableak.labels=counts",)}, "tableak.labels=given"),
        ({"method": "hyperfl", "attack": ()}, "follow the squared error"),
        ({"method": "feddf", "attack": ()}, "follow the squared error"),
        ({"split": "dirichlet"}, "a split that needs no classes"),
        ({"split": "pathological"}, "a split that needs no classes"),
        ({"canaries": 4}, "canaries=0"),
        ({"method": "fed_cdp", "metrics": "private"}, "--metrics all or none"),
        ({"set": ("parquet.drop=age",)}, "--set for a plug-in of this run"),
    ],
)
def test_parts_that_need_classes_refuse_a_regression(table: Path, changes: dict[str, Any], text: str) -> None:
    given = {**changes}
    split = given.pop("split", None)
    experiment = asked(table, "cost", **given)
    with pytest.raises(InputError, match=text) as caught:
        check(replace(experiment, split=split) if split else experiment)
    assert "\n" not in str(caught.value)


def test_settings_are_in_the_name_that_other_processes_get(table: Path) -> None:
    """Also with net, split and augment given, where nothing else is resolved."""
    experiment = asked(table, "cost", augment="none")
    named = plan(replace(experiment, split="iid")).experiment.dataset
    assert named == f"csv:{table}@cost?drop=died"
    assert plan(replace(experiment, dataset=named, split="iid")).experiment.dataset == named


def test_claims_need_a_plan_that_was_public(table: Path, tmp_path: Path) -> None:
    experiment = asked(table, "cost", attack=(), method="fed_cdp")
    _, task, _ = check(experiment)
    assert task.dataset.columns is not None and not data.has_public_constants(task.dataset.name)
    (tmp_path / "plan.toml").write_text(plan_file.text(replace(task.dataset.columns, public=True)))
    public = replace(experiment, set=(f"csv.columns={tmp_path / 'plan.toml'}",))
    assert data.has_public_constants(plan(public).experiment.dataset)


@pytest.mark.parametrize("normalise", ["own", "none"])
def test_no_normalisation_makes_a_claim_of_scales_that_are_the_rows_own(
    table: Path, tmp_path: Path, normalise: str
) -> None:
    """Rows are encoded before they are normalised: one of them may change the scale of all."""
    experiment = asked(table, "cost", attack=(), method="fed_cdp", normalise=normalise)
    run_plan, task, _ = check(experiment)
    assert task.dataset.columns is not None
    assert {one.epsilon for one in RunAccountant(run_plan.client, task.split).claims()} == {inf}
    assert all("public = true" in one.assumptions[0] for one in RunAccountant(run_plan.client, task.split).claims())
    (tmp_path / "plan.toml").write_text(plan_file.text(replace(task.dataset.columns, public=True)))
    public, task, _ = check(replace(experiment, set=(f"csv.columns={tmp_path / 'plan.toml'}",)))
    assert max(one.epsilon for one in RunAccountant(public.client, task.split).claims() if one.unit == "example") < inf


@pytest.mark.slow
def test_two_commands_lead_from_a_table_to_an_epsilon(table: Path, tmp_path: Path, capfd: Any) -> None:
    """The refusal prints both, with the user's file and target; the ranges alone are to be filled in."""
    rest = f"--clients 2 --rounds 1 --engine inproc --attack none --set csv.drop=cost --out {tmp_path / 'r'}".split()
    flags = ["--method", "fed_cdp", "--dataset", f"csv:{table}@died", "--target-epsilon", "8"]
    assert sim.main([*flags, *rest]) == 2
    first, again = re.findall("`([^`]*)`", capfd.readouterr().err)
    name = f"'csv:{table}@died?drop=cost'"
    assert first == f"flfw data columns {name} --public age=RANGE ward=RANGE smoker=RANGE died=RANGE"
    assert again == f"flfw run --method fed_cdp --dataset {name} --target-epsilon 8"
    for old, new in {"age=RANGE": "age=0:120", "ward=RANGE": "ward=A,B", "RANGE": "no,yes"}.items():
        first = first.replace(old, new)
    assert flfw_main(shlex.split(first)[1:]) == 0
    again = [*shlex.split(again)[1:], *rest]
    assert flfw_main(again) == 2 and "since this process read them" in capfd.readouterr().err
    subprocess.run([sys.executable, "-m", "flfw", *again], check=True, cwd=ROOT, timeout=300)
    claims = [one for one in result_of(tmp_path / "r")["privacy"] if one["unit"] == "example"]
    assert claims and all(7.9 < one["epsilon"] <= 8 for one in claims)


def test_patients_of_a_regression_stay_whole(table: Path) -> None:
    lines = table.read_text().splitlines()
    who = ["who", *(f"p{row // 3}" for row in range(60))]
    table.write_text("\n".join(f"{line},{one}" for line, one in zip(lines, who, strict=True)))
    _, task, _ = check(asked(table, "cost", set=("csv.patient=who",)))
    group = task.dataset.train_group
    assert group is not None
    held = [set(group[part].tolist()) for part in task.split.train]
    assert held[0] and held[1] and not held[0] & held[1]


def test_patience_follows_r2_where_there_is_no_accuracy() -> None:
    rows = [{"round": r, "client": 0, "r2_validation": value} for r, value in ((1, -5.0), (2, -2.0), (3, -3.0))]
    patience = EarlyStopping(1)
    assert [patience.is_over(rows[:done], done) for done in (1, 2, 3)] == [False, False, True]


def test_what_only_describes_a_table_is_no_warning_and_names_what_is_left_out(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{line},{'hospital' if not number else 'X'}" for number, line in enumerate(table.read_text().split("\n"))]
    table.write_text("\n".join(rows))
    folder = run(asked(table, "died", tmp_path / "run", attack=("none",)))
    warned, notes = capsys.readouterr().err, result_of(folder)["notes"]
    assert "Table: 3 columns become 12 features in [0, 1]; 2 are left out: cost, hospital." in notes
    assert "Table: " not in warned and "Classification of " not in warned
    assert warned.count("warning: Scales, categories and substitutes") == 1


def test_a_class_without_a_test_row_is_a_caveat(table: Path) -> None:
    """The only row of class yes trains, as every fifth of a class from the second on is for testing."""
    head, *rows = table.read_text().split("\n")
    other = [row.rpartition(",")[0] + (",no" if number else ",yes") for number, row in enumerate(rows)]
    table.write_text("\n".join([head, *other]))
    notes = check(asked(table, "died", attack=("none",)))[2]
    assert "No test row is of class yes: no accuracy counts it." in caveats(notes)
    assert not any("No training row" in note for note in notes)


def test_one_column_of_one_feature_is_not_called_several() -> None:
    schema = TableSchema((Column("age", "numeric", 0, 100),), "y", "regression", number=NumberTarget("y", 0, 1))
    assert sentences(schema)[0] == "Table: 1 column becomes 1 feature in [0, 1]; none is left out."
