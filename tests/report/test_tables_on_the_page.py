"""Reports of tables: words and numbers fit rows, a regression, and pairs of patients that were not all compared."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfw.audit.membership.entry import entry
from flfw.audit.membership.membership_evidence import ScoredClient
from flfw.data.files.columns import Column, TableSchema
from flfw.data.tables import plan_file
from flfw.data.tables.listing import sentences
from flfw.report.charts import utility_panel
from flfw.report.page_data import caveats, is_regression
from flfw.report.questions import compared, membership_line
from flfw.report.report import files_of
from tests.report.test_report import Page, first_page, read
from tests.support.membership_views import ITEM
from tests.support.reported_runs import a_run, full_entry, member_row

TABLE = "Table: 6 columns become 13 features in [0, 1]; 1 is left out."
TARGET = "Regression of los: squared error on (value - 7.254) / 2.678; errors are in the target's own units."
SCALES = "Scales and categories come from the training rows."
ERRORS = {
    "mae_global": 2.4, "rmse_global": 2.9, "r2_global": -0.8, "mae_local": 2.3, "rmse_local": 2.8, "r2_local": -0.7,
}  # fmt: skip
PEER = {"smallest": 3, "round": 1, "left": 2, "verdict": "undecided", "reason": "Three.", "check": None}
NO_ACCURACY = {"acc_global": None, "acc_local": None, "acc_central": None}


def a_regression(folder: Path, **changes: Any) -> Page:
    """Read the page of a run on a table whose target is a number."""
    exact = {"features": 0.72, "rows": 1 / 3, "floor": 0.61, "cells": 0.43, "floor_cells": 0.27}
    trained = {"round": 1, "loss": 0.9, "clients": 3, "upload_bytes": 900, "download_bytes": 900, "seconds": 0.1}
    given = {
        "entries": [full_entry("ig", 0, True, exact_match=exact)],
        "config": {"method": "fedavg", "dataset": "csv:t.csv@los", "rounds": 1, "metrics": "all"},
        "rounds": [trained | NO_ACCURACY | {"extra": ERRORS}],
        "final": NO_ACCURACY | ERRORS | {"per_client": []},
        "notes": [TABLE, TARGET, SCALES, "membership says nothing about 1 of 3 clients."],
    }
    return read(a_run(folder, tabular=True, **given | changes))


def test_sentences_that_describe_a_table_are_no_caveats(tmp_path: Path) -> None:
    page = a_regression(tmp_path / "run")
    first = first_page(page)
    assert SCALES in first and "membership says nothing about 1 of 3 clients." in first
    assert "more under Provenance" not in first and "squared error" not in first and TABLE not in first
    assert TABLE in page.text and TARGET in page.text
    assert caveats([TABLE, TARGET, "Classification of died: 2 classes, no, yes."]) == []
    assert "Read this result with" not in first_page(a_regression(tmp_path / "bare", notes=[TABLE, TARGET]))


@pytest.mark.parametrize(
    ("dropped", "text"), [(0, "none is left out"), (1, "1 is left out: d0"), (2, "2 are left out: d0, d1")]
)
def test_the_listing_counts_columns(dropped: int, text: str) -> None:
    left_out = tuple(Column(name=f"d{k}", kind="dropped") for k in range(dropped))
    schema = TableSchema(
        target="y",
        columns=(Column("age", "boolean", categories=("no", "yes")), *left_out),
        task="classification",
        classes=("no", "yes"),
    )
    assert sentences(schema)[0] == f"Table: 1 column becomes 1 feature in [0, 1]; {text}."


def test_a_regression_has_errors_and_no_accuracy(tmp_path: Path) -> None:
    page = a_regression(tmp_path / "run")
    training = page.text[page.text.index("Training Errors as received") : page.text.index("Provenance Notes")]
    assert "in the target’s own units" in training and "Final errors and traffic" in training
    assert "MAE as received RMSE as received R² as received MAE after local training" in training
    assert "mae global" not in training and "−0.800" in training and "-0.8" not in training
    assert not re.search("[Aa]ccurac", training.replace("a regression has no accuracy", ""))
    assert "Mean absolute error as received, and after local training" in training
    requested = page.text[: page.text.index("What the verdicts mean")]
    assert "Must clients report losses and errors?" in requested and "accurac" not in requested
    assert "Error (MAE, RMSE, R²) as received" in page.text
    other = read(a_run(tmp_path / "other", tabular=True))
    assert "Accuracy as received is that of the model" in other.text and "Final accuracy and traffic" in other.text


def test_errors_by_round_are_drawn_in_the_unit_of_the_target() -> None:
    rounds = [{"round": 1, "extra": ERRORS}, {"round": 2, "extra": ERRORS | {"mae_local": 1.5}}]
    panel = utility_panel(rounds, regression=True)
    assert [line.points for line in panel.lines] == [((1.0, 2.3), (2.0, 1.5)), ((1.0, 2.4), (2.0, 2.4))]
    assert not panel.percent and panel.top() == pytest.approx(2.4 * 1.05)
    assert not utility_panel([{"round": 1}], regression=True).drawable
    accuracies = utility_panel([{"round": 1, "acc_global": 0.5, "acc_local": 0.75}], regression=False)
    assert accuracies.percent and [line.points for line in accuracies.lines] == [((1.0, 0.75),), ((1.0, 0.5),)]


def test_the_target_is_told_from_the_notes_where_no_error_is_reported(tmp_path: Path) -> None:
    assert is_regression({"final": ERRORS}) and is_regression({"final": {}, "notes": [TABLE, TARGET]})
    assert not is_regression({"final": {"acc_global": 0.5}, "notes": ["Classification of died: 2 classes."]})
    silent = {"config": {"method": "fed_cdp", "dataset": "csv:t.csv@los", "metrics": "none"}, "final": NO_ACCURACY}
    assert "Clients reported no losses and no errors (metrics=none)." in a_regression(tmp_path / "run", **silent).text


def test_rows_are_records_and_their_cells_are_counted(tmp_path: Path) -> None:
    page = a_regression(tmp_path / "run")
    words = (
        "43 % of the cells of the records were found (numbers within 5 % of their range); guessing the most usual "
        "value of each column gives 27 %."
    )
    assert words in page.text and "cells found by guessing 27.0 % 43.0 %" in page.text
    limits = page.text[page.text.index("What this does not show") :]
    assert "somebody’s record may come out" in limits and "without a single record being reconstructed" in limits
    assert "which target values it holds" in limits and "on another one a record near the threshold" in limits
    assert not re.search("picture|image", limits)
    glossary = page.text[page.text.index("The words of this page") : page.text.index("The result in figures")]
    assert "image" not in glossary and "for a record its values must be near the true ones" in glossary
    pictures = read(a_run(tmp_path / "pictures")).text
    assert "for an image at least 20 dB, and 1 dB above every floor" in pictures and "somebody’s picture" in pictures


def with_columns(folder: Path, **changes: Any) -> Page:
    """Read the page of a run whose folder holds the plan of its columns: a boolean and eleven numbers."""
    numbers = tuple(Column(f"n{k}", "numeric", high=10.0) for k in range(11))
    schema = TableSchema(
        (Column("smoker", "boolean", categories=("no", "yes")), *numbers), "died", "classification", ("n", "y")
    )
    folder.mkdir()
    (folder / plan_file.KEPT).write_text(plan_file.text(schema))
    return a_regression(folder, **changes)


def test_a_table_with_columns_shows_them_and_no_rings(tmp_path: Path) -> None:
    column = {"share": 1.0, "low": 0.2, "high": 1.0, "floor": 0.5, "chance": None, "p": 0.25, "name": "smoker"}
    config = {"method": "fedavg", "dataset": "csv:t.csv@los", "show_samples": "yes"}
    page = with_columns(tmp_path / "run", entries=[full_entry("ig", 0, True, columns=[column])], config=config)
    assert "True: the client’s record. Attack: what attack ig" in page.text and "Wrong values are marked." in page.text
    assert "The client’s record beside the reconstruction, of which wrong values are marked; worst" in page.text
    assert "Rings" not in page.text and "Column by column" in page.text and "0 of 1 columns above a guess" in page.text
    bare = a_regression(tmp_path / "bare", entries=[full_entry("ig", 0, True, columns=[column])], config=config).text
    assert "Rings: the client’s record. Dots:" in bare and "0 of 1 features above a guess" in bare


def test_rows_that_nobody_attacked_are_records(tmp_path: Path) -> None:
    first = first_page(with_columns(tmp_path / "run", entries=[], membership=[member_row("loss", "undecided")]))
    assert "which records were used" in first and "membership of single records" in first
    assert "sample" not in first
    assert "which samples were used" in first_page(
        a_regression(tmp_path / "bare", entries=[], membership=[member_row("loss", "undecided")])
    )


def test_membership_of_patients_says_how_many_pairs_were_compared(tmp_path: Path) -> None:
    few = {
        "unit": "patient",
        "pairs": 24,
        "label_separable": 22,
        "clients": 1,
        "auc": 1.0,
        "auc_low": None,
        "auc_high": None,
    }
    few |= {"tpr": None, "fpr": None, "correct": {"guesses": 2, "correct": 2, "low": 0.03, "high": 1.0, "p": 0.25}}
    row = member_row("whitened", "undecided", **few)
    assert "(AUC 1.000 on 2 of 24 pairs of patients, " in membership_line(row | {"epsilon_low": 0.01})
    page = a_regression(tmp_path / "run", membership=[row])
    assert "is right in 100 % of comparisons (a coin: 50 %) on 2 of 24 pairs in rounds 1 to 2." in first_page(page)
    assert "single patients were in the training data: 2 of 24 pairs of 1 client were compared" in page.text
    assert "with their target value, public data" in page.text and "each tenth of the target as near" in page.text
    none = row | {
        "correct": {"guesses": 0, "correct": 0, "low": 0.0, "high": 1.0, "p": 1.0},
        "auc": 0.5,
        "label_separable": 23,
    }
    assert "tells no pair apart on 1 of 24 pairs" in first_page(a_regression(tmp_path / "none", membership=[none]))
    assert (compared(row), compared(member_row("cosine", "leaks"))) == ("2 of 24", "3000")
    assert "Other leaks. What share of a client" in page.text


def test_a_conclusion_says_that_labels_tell_most_pairs_apart() -> None:
    """Of 24 pairs 22 have labels that differ; the two others are right, which shows next to nothing."""
    apart = [float(k >= 2) for k in range(24)]
    scored = [ScoredClient(0, np.array([1.0] * 24), np.array([0.0] * 24))]
    labels = [ScoredClient(0, np.array(apart), np.array([0.0] * 24))]
    one = entry(ITEM, scored, {"label_only": labels}, {})
    assert (one["verdict"], one["cause"], one["label_separable"]) == ("undecided", "easy", 22)
    assert one["reason"].endswith("Of 24 pairs, labels alone tell the two of 22 apart, and these are not counted.")
    assert one["auc"] == 1.0 and one["auc_low"] is None and one["auc_high"] is None
    unscored = [ScoredClient(0, np.array([np.nan] + [1.0] * 23), np.array([0.0] * 24))]
    one = entry(ITEM, unscored, {"label_only": labels}, {})
    assert (one["failed"], one["pairs"]) == (1, 24) and "Of 24 pairs, labels alone tell the two of 22" in one["reason"]
    half = [ScoredClient(0, np.array([1.0] * 12 + [0.0] * 12), np.array([0.0] * 24))]
    scored = [ScoredClient(0, np.arange(24) % 2.0, np.full(24, 0.5))]
    assert "are not counted" not in entry(ITEM, scored, {"label_only": half}, {})["reason"]


def test_files_that_a_finished_run_has_not_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    for name in ("queue/job.json", "training.json", "tidying.json", "result.json"):
        (tmp_path / name).write_text("{}")
    assert files_of(tmp_path) == [("result.json", 1, 2)]


def test_nobody_is_told_from_sums_without_a_condition(tmp_path: Path) -> None:
    took = {"rounds": 2, "clients": 3, "smallest_group": 3, "rank": 1, "smallest_singular": 0.0, "separable": 0}
    took |= {"noise": [], "isolated": 0, "isolating": [], "recorded_only": False}
    sums = {"rounds": [], "same_for_all": True, "participation": took, "peer": PEER}
    words = a_regression(tmp_path / "none", sums=sums).text
    assert "can tell the mean update of none of them from the sums" in words and "That is exact only" not in words
    sums["participation"] = took | {"separable": 2}
    words = a_regression(tmp_path / "two", sums=sums).text
    assert "mean update of 2 of them" in words and "That is exact only if" in words
