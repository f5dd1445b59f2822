"""Fed-CDP's tables: their settings, figures without a run, figures of an audit's entries, and cells of Y or N."""

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flfw import data
from flfw.command.api.tables import measured
from flfw.comparisons.figures import norms
from flfw.data import Dataset
from flfw.data.splits.partition import Split
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.papers import cells, command, fed_cdp, layout, published
from flfw.papers.cells import Outcome
from flfw.papers.command import Reproduction
from flfw.papers.layout import sheet
from flfw.papers.preset import Preset, ResultMetric, Scale
from flfw.papers.published import Cell, Table
from flfw.plans.run_plan import plan, without_auto
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task
from tests.support.planned import checked

TABLE = published.table("fed_cdp.7")
PLAIN, DECAY = ("momentum=0", "weight_decay=0"), ("bound=decay", "clip=6", "last_clip=2", "noise_multiplier=6")
FULL = Experiment(
    method="fedavg", dataset="mnist", net="lenet", split="shards", augment="none", clients=100, sample=10, rounds=1,
    local_epochs=1, batch_size=5, lr=0.05, seed=0, attack=("cpl",), audit_rounds="0", victim_batch=5, images=100,
    vantage=("server", "client_example"), set=("shards.pool=50000", *PLAIN),
)  # fmt: skip
WITH_A_RUN = ("fed_cdp.2", "fed_cdp.4", "fed_cdp.5", "fed_cdp.7")


def preset_of(path: str, scale: Scale) -> Preset:
    (cell,) = published.table(path.partition("/")[0]).select(path)
    return fed_cdp.TABLES[cell.table](cell, scale)


# --- settings -----------------------------------------------------------------------------------------------------


def test_table_7_s_settings_are_the_paper_s() -> None:
    assert preset_of("fed_cdp.7/non-private/MNIST/type 0&1/succeed", "full").experiments == (FULL,)
    assert preset_of("fed_cdp.7/non-private/MNIST/type 2/succeed", "quick").experiments == (replace(FULL, images=10),)
    (faces,) = preset_of("fed_cdp.7/non-private/LFW/type 2/succeed", "full").experiments
    assert faces == replace(FULL, dataset="lfw", batch_size=3, victim_batch=3, set=("shards.shards=15", *PLAIN))
    (decay,) = preset_of("fed_cdp.7/Fed-CDP(decay)/MNIST/type 2/succeed", "full").experiments
    assert decay == replace(FULL, method="fed_cdp", set=("shards.pool=50000", *DECAY))


def test_the_settings_of_accuracies_are_the_paper_s() -> None:
    (run,) = preset_of("fed_cdp.2/Fed-CDP/1000/0.1", "full").experiments
    assert run == Experiment(
        method="fed_cdp", dataset="mnist", net="cnn3x3", split="shards", augment="none", clients=1000, sample=100,
        rounds=100, local_epochs=1, batch_size=5, lr=0.05, accountant="paper", attack=("none",),
        set=("shards.pool=50000", "clip=4", "noise_multiplier=6"),
    )  # fmt: skip
    for path in ("fed_cdp.4/MNIST/4", "fed_cdp.5/MNIST/6"):  # the same run in three tables
        assert preset_of(path, "full").experiments == (run,)
    assert preset_of("fed_cdp.6/Fed-CDP/client/100/MNIST", "quick").experiments == (run,)  # counted, not run
    (bound,) = preset_of("fed_cdp.4/Cancer/0.5", "full").experiments
    assert (bound.net, bound.clients, bound.sample, bound.rounds, bound.batch_size) == ("mlp", 100, 10, 3, 4)
    assert bound.set == ("shards.train=400", "clip=0.5", "noise_multiplier=6")
    assert preset_of("fed_cdp.5/Adult/0.5", "full").experiments[0].set == ("clip=4", "noise_multiplier=0.5")
    (central,) = preset_of("fed_cdp.2/Fed-SDP/100/0.5", "full").experiments
    assert central == replace(run, method="fed_sdp", clients=100, sample=50)
    (plain,) = preset_of("fed_cdp.2/non-private/1000/0.1", "full").experiments
    assert plain == replace(run, method="fedavg", accountant="prv", set=("shards.pool=50000", *PLAIN))
    assert preset_of("fed_cdp.1/MNIST/non_private_accuracy", "full").experiments == (plain,)


def test_the_quick_scale_keeps_noise_bound_learning_rate_and_participation() -> None:
    """What it changes are rounds, and how many examples a client has where there are very many clients."""
    sizes = {100: (10, ()), 1000: (10, ("shards.train=50",)), 10_000: (2, ("shards.train=5",))}
    for cell in published.table("fed_cdp.2").cells:
        quick, full = (fed_cdp.participation(cell, scale).experiments[0] for scale in ("quick", "full"))
        rounds, fewer = sizes[int(cell.keys["K"])]
        assert quick == replace(full, rounds=rounds, set=(*fewer, *full.set))
        assert quick.sample == round(float(cell.keys["Kt_over_K"]) * int(cell.keys["K"]))
    for table in ("fed_cdp.4", "fed_cdp.5"):
        for cell in published.table(table).cells:
            quick, full = (fed_cdp.swept(cell, scale).experiments[0] for scale in ("quick", "full"))
            assert quick == replace(full, clients=100, sample=10, rounds=min(10, full.rounds))


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_different_cells_of_accuracy_are_different_runs(scale: Scale) -> None:
    for table in ("fed_cdp.2", "fed_cdp.4", "fed_cdp.5"):
        presets = [fed_cdp.TABLES[table](cell, scale) for cell in published.table(table).cells]
        assert len({cells.folder_name(preset.experiments[0]) for preset in presets}) == len(presets)


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("table", list(fed_cdp.TABLES))
def test_every_cell_is_an_experiment_that_fits_what_there_is(table: str, scale: Scale) -> None:
    for cell in published.table(table).cells:
        preset = fed_cdp.TABLES[table](cell, scale)
        (run,) = preset.experiments
        checked(plan(without_auto(run)))
        assert cells.obstacle(cell, preset) == ""
        assert (preset.source == "run") == (table in WITH_A_RUN or cell.metric == "non_private_accuracy")


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_a_row_and_data_set_are_one_run_and_no_other_s(scale: Scale) -> None:
    """Three figures of two kinds of leakage share it; 4 rows of 2 data sets do not."""
    runs: dict[str, set[tuple[Any, ...]]] = {}
    for cell in TABLE.cells:
        (run,) = fed_cdp.attacked(cell, scale).experiments
        assert Experiment.from_run_config(run.to_run_config()) == run
        runs.setdefault(cells.folder_name(run), set()).add((cell.row, cell.keys["dataset"]))
    assert len(runs) == 8 and all(len(given) == 1 for given in runs.values())


def test_each_cell_has_its_own_figure() -> None:
    for row in ("non-private", "Fed-SDP", "Fed-CDP", "Fed-CDP(decay)"):
        for dataset in ("MNIST", "LFW"):
            given = TABLE.select(f"fed_cdp.7/{row}/{dataset}")
            assert [fed_cdp.attacked(cell, "full").figure.name for cell in given] == [
                f"audit.vantage={vantage},adaptation=None.distance.{name}"
                for vantage in ("server", "client_example")
                for name in ("success", "rmsd", "iterations")
            ]


@pytest.mark.slow
def test_what_cannot_be_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "fetch", lambda name, data_root=None: None)
    given = Experiment(engine="inproc", data_root=tmp_path / "nothing", out=tmp_path / "out")
    assert not measured("fed_cdp.7", "", "quick", given).complete
    result = pd.read_csv(tmp_path / "out" / "fed_cdp.7-quick.csv")
    assert set(result.status) == {"not run"} and len(result) == 48
    assert all(reason.startswith("Expected a data root with ") for reason in result.reason)
    assert ["lfw-py/people.txt" in reason for reason in result.reason] == list(result.dataset == "LFW")


# --- what takes no run --------------------------------------------------------------------------------------------

# Those of which the data are always there; of the others only what the ledger needs of a split: sizes and copies.
CELLS_OF_TABLE_6 = [cell for cell in published.table("fed_cdp.6").cells if cell.keys["dataset"] == "Cancer"]


def sized(run: Experiment) -> Task:
    """The task of an experiment of any data set, as far as an accountant looks at it: nobody holds a real example."""
    chosen = {"mnist": 500, "cifar10": 400, "lfw": 300, "adult": 300, "cancer": 400}[run.dataset]
    given = [one.partition("=")[2] for one in run.set if one.startswith("shards.train=")]
    held = np.arange(int(given[0]) if given else chosen)
    nobody, clients = np.zeros(0, np.int64), range(run.clients)
    card = data.describe(run.dataset)
    x, y = np.zeros((1, *card.shape), np.float32), np.zeros(1, np.int64)
    shape = (0.0,) * card.shape[0]
    dataset = Dataset(run.dataset, x, y, x, y, card.classes, shape, shape, "nowhere", None)
    split = Split(tuple(held for _ in clients), tuple(nobody for _ in clients), (nobody,), nobody, nobody, nobody)
    return Task(dataset, split, NetworkPlan(run.net))


@cache  # both levels of a row are one plan
def entries_of(run: Experiment) -> list[dict[str, Any]]:
    return cells.planned(run, sized(run))["privacy"]


@pytest.mark.parametrize("cell", published.table("fed_cdp.6").cells, ids=lambda cell: cell.path)
def test_table_6_is_the_paper_s_count_with_the_true_figure_beside_it(cell: Cell) -> None:
    preset = fed_cdp.spent(cell, "quick")
    run, unit = without_auto(preset.experiments[0]), fed_cdp.UNITS[str(cell.keys["level"])]
    assert preset.source == "plan" and run.rounds == cell.keys["T"]
    entries = entries_of(run)
    counted = {one["unit"]: one["epsilon"] for one in entries if one["accounting"] == "as published"}
    true = {(one["unit"], one["adversary"]): one["epsilon"] for one in entries if one["accounting"] == "exact"}
    if cell.value is None:
        assert unit not in counted and preset.figure.absent == "not supported"
    else:
        assert counted[unit] == pytest.approx(cell.value, abs=1e-4) and preset.figure.absent is None
    assert true[unit, "server"] > 1  # always more than the paper prints


@pytest.mark.slow
def test_table_6_needs_no_training(tmp_path: Path) -> None:
    """The embedded data, through the command."""
    subject = replace(published.table("fed_cdp.6"), cells=tuple(CELLS_OF_TABLE_6))
    assert len(subject.cells) == 8
    given = Experiment(engine="inproc")
    assert command.measured(Reproduction(subject, fed_cdp.spent, "quick", given, tmp_path), "").complete
    result = pd.read_csv(tmp_path / "fed_cdp.6-quick.csv").set_index("row")
    assert set(result.status) == {"measured"}
    for name, row in result.iterrows():
        if str(name).startswith("Fed-SDP instance"):
            assert row.measured == "not supported"
        else:
            assert float(row.measured) == pytest.approx(float(row.published), abs=1e-4)
        assert float(row.also.rpartition("=")[2]) > 1
    assert all(
        [path.name for path in folder.iterdir()] == ["result.json"] for folder in (tmp_path / "cells").glob("*-*")
    )
    page = (tmp_path / "fed_cdp.6-quick.md").read_text()
    assert "PLANNED: the paper's settings, counted before a run; nothing was trained" in page and "QUICK" not in page
    assert "| not supported / **not supported** (also " in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/result.json")}
    assert len(before) == 4  # both levels of a row are one plan
    assert command.measured(Reproduction(subject, fed_cdp.spent, "full", given, tmp_path), "").complete
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/result.json")}


@pytest.mark.slow
def test_table_1_is_what_the_data_and_the_split_really_have(tmp_path: Path) -> None:
    given = published.table("fed_cdp.1")
    given = replace(
        given, cells=tuple(cell for cell in given.select("fed_cdp.1/Cancer") if "accuracy" not in cell.metric)
    )
    asked = Reproduction(given, fed_cdp.described, "quick", Experiment(engine="inproc"), tmp_path)
    assert command.measured(asked, "").complete
    result = pd.read_csv(tmp_path / "fed_cdp.1-quick.csv").set_index("metric")
    counted = result.drop("non_private_ms_per_iteration")
    assert list(counted.measured) == list(counted.published.astype(float)) and len(counted) == 8
    assert result.measured["non_private_ms_per_iteration"] > 0
    assert sorted(path.parent.name.partition("-")[0] for path in tmp_path.glob("cells/*/result.json")) == [
        "clock",
        "plan",
    ]


@pytest.mark.slow
def test_an_iteration_s_time_is_that_of_training_and_its_ratio_that_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    run = without_auto(preset_of("fed_cdp.3/Fed-CDP/Cancer", "quick").experiments[0])
    assert norms.plain(run) == replace(
        run, method="fedavg", set=("shards.train=400", "optimiser=sgd", "momentum=0.0", "weight_decay=0.0")
    )
    clock = iter(range(100))
    monkeypatch.setattr(norms.time, "process_time", lambda: float(next(clock)) ** 2)
    result = norms.clocked(run, plan(run).task.load(None), turns=2)["timing"]
    # Two readings a turn; of 100 steps each. The first two turns set things up: (n+1)^2 - n^2 s from n = 4 on.
    assert (result["ms"], result["plain_ms"]) == (pytest.approx(10 * (9 + 17) / 2), pytest.approx(10 * (13 + 21) / 2))
    assert result["ratio"] == pytest.approx((9 / 13 + 17 / 21) / 2) and result["steps"] == 100


def test_every_turn_starts_from_the_same_weights() -> None:
    run = without_auto(replace(preset_of("fed_cdp.3/Fed-CDP/Cancer", "quick").experiments[0], seed=3))
    trainee = norms.Trainee(run, plan(run).task.load(None))
    trained = trainee._client.train  # what a turn calls
    starts: list[float] = []

    def noting() -> dict[str, float]:
        starts.append(float(sum(value.double().sum() for value in trainee._client.model.state_dict().values())))
        return trained()

    trainee._client.train = noting  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(2):
        trainee.turn()
    assert starts[0] == starts[1]
    assert starts[0] != sum(float(v.double().sum()) for v in trainee._client.model.state_dict().values())


# --- a run of each kind -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", ["fed_cdp.2/Fed-SDP/1000/0.1", "fed_cdp.4/Cancer/0.5"])
def test_an_accuracy_has_its_two_epsilons_beside_it(path: str, tmp_path: Path) -> None:
    def small(cell: Cell, scale: Scale) -> Preset:
        preset = fed_cdp.TABLES[cell.table](cell, scale)
        chosen = tuple(one for one in preset.experiments[0].set if not one.startswith("shards."))
        run = replace(
            preset.experiments[0], dataset="cancer", net="mlp", clients=4, sample=2, rounds=2, split="iid", set=chosen
        )
        return replace(preset, choices=((run,),))

    given = published.table(path.partition("/")[0])
    given = replace(given, cells=given.select(path))
    assert command.measured(Reproduction(given, small, "quick", Experiment(engine="inproc"), tmp_path), "").complete
    result = pd.read_csv(tmp_path / f"{given.name}-quick.csv").iloc[0]
    assert result.status == "measured" and 0 <= result.measured <= 1
    exact, counted = (float(word.rpartition("=")[2]) for word in result.also.split(" privacy."))
    assert exact > counted > 0


# --- what is read from an audit -----------------------------------------------------------------------------------


def asked(metric: str = "reconstruction_distance", value: float | str = 0.1) -> Cell:
    return Cell("tiny.7", {"method": "fedavg"}, ("fedavg",), (), metric, "", value)


def done(tmp_path: Path, figure: ResultMetric, *audits: Sequence[Mapping[str, Any]]) -> Preset:
    """A preset whose runs are over, one a seed, with these audits."""
    runs = tuple(Experiment(seed=seed, out=tmp_path / str(seed)) for seed in range(len(audits)))
    for run, audit in zip(runs, audits, strict=True):
        assert run.out is not None
        run.out.mkdir()
        result = {"audit": audit, "notes": [], "provenance": {"code": code_hash()}}
        (run.out / "result.json").write_text(json.dumps(result))
    return Preset((runs,), figure)


def entry(vantage: str, adaptation: str | None = None, **distance: float | None) -> dict[str, Any]:
    return {
        "attack": "ig",
        "round": 0,
        "vantage": vantage,
        "adaptation": adaptation,
        "failures": 0,
        "distance": distance,
    }


def test_a_figure_is_that_of_its_vantage_wherever_the_entry_stands(tmp_path: Path) -> None:
    audits = (
        [entry("server", rmsd=0.2), entry("client_example", rmsd=0.1)],
        [entry("client_example", rmsd=0.3), entry("server", rmsd=0.9)],
    )
    outcome = cells.read(
        asked(), done(tmp_path, ResultMetric("audit.vantage=client_example.distance.rmsd", "", 1), *audits)
    )
    assert outcome.value == pytest.approx(0.2)  # of 0.1 and 0.3
    assert outcome.deviation == pytest.approx(0.02**0.5)


@pytest.mark.parametrize("audit", [[], [entry("server", rmsd=0.2)] * 2, [entry("client_update", rmsd=0.2)]])
def test_no_entry_or_several_are_a_failure(tmp_path: Path, audit: list[dict[str, Any]]) -> None:
    outcome = cells.measured(asked(), done(tmp_path, ResultMetric("audit.vantage=server.distance.rmsd", "", 1), audit))
    assert outcome.status == "failed"
    assert outcome.reason == f"{tmp_path / '0' / 'result.json'} has no audit.vantage=server.distance.rmsd."


@pytest.mark.parametrize(("shares", "word"), [([0.5], "Y"), ([0.49], "N"), ([0.9, 0.2], "Y"), ([0.7, 0.2], "N")])
def test_half_of_the_examples_make_a_yes(tmp_path: Path, shares: list[float], word: str) -> None:
    figure, share, _ = fed_cdp.figures("server")["succeed"]
    preset = done(tmp_path, figure, *([entry("server", success=value)] for value in shares))
    outcome = cells.read(asked("succeed", "Y"), replace(preset, also=(share,)))
    assert (outcome.value, outcome.deviation) == (word, None)
    assert outcome.also == {share.name: pytest.approx(sum(shares) / len(shares))}


def test_an_attack_that_knows_of_the_noise_stands_beside_the_one_that_does_not(tmp_path: Path) -> None:
    figure, share, informed = fed_cdp.figures("server")["succeed"]
    audits = [entry("server", success=0.2), entry("server", "written", success=0.7), entry("client_example", success=1)]
    outcome = cells.read(asked("succeed", "N"), replace(done(tmp_path, figure, audits), also=(share, informed)))
    assert (outcome.value, list(outcome.also.values())) == ("N", [0.2, 0.7])


def test_attacks_that_gave_nothing_have_no_distance(tmp_path: Path) -> None:
    figure, failures, informed = fed_cdp.figures("server")["reconstruction_distance"]
    preset = done(tmp_path, figure, [{**entry("server", rmsd=None), "failures": 10}])
    outcome = cells.read(asked(), replace(preset, also=(failures, informed)))
    assert (outcome.value, outcome.also) == ("none", {failures.name: 10})


# --- what is shown ------------------------------------------------------------------------------------------------


def shown() -> list[Outcome]:
    """The first row's MNIST cells of type 0&1, measured."""
    given = TABLE.select("fed_cdp.7/non-private/MNIST/type 0&1")
    values: list[tuple[float | str, dict[str, float]]] = [("N", {"share": 0.42}), (0.25, {"failures": 3.0}), (12.0, {})]
    return [
        Outcome(cell, "measured", "", fed_cdp.attacked(cell, "quick"), value, also=also)
        for cell, (value, also) in zip(given, values, strict=True)
    ]


def test_a_yes_or_no_stands_beside_the_published_one() -> None:
    page = sheet(TABLE, shown(), "quick")
    assert "| non-private | Y / **N** (also 0.42) | 0.1549 / **0.25** (also 3) | 6 / **12** |" in layout.markdown(page)
    (line,) = [line for line in layout.terminal(page, 120).splitlines() if line.lstrip().startswith("ours N")]
    assert re.fullmatch(r" +ours N +ours 0\.25 +ours 12", line)
    result = pd.read_csv(io.StringIO(layout.csv(TABLE, shown(), "quick")))
    assert list(result.measured) == ["N", "0.25", "12.0"]


def test_the_heading_says_how_much_was_attacked() -> None:
    heading = sheet(TABLE, shown(), "quick").heading
    assert any(line.startswith("QUICK: 1 seed, 1 round of 1 epoch, 10 probes; not the paper's") for line in heading)
    plain = replace(FULL, attack=("none",))
    without = [replace(outcome, preset=Preset(((plain,),), ResultMetric("x", "y"))) for outcome in shown()]
    assert any(
        line.startswith("FULL: 1 seed, 1 round of 1 epoch; the") for line in sheet(TABLE, without, "full").heading
    )


def test_what_a_number_is_is_said_once_for_all_vantages() -> None:
    outcomes = [Outcome(cell, "not run", "-", fed_cdp.attacked(cell, "quick")) for cell in TABLE.cells]
    message = [line for line in sheet(TABLE, outcomes, "quick").heading if line.startswith(("ours (", "also "))]
    assert len(message) == 6  # three figures, two with another beside them, and that of who knows of the noise


# --- a real audit -------------------------------------------------------------------------------------------------


def of_digits(cell: Cell, scale: Scale) -> Preset:
    """The table's figures of a run in which the closed form solves single examples, and no batch of two."""
    run = replace(
        fed_cdp.attacked(cell, scale).experiments[0], dataset="digits", net="linear", clients=2, sample=0,
        attack=("analytic",), victim_batch=2, images=2, set=("shards.train=200", *PLAIN),
    )  # fmt: skip
    return replace(fed_cdp.attacked(cell, scale), choices=((run,),))


@pytest.mark.slow
def test_a_real_audit_fills_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = Table("tiny.7", "T", "P", TABLE.rows_by, TABLE.columns_by, TABLE.select("fed_cdp.7/non-private/MNIST"))
    assert command.measured(Reproduction(small, of_digits, "quick", Experiment(engine="inproc"), tmp_path), "").complete
    result = pd.read_csv(tmp_path / "tiny.7-quick.csv").set_index(["leak", "metric"])
    assert set(result.status) == {"measured"} and result.folders.nunique() == 1
    assert result.measured["type 2", "succeed"] == "Y"
    assert float(result.measured["type 2", "reconstruction_distance"]) < 1e-5
    assert float(result.measured["type 0&1", "reconstruction_distance"]) > 0.01  # the mean of both, at best
    assert result.also["type 2", "reconstruction_distance"].endswith(".failures=0.0")
    assert result.measured["type 2", "attack_iterations"] == "0.0"
    assert re.search(r"after \d+ s Y, published Y$", capsys.readouterr().err, re.MULTILINE)
