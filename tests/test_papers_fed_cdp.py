"""Fed-CDP's table of attacks: its settings, figures of an audit's entries, and cells that say Y or N."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flfw import data
from flfw.assignments import settings
from flfw.data import partition
from flfw.experiment import Experiment
from flfw.provenance import code_hash
from papers import cells, command, fed_cdp, published, show
from papers.cells import Outcome
from papers.layout import sheet
from papers.preset import Figure, Preset, Scale
from papers.published import Cell, Table
from papers.reproduce import Reproduction

TABLE = published.table("fed_cdp.7")
FULL = Experiment(
    method="fedavg", dataset="mnist", net="lenet", split="shards", clients=100, sample=10, rounds=1, local_epochs=1,
    batch_size=5, lr=0.05, seed=0, attack=("cpl",), audit_rounds="0", victim_batch=5, images=100,
    vantage=("server", "client_example"), set=("shards.pool=50000",),
)  # fmt: skip


def preset_of(path: str, scale: Scale) -> Preset:
    (cell,) = TABLE.select(f"fed_cdp.7/{path}")
    return fed_cdp.attacked(cell, scale)


# --- settings -----------------------------------------------------------------------------------------------------


def test_the_settings_are_the_paper_s() -> None:
    assert preset_of("non-private/MNIST/type 0&1/succeed", "full").experiments == (FULL,)
    assert preset_of("non-private/MNIST/type 2/succeed", "quick").experiments == (replace(FULL, images=10),)
    (faces,) = preset_of("non-private/LFW/type 2/succeed", "full").experiments
    assert faces == replace(FULL, dataset="lfw", batch_size=3, victim_batch=3, set=("shards.shards=15",))


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_a_row_and_data_set_are_one_run_and_no_other_s(scale: Scale) -> None:
    """Three figures of two kinds of leakage share it; 4 rows of 2 data sets do not."""
    runs: dict[str, set[tuple[Any, ...]]] = {}
    for cell in TABLE.cells:
        (run,) = fed_cdp.attacked(cell, scale).experiments
        assert Experiment.from_run_config(run.to_run_config()) == run
        assert settings(partition.scheme(run.split), run.split, run.set)
        runs.setdefault(cells.folder_name(run), set()).add((cell.row, cell.keys["dataset"]))
    assert len(runs) == 8 and all(len(of) == 1 for of in runs.values())


def test_each_cell_has_its_own_figure() -> None:
    for row in ("non-private", "Fed-SDP", "Fed-CDP", "Fed-CDP(decay)"):
        for dataset in ("MNIST", "LFW"):
            of = TABLE.select(f"fed_cdp.7/{row}/{dataset}")
            assert [fed_cdp.attacked(cell, "full").figure.name for cell in of] == [
                f"audit.vantage={vantage}.distance.{name}"
                for vantage in ("server", "client_example")
                for name in ("success", "rmsd", "iterations")
            ]


def test_the_file_opens_with_its_card() -> None:
    for label in ("Paper", "Settings", "Quick", "Departures"):
        assert re.search(rf"^{label}\s", fed_cdp.__doc__ or "", re.MULTILINE)


def test_what_cannot_be_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "fetch", lambda name, data_root=None: None)
    given = Experiment(engine="inproc", data_root=tmp_path / "nothing", out=tmp_path / "out")
    assert command.reproduce("fed_cdp.7", "", "quick", given) == 1
    found = pd.read_csv(tmp_path / "out" / "fed_cdp.7-quick.csv")
    assert set(found.status) == {"not run"} and len(found) == 48
    reasons = dict(zip(zip(found.row, found.dataset, strict=True), found.reason, strict=True))
    assert reasons["Fed-SDP", "LFW"] == "method fed_sdp is not in this version"
    assert reasons["Fed-CDP", "MNIST"] == "method fed_cdp is not in this version"
    assert reasons["Fed-CDP(decay)", "MNIST"] == "method fed_cdp_decay is not in this version"
    assert all(reasons["non-private", of].startswith("Expected a data root with ") for of in ("MNIST", "LFW"))
    assert "lfw-py/people.txt" in reasons["non-private", "LFW"]


# --- what is read from an audit -----------------------------------------------------------------------------------


def asked(metric: str = "reconstruction_distance", value: float | str = 0.1) -> Cell:
    return Cell("tiny.7", {"method": "fedavg"}, ("fedavg",), (), metric, "", value)


def done(tmp_path: Path, figure: Figure, *audits: Sequence[Mapping[str, Any]]) -> Preset:
    """A preset whose runs are over, one a seed, with these audits."""
    runs = tuple(Experiment(seed=seed, out=tmp_path / str(seed)) for seed in range(len(audits)))
    for run, audit in zip(runs, audits, strict=True):
        assert run.out is not None
        run.out.mkdir()
        result = {"audit": audit, "notes": [], "provenance": {"code": code_hash()}}
        (run.out / "result.json").write_text(json.dumps(result))
    return Preset((runs,), figure)


def entry(vantage: str, **distance: float) -> dict[str, Any]:
    return {"vantage": vantage, "distance": distance}


def test_a_figure_is_that_of_its_vantage_wherever_the_entry_stands(tmp_path: Path) -> None:
    audits = (
        [entry("server", rmsd=0.2), entry("client_example", rmsd=0.1)],
        [
            entry("client_example", rmsd=0.3),
            entry("server", rmsd=0.9),
        ],
    )
    outcome = cells.read(asked(), done(tmp_path, Figure("audit.vantage=client_example.distance.rmsd", "", 1), *audits))
    assert outcome.value == pytest.approx(0.2)  # of 0.1 and 0.3
    assert outcome.deviation == pytest.approx(0.02**0.5)


@pytest.mark.parametrize("audit", [[], [entry("server", rmsd=0.2)] * 2, [entry("client_update", rmsd=0.2)]])
def test_no_entry_or_several_are_a_failure(tmp_path: Path, audit: list[dict[str, Any]]) -> None:
    outcome = cells.measured(asked(), done(tmp_path, Figure("audit.vantage=server.distance.rmsd", "", 1), audit))
    assert outcome.status == "failed"
    assert outcome.reason == f"{tmp_path / '0' / 'result.json'} has no audit.vantage=server.distance.rmsd."


@pytest.mark.parametrize(("shares", "word"), [([0.5], "Y"), ([0.49], "N"), ([0.9, 0.2], "Y"), ([0.7, 0.2], "N")])
def test_half_of_the_examples_make_a_yes(tmp_path: Path, shares: list[float], word: str) -> None:
    figure, share = fed_cdp.figures("server")["succeed"]
    preset = done(tmp_path, figure, *([entry("server", success=value)] for value in shares))
    outcome = cells.read(asked("succeed", "Y"), replace(preset, also=(share,)))
    assert (outcome.value, outcome.deviation) == (word, None)
    assert outcome.also == {share.name: pytest.approx(sum(shares) / len(shares))}


# --- what is shown ------------------------------------------------------------------------------------------------


def shown() -> list[Outcome]:
    """The first row's MNIST cells of type 0&1, measured."""
    of = TABLE.select("fed_cdp.7/non-private/MNIST/type 0&1")
    values: list[tuple[float | str, dict[str, float]]] = [("N", {"share": 0.42}), (0.25, {"failures": 3.0}), (12.0, {})]
    return [
        Outcome(cell, "measured", "", fed_cdp.attacked(cell, "quick"), value, also=also)
        for cell, (value, also) in zip(of, values, strict=True)
    ]


def test_a_yes_or_no_stands_beside_the_published_one() -> None:
    page = sheet(TABLE, shown(), "quick")
    assert "| non-private | Y / **N** (also 0.42) | 0.1549 / **0.25** (also 3) | 6 / **12** |" in show.markdown(page)
    (line,) = [line for line in show.terminal(page, 120).splitlines() if line.lstrip().startswith("ours N")]
    assert re.fullmatch(r" +ours N +ours 0\.25 +ours 12", line)
    found = pd.read_csv(io.StringIO(show.csv(TABLE, shown(), "quick")))
    assert list(found.measured) == ["N", "0.25", "12.0"]


def test_the_heading_says_how_much_was_attacked() -> None:
    heading = sheet(TABLE, shown(), "quick").heading
    assert any(line.startswith("QUICK: 1 seed, 1 round of 1 epoch, 10 probes; not the paper's") for line in heading)
    plain = replace(FULL, attack=("none",))
    without = [replace(outcome, preset=Preset(((plain,),), Figure("x", "y"))) for outcome in shown()]
    assert any(
        line.startswith("FULL: 1 seed, 1 round of 1 epoch; the") for line in sheet(TABLE, without, "full").heading
    )


def test_what_a_number_is_is_said_once_for_all_vantages() -> None:
    outcomes = [Outcome(cell, "not run", "-", fed_cdp.attacked(cell, "quick")) for cell in TABLE.cells]
    said = [line for line in sheet(TABLE, outcomes, "quick").heading if line.startswith(("ours (", "also ("))]
    assert len(said) == 5  # three figures, two with another beside them


# --- a real audit -------------------------------------------------------------------------------------------------


def of_digits(cell: Cell, scale: Scale) -> Preset:
    """The table's figures of a run in which the closed form solves single examples, and no batch of two."""
    run = replace(
        fed_cdp.attacked(cell, scale).experiments[0], dataset="digits", net="linear", clients=2, sample=0,
        attack=("analytic",), victim_batch=2, images=2, set=("shards.train=200",),
    )  # fmt: skip
    return replace(fed_cdp.attacked(cell, scale), variants=((run,),))


def test_a_real_audit_fills_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = Table("tiny.7", "T", "P", TABLE.rows_by, TABLE.columns_by, TABLE.select("fed_cdp.7/non-private/MNIST"))
    assert command.run(Reproduction(small, of_digits, "quick", Experiment(engine="inproc"), tmp_path), "") == 0
    found = pd.read_csv(tmp_path / "tiny.7-quick.csv").set_index(["leak", "metric"])
    assert set(found.status) == {"measured"} and found.folders.nunique() == 1
    assert found.measured["type 2", "succeed"] == "Y"
    assert float(found.measured["type 2", "reconstruction_distance"]) < 1e-5
    assert float(found.measured["type 0&1", "reconstruction_distance"]) > 0.01  # the mean of both, at best
    assert found.also["type 2", "reconstruction_distance"] == "audit.vantage=client_example.failures=0.0"
    assert found.measured["type 2", "attack_iterations"] == "0.0"
    assert re.search(r"after \d+ s Y, published Y$", capsys.readouterr().err, re.MULTILINE)
