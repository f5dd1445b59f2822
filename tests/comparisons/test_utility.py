"""Utility in a matrix: the accuracy of classifications, and the mean absolute error of regressions by hand and real."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flfw.comparisons import matrices, tables
from flfw.comparisons.compare import table
from flfw.comparisons.picture import PlotMark, Scatter, draw
from flfw.comparisons.question import Matrix
from flfw.comparisons.rows import read_matrix
from flfw.comparisons.tables import markdown
from flfw.comparisons.utility import ACCURACIES, ERRORS, family, shown
from flfw.errors import InputError
from flfw.files.result_file import read_result
from tests.support.csv_files import read_csv
from tests.support.drawn_charts import charts_in, lines_of, texts_at, texts_of
from tests.support.latex import check
from tests.support.matrix_runs import SMALL, amended, entry, row, written
from tests.support.small_runs import tiny

ACCURACY, ERROR = ACCURACIES[0], ERRORS[0]
REMARK = "The mean absolute error is in the unit of the target: smaller is better."


def regression(folder: Path, local: float, received: float, **config: Any) -> Path:
    """A run that was attacked, with these errors and no accuracy; eight records, all recovered without a defence."""
    name = config.get("defence", "none")
    db = 30.0 if name == "none" else 9.0
    rows = [row(i, db + i / 8, defence=name) for i in range(8)]
    verdict = "leaks" if db > 20 else "no leak found"
    written(folder, [entry(verdict=verdict, defence=name, images=8)], rows, **config)
    final = dict.fromkeys(one.key for one in ACCURACIES) | {"mae_local": local, "mae_global": received}
    return amended(folder, final=final)


@pytest.fixture
def written_matrix(tmp_path: Path) -> Path:
    """Two seeds without a defence, two with x, of which one is not run yet."""
    errors = {("none", 0): 40.0, ("none", 1): 44.0, ("x", 0): 1234.5}
    cells = []
    for defence, seed in (("none", 0), ("none", 1), ("x", 0), ("x", 1)):
        out = tmp_path / f"{defence}{seed}"
        if (defence, seed) in errors:
            regression(out, errors[defence, seed], 2 * errors[defence, seed], seed=seed, defence=defence)
        cells.append(replace(SMALL, defence=defence, seed=seed, out=out))
    question = Matrix(defences=("none", "x"), seeds=(0, 1)).filled(SMALL).question(SMALL)
    tables.write(tmp_path, question, cells, {})
    return tmp_path


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_how_values_are_written() -> None:
    assert [ACCURACY.text(0.8), ACCURACY.text(0.8, 0), ACCURACY.bare(0.8)] == ["80.0 %", "80 %", "80.0"]
    assert [ERROR.text(39.125), ERROR.text(39.125, 0), ERROR.bare(42.0)] == ["39.1", "39.1", "42.0"]
    assert [ERROR.text(12345.6), ERROR.text(0.001234), ERROR.text(123.4)] == ["12,346", "0.00123", "123"]
    assert ACCURACY.text(None) == ERROR.text(None) == "–"
    assert (ACCURACY.line(0.8), ERROR.line(39.125)) == (
        "accuracy 0.800 after local training",
        "mean absolute error 39.1 after local training",
    )
    assert (ACCURACY.at(0.8), ERROR.at(39.125)) == ("80.0\N{NO-BREAK SPACE}% accuracy", "a mean absolute error of 39.1")
    assert (ACCURACY.tick(0.5), ERROR.tick(2500.0), ERROR.tick(0.1 + 0.2)) == ("50 %", "2,500", "0.3")


def test_axes_are_wide_enough_and_end_where_no_model_can_be() -> None:
    assert ACCURACY.span(0.5, 0.5) == pytest.approx((0.45, 0.55))
    assert ACCURACY.span(0.0, 1.0) == (0.0, 1.0)
    assert ERROR.span(40.0, 40.0) == pytest.approx((38.0, 42.0))  # a twentieth to each side
    assert ERROR.span(10.0, 110.0) == (0.0, 122.0)  # 12 % of what is between
    assert ERROR.span(0.0, 0.0) == (0.0, 1.0)


def test_a_smaller_error_is_a_gain() -> None:
    assert ACCURACY.gain(0.75, over=0.5) == 0.25 and ERROR.gain(30.0, over=40.0) == 10.0
    assert ACCURACY.gain(0.5, over=0.75) == -0.25 and ERROR.gain(40.0, over=30.0) == -10.0


def test_errors_are_shown_where_they_were_measured() -> None:
    both, received = {"mae_local": {"mean": 1.0}, "mae_global": {"mean": 2.0}}, {"mae_global": {"mean": 2.0}}
    assert shown([both, both]) == ERRORS[0] and shown([both, received]) == ERRORS[1]
    assert shown([both, {}]) == ERRORS[0]
    assert family([{}, {"mae_local": 0.0}]) == ERRORS  # no error at all is one, too
    assert family([{"mae_local": None}, {"acc_local": 0.5}]) == family([]) == ACCURACIES


def test_the_tables_have_errors_beside_the_accuracies_that_nobody_measured(written_matrix: Path) -> None:
    record = read_matrix(written_matrix / "matrix.json")
    plain, defended = record["combinations"]
    assert plain["mae_local"] == {"mean": 42.0, "least": 40.0, "most": 44.0}
    assert defended["mae_global"] == {"mean": 2469.0, "least": 2469.0, "most": 2469.0}
    assert [plain[one.key] for one in ACCURACIES] == [None] * 3
    assert [(cell["mae_local"], cell["acc_local"]) for cell in record["cells"]] == [
        (40.0, None), (44.0, None), (1234.5, None), (None, None),
    ]  # fmt: skip
    rows = read_csv(written_matrix / "matrix.csv")
    assert [(row["mae_local"], row["mae_global"], row["acc_local"]) for row in rows] == [
        ("40.0", "80.0", ""), ("44.0", "88.0", ""), ("1234.5", "2469.0", ""),
    ]  # fmt: skip
    assert tables.lines(record) == [
        "fedavg: mean absolute error 42.0 after local training; leaks, 16 of 16 recovered by ig at round 0",
        "fedavg with x: mean absolute error 1,234 after local training; "
        "no leak found, 0 of 8 recovered by ig at round 0",
    ]


def test_markdown_and_latex_have_a_column_of_errors(written_matrix: Path) -> None:
    lines = markdown({"": read_matrix(written_matrix / "matrix.json")}).splitlines()
    assert lines[0].startswith("| method | defence | mean absolute error | attack |")
    assert lines[2].startswith("| fedavg | none | 42.0 | ig") and lines[3].startswith("| fedavg | x | 1,234 | ig")
    assert f"- {REMARK}" in lines
    source = (written_matrix / "matrix.tex").read_text()
    ranking, attacks = check(source)
    assert [cells[1] for cells in ranking] == ["Mean absolute error", "42.0", "1,234"]
    assert [cells[2] for cells in attacks] == ["Mean absolute error", "42.0", "1,234"]
    assert source.count(REMARK) == 2


def test_the_page_speaks_of_errors_alone(written_matrix: Path) -> None:
    page = (written_matrix / "matrix.html").read_text()
    text = text_of(page)
    assert "<title>Leakage against mean absolute error on digits</title>" in page
    assert "16 of 16 images (30.4 dB) at a mean absolute error of 42.0" in text
    assert "Across: from the most to the least accurate seed." in text
    assert f"Best is below and to the left. {REMARK}" in text
    assert "Mean absolute error is that of the final model, in the unit of the target: smaller is better." in text
    assert "beside an error its range over the seeds" in text
    assert "The same against mean absolute error as received, before local training" in text
    assert '<td>42.0<span class="measure"> 40.0 to 44.0</span></td>' in page
    assert '<th scope="col">Mean absolute error after</th><th scope="col">As received</th>' in page
    assert "<td>1,234</td><td>2,469</td>" in page and "<td>–</td><td>–</td>" in page  # the run that is not done
    named = [svg for svg in charts_in(page) if "error after local training (less is better)" in " ".join(texts_of(svg))]
    assert len(named) == 4  # two plots, two widths
    assert "accuracy" not in text.lower()


def test_a_classification_has_no_column_of_errors(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [entry()], [row(0, 30.0)])
    tables.write(tmp_path, Matrix().filled(SMALL).question(SMALL), [replace(SMALL, out=run)], {})
    for name in ("json", "csv", "md", "tex", "html"):
        text = (tmp_path / f"matrix.{name}").read_text()
        assert "mae_" not in text and "mean absolute" not in text.lower() and "target:" not in text


def test_a_mark_of_an_error_stands_where_its_number_is() -> None:
    marks = tuple(PlotMark(f"{x:g}", x, (x, x), 0.5, None, False) for x in (40.0, 80.0))
    wide, _ = charts_in(draw(Scatter("Records", ERROR, marks, percent=True)))
    ticks = {text: x for text, x, _ in reversed(texts_at(wide))}  # the axis comes before the names
    (one,), (two,) = ({x for x, _ in line} for line in lines_of(wide, "ink", width=9))
    assert (one, two) == pytest.approx((ticks["40"], ticks["80"]), abs=0.2) and one < two


def test_compared_regressions_have_errors_in_place_of_accuracies(tmp_path: Path) -> None:
    one, two = regression(tmp_path / "one", 40.0, 50.0), regression(tmp_path / "two", 1234.5, 0.25)
    blocks = table([one, two]).split("\n\n")
    (block,) = [block.splitlines() for block in blocks if block.startswith(("accuracy", "mean absolute error"))]
    assert [line.split() for line in block if set(line) != {"─"}] == [
        ["mean", "absolute", "error", "one", "two"],
        ["as", "received", "50.0", "0.250"],
        ["after", "local", "training", "40.0", "1,234"],
    ]


def test_a_regression_beside_a_classification_has_a_table_of_its_own(tmp_path: Path) -> None:
    one, two = regression(tmp_path / "one", 40.0, 50.0), written(tmp_path / "two", [], [])
    blocks = table([one, two]).split("\n\n")
    first, second = (
        [line.split() for line in next(b for b in blocks if b.startswith(start)).splitlines()]
        for start in ("accuracy", "mean absolute error")
    )
    assert first[2:] == [["as", "received", "–", "60.0", "%"], ["after", "local", "training", "–", "80.0", "%"]]
    assert second[2:] == [["as", "received", "50.0", "–"], ["after", "local", "training", "40.0", "–"]]
    amended(two, final=None)  # cut short: of what kind is not known
    assert not any(block.startswith("accuracy") for block in table([one, two]).split("\n\n"))


def test_damaged_errors_are_bad_input(tmp_path: Path) -> None:
    folder = amended(regression(tmp_path / "run", 40.0, 50.0), final={"mae_local": "much"})
    with pytest.raises(InputError, match=r"final\.mae_local"):
        read_result(folder)
    combination = {"method": "m", "defence": "none", "attacks": [], "worst": None, "mae_local": {"mea": 0.5}}
    content = {"question": {}, "notes": [], "cells": [], "combinations": [combination]}
    (tmp_path / "matrix.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"mae_local\.mean, got none"):
        read_matrix(tmp_path / "matrix.json")


@pytest.mark.slow
def test_seeds_of_a_real_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "t.csv"
    source.write_text("age,cost\n" + "\n".join(f"{20 + n % 25},{10 * n + 0.5}" for n in range(60)))
    experiment = tiny(dataset=f"csv:{source}@cost", split="auto", net="mlp", attack=("none",))
    folder = matrices.run(Matrix(seeds=(0, 1)), experiment, tmp_path / "seeds")
    finals = [read_result(folder / f"fedavg-none-s{seed}")["final"] for seed in (0, 1)]
    (only,) = read_matrix(folder / "matrix.json")["combinations"]
    for key in ("mae_local", "mae_global"):
        values = [final[key] for final in finals]
        assert only[key] == {"mean": sum(values) / 2, "least": min(values), "most": max(values)}
    first = matrices.summary(folder).splitlines()[0]
    assert first == f"fedavg: {ERROR.line(only['mae_local']['mean'])}; not attacked"
