"""The frontier of differential privacy: its settings, the choice on validation data, its price, and what is printed."""

import json
from dataclasses import replace
from math import exp, inf, isinf, sqrt
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy.stats import norm

from flfw import plugins
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.papers import cells
from flfw.papers.frontier import command as frontier
from flfw.papers.frontier import measure, page, points, trials
from flfw.papers.frontier.command import marks
from flfw.papers.frontier.points import FrontierPoint, Mark, table
from flfw.papers.frontier.trials import DATA, LINES, Data, FrontierLine, Trial
from flfw.papers.preset import at_seeds
from flfw.papers.published import Cell, Table
from flfw.runs import run
from flfw.task.method import Method
from tests.support.paths import ROOT

EXAMPLE, CLIENT = (
    next(one for one in LINES if (one.method, one.unit) == ("dp_fedavg", unit)) for unit in ("example", "client")
)
TRIALS = (Trial("linear", 1.0, 0.5, 1, 10), Trial("linear", 0.5, 2.0, 2, 10))
GIVEN = Experiment(engine="inproc")
DELTA = 1e-5


def cell(line: FrontierLine, epsilon: float = 4.0, data: str = "digits") -> Cell:
    keys = {"dataset": data, "method": line.method, "unit": line.unit, "against": line.against, "epsilon": epsilon}
    row, column = (data, line.method, line.unit), (f"{epsilon:g}",)
    return Cell("dp.frontier", keys, row, column, "accuracy", "", None, lost=True)


def gaussian(mu: float) -> float:
    """The epsilon of N(0, 1) against N(mu, 1) at `DELTA`, by bisection of its formula."""
    low, high = 0.0, 200.0
    for _ in range(200):
        e = (low + high) / 2
        delta = norm.cdf(mu / 2 - e / mu) - exp(e) * norm.cdf(-mu / 2 - e / mu)
        low, high = (e, high) if delta > DELTA else (low, e)
    return high


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients with 20 digits each, all of them in every round; two settings of one and two rounds."""
    monkeypatch.setitem(DATA, "digits", Data("digits", 20))
    monkeypatch.setattr(trials, "CLIENTS", {"quick": 4, "full": 4})
    monkeypatch.setattr(trials, "COHORT", 4)
    monkeypatch.setattr(measure, "trials", lambda line, data, scale: TRIALS)
    monkeypatch.setitem(trials.EPSILONS, "quick", (1.0, 4.0))


@pytest.fixture
def tiny_table(tiny: None, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Both units of DP-FedAvg on the digits, at epsilon 1 and 4."""
    some = tuple(cell(line, epsilon) for line in (EXAMPLE, CLIENT) for epsilon in (1.0, 4.0))
    small = replace(table(), cells=some)
    monkeypatch.setattr(frontier, "table", lambda: small)
    monkeypatch.setattr(frontier, "marks", lambda given: iter([MARK]))
    return small


MARK = Mark(
    "digits", "Fed-CDP", "example", "server", "fed_cdp.2/Fed-CDP/100/0.1/accuracy", 0.831, 0.8227, 5.5448, 0.445
)


def result(folder: Path, name: str) -> Any:
    return json.loads((folder / name / "result.json").read_text())


# --- what is in it ---


def test_every_method_that_claims_something_has_a_line() -> None:
    private = {
        name
        for name in plugins.names(plugins.METHOD)
        if plugins.load_class(plugins.METHOD, name, Method).mechanism.__func__ is not Method.mechanism.__func__  # type: ignore[attr-defined]
    }
    assert private == {line.method for line in LINES}
    assert len({(line.method, line.unit) for line in LINES}) == len(LINES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.method}-{line.unit}")
def test_a_line_names_its_strongest_adversary(line: FrontierLine, tiny: None) -> None:
    trial = Trial("mlp" if line.personal else "linear", 1.0, 0.1, 1, 10)
    run_plan, task, _ = run.check(trials.experiment(line, "digits", trial, 2.0, 0, "quick"))
    claims = cells.planned(run_plan.experiment, task)["privacy"]
    epsilons = {one["adversary"]: float(one["epsilon"]) for one in claims if one["unit"] == line.unit}
    assert epsilons[line.against] == pytest.approx(2, abs=2e-3)
    assert isinf(epsilons["server"]) == (line.against != "server")


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_point_has_settings_to_choose_from_that_make_different_runs(scale: Any) -> None:
    for data in DATA:
        for line in LINES:
            options = trials.trials(line, data, scale)
            runs = [trials.experiment(line, data, one, 1.0, 0, scale) for one in options]
            assert len({cells.folder_name(one) for one in runs}) == len({one.words for one in options}) >= 2
            assert all(one.target_epsilon == 1.0 and "sampled.halves=alternate" in one.set for one in runs)
    assert trials.TUNING_SEED not in trials.SEEDS and len(trials.SEEDS) == 3


# --- a point ---


@pytest.mark.nightly
def test_a_point_has_the_ledger_s_epsilon_and_the_price_of_its_choice(tiny: None, tmp_path: Path) -> None:
    point = measure.measured(cell(EXAMPLE), "quick", GIVEN, tmp_path, print)
    assert (point.status, point.seeds, len(point.folders)) == ("measured", (0, 1, 2), 2 + 3)
    tuning, reported = point.folders[:2], point.folders[2:]
    by_words = dict(point.tried)
    assert [by_words[trial.words] for trial in TRIALS] == [
        result(tmp_path, name)["final"]["acc_global_validation"] for name in tuning
    ]
    finals = [result(tmp_path, name) for name in reported]
    assert point.accuracy == pytest.approx(sum(one["final"]["acc_global"] for one in finals) / 3)
    claims = [
        float(entry["epsilon"])
        for one in finals
        for entry in one["privacy"]
        if (entry["unit"], entry["adversary"]) == ("example", "server")
    ]
    assert point.epsilon is not None and point.with_tuning is not None
    assert point.epsilon == max(claims) and 3.99 < point.epsilon <= 4
    assert point.with_tuning > 1.2 * point.epsilon


@pytest.mark.slow
def test_the_price_is_the_composition_of_every_run_of_the_choice(tiny: None, tmp_path: Path) -> None:
    point = measure.measured(cell(CLIENT), "quick", GIVEN, tmp_path, print)
    mu = [0.0, 0.0]  # squared: of the choice, of a reported run
    for index, names in enumerate((point.folders[:2], point.folders[2:3])):
        for name in names:
            config = result(tmp_path, name)["config"]
            mu[index] += config["rounds"] / config["method_settings"]["noise_multiplier"] ** 2
    assert point.epsilon is not None and point.with_tuning is not None
    assert point.epsilon == pytest.approx(gaussian(sqrt(mu[1])), rel=1e-6)
    assert point.with_tuning == pytest.approx(gaussian(sqrt(sum(mu))), rel=1e-6)
    assert point.with_tuning > 1.5 * point.epsilon  # three releases and not one


def planted(tmp_path: Path, finals: dict[str, dict[str, float]]) -> None:
    """Finished runs of the point `cell(CLIENT)`: those of each learning rate have these figures."""
    for trial in TRIALS:
        first = trials.experiment(CLIENT, "digits", trial, 4.0, trials.TUNING_SEED, "quick")
        for one in (first, *at_seeds(first, trials.SEEDS)):
            folder = tmp_path / cells.folder_name(one)
            folder.mkdir()
            claims = [{"unit": "client", "adversary": "another client", "accounting": "exact", "epsilon": 3.9995}]
            stored = {
                "config": {"method_settings": {"noise_multiplier": 5.0}},
                "provenance": {"code": code_hash()},
                "environment": {"hardware": "a machine"},
                "final": finals[f"{trial.lr:g}"],
                "privacy": claims,
                "notes": [],
            }
            (folder / "result.json").write_text(json.dumps(stored))
            (folder / "reach.json").write_text(json.dumps({"obstacle": "", "classes": 10, "largest_class": 0.195}))


def test_the_best_on_test_data_is_not_chosen_if_it_is_worse_on_validation_data(tiny: None, tmp_path: Path) -> None:
    best_on_test = {"acc_global_validation": 0.5, "acc_validation": 0.99, "acc_global": 0.9, "acc_local": 0.9}
    planted(tmp_path, {"0.5": best_on_test, "2": {**best_on_test, "acc_global_validation": 0.6, "acc_global": 0.2}})
    point = measure.measured(cell(CLIENT), "quick", GIVEN, tmp_path, print)
    assert (point.chosen, point.accuracy) == (TRIALS[1].words, pytest.approx(0.2))
    assert point.tried == ((TRIALS[0].words, 0.5), (TRIALS[1].words, 0.6))
    assert point.notes == ("no better than guessing the largest class, 0.20",)
    # sigma 5: three releases of 1 + 2 + 2 rounds
    assert point.with_tuning == pytest.approx(gaussian(sqrt(5) / 5), rel=1e-6)


@pytest.mark.slow
def test_what_is_tuned_on_is_never_tested_on(tiny: None) -> None:
    held: dict[str, set[int]] = {"validation": set(), "test": set()}
    for seed in (trials.TUNING_SEED, *trials.SEEDS):
        _, task, _ = run.check(trials.experiment(EXAMPLE, "digits", TRIALS[0], 1.0, seed, "quick"))
        for part, indices in held.items():
            indices |= {int(index) for some in getattr(task.split, part) for index in some}
    assert held["validation"] and not held["validation"] & held["test"]


def test_a_setting_that_fails_leaves_the_point_missing_with_the_reason(
    tiny: None, tmp_path: Path, monkeypatch: Any
) -> None:
    broken = (TRIALS[0], Trial("nowhere", 1.0, 0.5, 1, 10))
    monkeypatch.setattr(measure, "trials", lambda line, data, scale: broken)
    point = measure.measured(cell(CLIENT), "quick", GIVEN, tmp_path, print)
    assert (point.status, point.accuracy) == ("missing", None)
    assert point.reason.startswith(broken[1].words) and "nowhere" in point.reason


# --- the command, its table and its figure ---


@pytest.mark.slow
def test_what_is_missing_is_shown_and_what_is_there_is_not_run_again(tiny_table: Table, tmp_path: Path) -> None:
    path = tmp_path / "dp.frontier-quick.json"
    result = frontier.measured("dp.frontier/digits/dp_fedavg/client/4", "quick", replace(GIVEN, out=tmp_path))
    shown = result.text
    assert result.complete and "QUICK" in shown and "A table of our own" in shown and "dp_fedavg" in shown
    _, known, papers = points.read(path)
    assert [point.status for point in known] == ["missing", "missing", "missing", "measured"]
    assert {point.reason for point in known[:3]} == {"not asked for"} and papers == (MARK,)
    text = path.with_suffix(".md").read_text()
    assert text.count("| missing |") == 3 and "missing: not asked for" in text
    assert "## Privacy of one example" in text and "## Privacy of one client" in text
    assert path.with_suffix(".svg").read_text().count("one client") == 1
    written = {one: one.stat().st_mtime_ns for one in (tmp_path / "cells").glob("*/result.json")}
    assert len(written) == 5
    assert frontier.measured("dp.frontier/digits/dp_fedavg/client/4", "quick", replace(GIVEN, out=tmp_path)).complete
    assert {one: one.stat().st_mtime_ns for one in (tmp_path / "cells").glob("*/result.json")} == written
    frame = pd.read_csv(path.with_suffix(".csv"))
    assert [*frame.kind] == ["point"] * 4 + ["paper"]
    assert frame.accuracy[3] == known[3].accuracy and frame.printed_epsilon[4] == 0.8227


def test_a_point_outside_the_scale_is_refused(tiny_table: Table, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(trials.EPSILONS, "quick", (1.0,))
    with pytest.raises(
        InputError, match=r"^Expected a cell of the quick scale, got --cell dp\.frontier/digits/dp_fedavg/client/4"
    ):
        frontier.measured("dp.frontier/digits/dp_fedavg/client/4", "quick", replace(GIVEN, out=tmp_path))


def test_points_are_read_as_they_were_written(tmp_path: Path) -> None:
    point = FrontierPoint(
        "a/b", "MNIST", "centaur", "client", "another client", 1.0, with_tuning=inf, tried=(("linear", 0.5),)
    )
    points.write(tmp_path / "points.json", "quick", [point], [replace(MARK, epsilon=inf)])
    assert points.read(tmp_path / "points.json") == ("quick", (point,), (replace(MARK, epsilon=inf),))
    (tmp_path / "points.json").write_text("{")
    with pytest.raises(InputError, match="Expected points of the frontier"):
        points.read(tmp_path / "points.json")


def test_the_page_in_docs_is_printed_from_its_points() -> None:
    stem = ROOT / "docs" / "tables" / "frontier"
    scale, known, papers = points.read(stem.with_suffix(".json"))
    assert stem.with_suffix(".md").read_text() == page.markdown(scale, known, papers, "frontier.svg")
    assert [point.cell for point in known] == [one.path for one in table().cells if one.columns[0] in ("1", "8")]


# --- the papers' own points ---


@pytest.mark.nightly
def test_the_papers_points_have_their_printed_and_their_true_epsilons() -> None:
    by_method = {(one.data, one.method): one for one in marks(GIVEN)}
    if ("MNIST", "Fed-CDP") not in by_method:
        pytest.skip("MNIST is not here")
    fed_cdp = by_method["MNIST", "Fed-CDP"]
    assert (fed_cdp.accuracy, fed_cdp.printed) == (0.831, 0.8227)
    assert fed_cdp.epsilon == pytest.approx(5.54, abs=0.01)
    fashion = by_method["Fashion-MNIST", "DP-FedAvg"], by_method["Fashion-MNIST", "CENTAUR"]
    assert [one.printed for one in fashion] == [4.0, 4.0]
    assert fashion[0].epsilon == pytest.approx(16.5, abs=0.05) and isinf(fashion[1].epsilon)
