"""Tables that only the sites have: the plan's name, each site's columns, other categories, a run, and a rehearsal."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flfw import data
from flfw.command.data_sets import main as data_sets
from flfw.command.rehearse import main as rehearse
from flfw.data.files.columns import Column, NumberTarget, TableSchema
from flfw.data.tables import plan_file
from flfw.data.tables.site_tables import name_of
from flfw.dp.budget import EpsilonBudget
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from tests.client.test_site_data import trained

WARD = Column("ward", "categorical", categories=("A", "B"), other=True)
AGE = Column("age", "numeric", 0, 100, missing=True, fill=0.5)
SICK = TableSchema((WARD, AGE), "sick", "classification", ("no", "yes"), public=True)
COST = TableSchema((WARD, AGE), "cost", "regression", number=NumberTarget("cost", 100, 50, (100.0,)), public=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FLFW_DATA", str(tmp_path / "nowhere"))


def site(folder: Path, schema: TableSchema, rows: str, name: str = "rows.csv") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "columns.toml").write_text(plan_file.text(schema))
    (folder / name).write_text(rows)
    return folder


def rows(target: str, count: int = 12, ward: str = "ABC") -> str:
    lines = []
    for n in range(count):
        value = ("no", "yes")[n % 2] if target == "sick" else str(40 + 20 * (n % 6))
        lines.append(f"{value},{10 * (n % 10)},{ward[n % len(ward)]}")
    return "\n".join([f"{target},age,ward", *lines])


def test_a_site_reads_its_rows_by_the_plan_and_other_categories_share_a_feature(tmp_path: Path) -> None:
    """Columns may stand in any order; ward C is none of the plan's, and a missing age is 0.5 with a mark."""
    name = name_of(SICK)
    assert name.startswith("site:5:2@plan-") and data.is_at_sites(name)
    held = data.load(name, site(tmp_path / "s", SICK, "sick,age,ward\nyes,20,A\nno,,C\nno,100,B\nyes,120,B"))
    together = np.concatenate([held.train_x, held.test_x]).tolist()
    expected = [[1, 0, 0, 0.2, 0], [0, 0, 1, 0.5, 1], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0]]
    assert sorted(together) == sorted(np.float32(expected).tolist())
    assert held.test_y.tolist() == [0, 1] and held.columns == SICK
    empty = data.without_examples(name)
    assert (empty.shape, empty.classes, empty.is_regression) == ((5,), 2, False)


def test_a_site_whose_table_differs_is_refused_in_a_line_that_names_the_columns(tmp_path: Path) -> None:
    name = name_of(SICK)
    for text, words in (
        ("sick,age,room\nyes,20,A\nno,1,A", "without ward and with room"),
        ("sick,age,ward\nyes,20,A\nmaybe,1,A", "'maybe'"),
        ("sick,age,ward\nyes,old,A\nno,1,A", "'old'"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            data.load(name, site(tmp_path / "s", SICK, text))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="get the federation's"):
        data.load(name, site(tmp_path / "s", COST, rows("cost")))
    with pytest.raises(InputError, match=r"rows\.csv"):
        data.load(name, site(tmp_path / "none", SICK, "", "other.csv"))


def test_a_site_is_told_what_does_not_fit_the_plan(tmp_path: Path) -> None:
    """Ward a is no A, ages in months are cut, a row has no target, and train.csv stands beside rows.csv."""
    root = site(tmp_path / "s", SICK, "sick,age,ward\nyes,20,A\nno,600,a\nno,10,B\nyes,720,B\n,1,A")
    (root / "train.csv").write_text("")
    *others, ward, age = data.load(name_of(SICK), root).notes
    assert others == ["1 rows without a target are left out.", "train.csv is not read."]
    assert (ward[:21], age[7:]) == ("Column ward: 1 values", "age: 2 values are cut to the plan's range.")


@pytest.mark.parametrize(("schema", "key"), [(SICK, "acc_local"), (COST, "mae_local")])
def test_a_run_needs_rows_at_the_sites_alone(tmp_path: Path, schema: TableSchema, key: str) -> None:
    (tmp_path / "plan.toml").write_text(plan_file.text(schema))
    target = schema.target
    roots = [site(tmp_path / f"s{n}", schema, rows(target, 12 + n, ward)) for n, ward in enumerate(("ABC", "BD"))]
    experiment = Experiment(
        method="fedavg", dataset=f"site:{tmp_path / 'plan.toml'}", net="linear", clients=2, rounds=1, local_epochs=1,
        attack=("none",), federation=tmp_path / "federation", out=tmp_path / "run",
    )  # fmt: skip
    checked = trained(experiment, roots)
    assert checked.dataset == name_of(schema) and checked.out is not None
    final = json.loads((checked.out / "training.json").read_text())["final"]
    assert [row["client"] for row in final] == [0, 1] and all(row[key] is not None for row in final)
    assert all(("acc_local" in row) is (key == "acc_local") for row in final)


def with_budget(folder: Path, schema: TableSchema, text: str, budget: EpsilonBudget) -> list[str]:
    """The lines of the ledger of one site with a table, after a round of DP-FedAvg."""
    folder.mkdir()
    (folder / "plan.toml").write_text(plan_file.text(schema))
    root, ledger = site(folder / "s", schema, text), folder / "lines.jsonl"
    experiment = Experiment(
        method="dp_fedavg", dataset=f"site:{folder / 'plan.toml'}", net="linear", clients=1, rounds=1, local_epochs=1,
        attack=("none",), metrics="none", set=("noise_source=secure",), federation=folder, out=folder / "run",
    )  # fmt: skip
    try:
        trained(experiment, [root], **budget.to_node_config(ledger))
    finally:
        lines = ledger.read_text().splitlines() if ledger.exists() else []
    return lines


@pytest.mark.parametrize(("schema", "target"), [(SICK, "sick"), (COST, "cost")])
def test_a_budget_counts_nothing_by_a_plan_that_may_be_of_these_very_rows(
    tmp_path: Path, schema: TableSchema, target: str
) -> None:
    """Of a csv: table with such a plan nothing is claimed; a site with a budget answered all the same."""
    budget = EpsilonBudget(100.0)
    assert len(with_budget(tmp_path / "public", schema, rows(target), budget)) == 1
    with pytest.raises(RunError, match="this site's budget: the plan of the table's columns does not say that it was"):
        with_budget(tmp_path / "private", replace(schema, public=False), rows(target), budget)
    assert not (tmp_path / "private" / "lines.jsonl").exists()


def test_a_budget_for_a_patient_covers_as_many_examples_as_one_has_at_the_site(tmp_path: Path) -> None:
    schema = replace(SICK, patient="who")
    lines = [f"{line},{'who' if not n else (n - 1) // 3}" for n, line in enumerate(rows("sick", 24).splitlines())]
    text = "\n".join(lines)
    three = EpsilonBudget(100.0, unit="patient", patient_examples=3)  # of each of eight patients
    assert len(with_budget(tmp_path / "three", schema, text, three)) == 1
    with pytest.raises(RunError, match=r"patient_examples >= 3 in this site's policy, as many as one patient has here"):
        with_budget(tmp_path / "two", schema, text, replace(three, patient_examples=2))
    assert not (tmp_path / "two" / "lines.jsonl").exists()


@pytest.mark.slow
def test_a_site_rehearses_with_its_own_table(tmp_path: Path) -> None:
    root = site(tmp_path / "s", COST, rows("cost", 20))
    flags = ["--dataset", name_of(COST), "--data-root", str(root), "--method", "fedavg", "--attack", "analytic"]
    flags += ["--rounds", "1", "--images", "2", "--batch-size", "4", "--max-steps", "1"]
    assert rehearse([*flags, "--out", str(tmp_path / "r")]) == 0
    record = json.loads((tmp_path / "r" / "rehearsal.json").read_text())
    assert any("says that they are public" in note for note in record["notes"])


def test_a_plan_for_sites_has_room_for_values_that_these_rows_lack(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(rows("sick", ward="AB"))
    name, plan_path = f"csv:{tmp_path / 't.csv'}@sick", str(tmp_path / "p.toml")
    assert data_sets(["columns", name, "--write", plan_path, "--for-sites"]) == 0
    schema = plan_file.read_plan(tmp_path / "p.toml")
    assert schema is not None and [(c.other, c.missing) for c in schema.columns] == [(False, True), (True, True)]
    name = data.configured(f"site:{tmp_path / 'p.toml'}", ())
    assert name == name_of(schema)
    run_plan = plan(Experiment(dataset=name, method="fedavg", attack=(), federation=tmp_path))
    assert run_plan.task.input_space == ((6,), 2)
